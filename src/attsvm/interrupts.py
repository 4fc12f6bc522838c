"""Ctrl-C as a request that long work answers when it can; and places where Ctrl-C must wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from typing import Any


@contextmanager
def asked_to_stop() -> Iterator[Event]:
    """An event that the first Ctrl-C sets; the second one raises KeyboardInterrupt as usual."""

    def ask(number: int, frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    asked = Event()
    with _on_interrupt(ask):
        yield asked


@contextmanager
def without_interrupts() -> Iterator[None]:
    """No Ctrl-C inside this block, nor ever in processes that are started in it: they inherit this."""
    with _on_interrupt(signal.SIG_IGN):
        yield


@contextmanager
def _on_interrupt(handler: Any) -> Iterator[None]:
    if current_thread() is not main_thread():  # others never hear of it
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
