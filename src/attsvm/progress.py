"""The progress bar of all long work, where it is wanted. It needs rich."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from attsvm.errors import AttsvmError


class Tell(Protocol):
    """What a bar is told: how far the work is (perhaps between two steps), in words, and what else there is to say."""

    def __call__(self, reached: float, words: str | None = None, more: str = "") -> None: ...


@contextmanager
def progress_bar(wanted: bool, first: float, last: float | None, words: str = "") -> Iterator[Tell]:
    """A bar from `first` to `last` on standard error, with the time left; yields the function to call with progress.

    If the end is not known, `last` is None: the bar then only shows, on a terminal, that the work is alive. Without
    `words` the bar says "step 3 of 10".
    """

    def said(reached: float, given: str | None) -> str:
        return given or words or f"step {reached:.0f} of {last:g}"

    def tell(reached: float, words: str | None = None, more: str = "") -> None:
        if bar is not None:
            bar.update(task, completed=reached, description=said(reached, words), more=more)

    bar = _bar(last) if wanted else None
    if bar is None:
        yield tell
        return
    task = bar.add_task(said(first, None), total=last, completed=first, more="")
    with bar:
        yield tell


def _bar(last: float | None) -> Any:
    try:
        from rich import progress
        from rich.console import Console
        from rich.table import Column
    except ImportError as error:
        raise AttsvmError("progress needs the rich package: pip install attsvm[cli].") from error
    text, more = progress.TextColumn("{task.description}"), progress.TextColumn("{task.fields[more]}")
    console = Console(stderr=True)
    if last is None:
        columns = (progress.SpinnerColumn(), text, progress.TimeElapsedColumn())
        return progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    times = [  # which a narrow terminal does not cut short
        clock(table_column=Column(min_width=7, no_wrap=True))
        for clock in (progress.TimeElapsedColumn, progress.TimeRemainingColumn)
    ]
    return progress.Progress(text, progress.BarColumn(), more, *times, console=console)
