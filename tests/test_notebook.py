"""The notebook runs from top to bottom, and what ends its cells shows itself."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import attsvm

NOTEBOOK = Path(__file__).parents[1] / "examples" / "objects.ipynb"


def last_value(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: the value of its last expression, if it ends with one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


def test_the_notebook_runs_and_every_object_shows_itself() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {}
    shown = [last_value("".join(cell["source"]), namespace) for cell in cells if cell["cell_type"] == "code"]
    try:
        tables = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
        assert sum(table.startswith("<table>") for table in tables) >= 4
        pictures = [value for value in shown if isinstance(value, Axes)]
        assert len(pictures) == 3
        for ax in pictures:
            assert ax.get_title()
            assert ax.get_xlabel()
            assert ax.figure in map(pyplot.figure, pyplot.get_fignums())  # so that a notebook draws it
        assert namespace["verdict"].reached.any()
        assert str(namespace["verdict"]).splitlines()[1].startswith("predicted limit")
    finally:
        pyplot.close("all")


def test_entries_of_small_matrices_have_whole_coordinates() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot

    solution = attsvm.solve(attsvm.att_svm(attsvm.sphere(2, 3, 2, seed=1)))
    try:
        ax = solution.plot()
        for ticks in (ax.get_xticks(), ax.get_yticks()):
            assert all(tick == round(tick) for tick in ticks)
    finally:
        pyplot.close("all")


def test_what_is_imported_late_is_completed_too() -> None:
    assert {"audit", "basins", "falsify", "optim", "train"} <= set(dir(attsvm))
