"""Training softmax attention is a margin problem.

`TokenData` holds the sequences; `train` returns the `Trajectory` of attention weights trained on them in a `Geometry`;
`solve` returns the certified `MaxMargin` of a `MarginProblem`, which says which tokens to separate; `verdict` brings
the two together.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

# What there is stands in `__init__.pyi`. It is imported when it is asked for, so that `attsvm --help` does not wait for
# torch, and that `import attsvm` is enough for `attsvm.optim.MirrorAdam`.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {alias.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}

__all__ = sorted(name for name, home in _HOMES.items() if home != "attsvm")  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attsvm' has no attribute {name!r}")
    home = _HOMES[name]
    if home == "attsvm":
        return importlib.import_module(f"attsvm.{name}")
    value = globals()[name] = getattr(importlib.import_module(str(home)), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
