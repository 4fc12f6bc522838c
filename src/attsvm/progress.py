"""A progress bar, if rich is installed and it is wanted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attsvm.errors import AttsvmError


@contextmanager
def progress_bar(wanted: bool, first: int, last: int) -> Iterator[Callable[[float], None]]:
    """Yield a function that is told the step reached (a fraction while only some chunks are there)."""
    if not wanted:
        yield lambda step: None
        return
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError as error:
        raise AttsvmError("progress needs the rich package: pip install attsvm[cli].") from error
    columns = (TextColumn("step {task.completed:.0f} of {task.total}"), BarColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("train", total=last, completed=first)
        yield lambda step: bar.update(task, completed=step)
