"""Signals: real ones, sent to this process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attsvm.interrupts import Interrupted, asked_to_stop, interruptible, without_interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """They are there again at the end."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def status(work: Callable[[], None]) -> int:
    """The exit status of a command that is interrupted in this work."""
    with pytest.raises(Interrupted) as end, interruptible():
        work()
    return end.value.status


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_noted_and_obeyed_later_with_its_own_status(number: int) -> None:
    reached = []

    def work() -> None:
        with asked_to_stop() as asked:
            asked.obey()  # nothing was asked
            signal.raise_signal(number)
            reached.append(asked.is_set())
            asked.obey()

    assert status(work) == 128 + number
    assert reached == [True]


@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_one_interrupts_at_once(second: int) -> None:
    def work() -> None:
        with asked_to_stop():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(second)

    assert status(work) == 128 + second


def test_in_a_program_ctrl_c_is_keyboardinterrupt_and_sigterm_is_left_alone() -> None:
    with asked_to_stop() as asked:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asked.obey()


def test_handlers_of_the_program_stay() -> None:
    heard = []

    def own(number: int, frame: Any) -> None:
        heard.append(number)

    signal.signal(signal.SIGINT, own)
    try:
        with asked_to_stop() as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked.is_set()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [signal.SIGINT]


def test_what_is_ignored_stays_ignored() -> None:
    """As in a job that a shell script started with &."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible(), asked_to_stop() as asked:
            signal.raise_signal(signal.SIGINT)
            assert not asked.is_set()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_where_interrupts_must_wait_ctrl_c_is_lost_and_sigterm_is_not() -> None:
    reached = []

    def work() -> None:
        with without_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
        reached.append("more")

    assert status(work) == 128 + signal.SIGTERM
    assert reached == ["the end of the block"]
