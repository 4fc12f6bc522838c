"""Ctrl-C as a request that long work answers when it can; and places where Ctrl-C must wait. A command takes SIGTERM as
Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """What either signal raises in a command. `kept` are words on what is left of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number
        self.kept = "no file was left half written"


class Asked:
    """Whether work is asked to stop."""

    number = 0

    def is_set(self) -> bool:
        return bool(self.number)

    def obey(self) -> None:
        """Be interrupted now, if it was asked for."""
        if self.number:
            signal.raise_signal(self.number)


def _interrupt(number: int, frame: Any) -> None:
    raise Interrupted(number)


_OURS = (signal.default_int_handler, _interrupt)


@contextmanager
def interruptible() -> Iterator[None]:
    """Either signal raises `Interrupted` in this block, unless it is ignored."""
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with _handling(dict.fromkeys(heard, _interrupt)):
        yield


@contextmanager
def asked_to_stop(wanted: bool = True) -> Iterator[Asked]:
    """Notes the first Ctrl-C, if that is wanted; the second one interrupts as usual. A program's own handler stays."""

    def ask(number: int, frame: Any) -> None:
        asked.number = number
        for each, handler in before.items():
            signal.signal(each, handler)

    asked, before = Asked(), _ours() if wanted else {}
    with _handling(dict.fromkeys(before, ask)):
        yield asked


@contextmanager
def never_asked() -> Iterator[None]:
    """Ctrl-C interrupts at once what runs in this block: what it cut short would count as done."""
    with _handling({number: lambda *given, usual=usual: usual(*given) for number, usual in _ours().items()}):
        yield


@contextmanager
def without_interrupts() -> Iterator[None]:
    """No Ctrl-C inside this block, nor ever in processes that are started in it: they inherit this."""
    with asked_to_stop() as asked, _handling({signal.SIGINT: signal.SIG_IGN}):
        yield
    asked.obey()  # SIGTERM, which must not be lost


def _ours() -> dict[int, Callable[[int, Any], Any]]:
    return {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) in _OURS}  # type: ignore[misc]


@contextmanager
def _handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    if current_thread() is not main_thread():  # others never hear of it
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
