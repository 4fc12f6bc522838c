"""What several commands share."""

import sys

import torch
from rich.console import Console

from attsvm.errors import AttsvmError


def as_device(name: str) -> torch.device:
    """A device that works here."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # which a device without memory cannot
    except (RuntimeError, AssertionError) as error:
        raise AttsvmError(f"device {name!r} is not available here; use --device cpu.") from error
    return device


def console() -> Console:
    """Standard output, wide where no terminal sets its width."""
    return Console(width=None if sys.stdout.isatty() else 110)
