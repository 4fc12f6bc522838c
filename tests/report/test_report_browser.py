"""The page in a real browser: no request, no error, every figure visible, links that lead somewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attsvm.experiments import find
from attsvm.experiments._runner import run_experiments
from attsvm.report import export_figures, gather, write_report

pytestmark = pytest.mark.slow

CHOSEN = ["md-fig2", "md-fig3", "svm-fig1"]
"""The quickest."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run_experiments(find(CHOSEN), folder / "my runs", quick=True)
    write_report(gather(folder / "my runs"), folder / "my runs", folder / "report.html")
    return folder


def test_page_is_self_contained(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert page.count("http") == page.count("http://www.w3.org/")  # names of the SVG standard
    for name in CHOSEN:
        assert f'id="{name}"' in page


def test_the_same_rows_give_the_same_page(folder: Path, tmp_path: Path) -> None:
    write_report(gather(folder / "my runs"), folder / "my runs", folder / "again.html")
    assert (folder / "again.html").read_text() == (folder / "report.html").read_text()


def test_figures_are_exported(folder: Path, tmp_path: Path) -> None:
    paths = export_figures(gather(folder / "my runs"), tmp_path / "figures")
    assert {path.suffix for path in paths} == {".pdf", ".svg"}
    assert len(paths) == 2 * len(CHOSEN)
    assert all(path.stat().st_size > 1000 for path in paths)


def test_an_unfinished_experiment_is_said_to_be_so(folder: Path, tmp_path: Path) -> None:
    run_experiments(find(["md-fig3"]), tmp_path, quick=True)
    next(tmp_path.rglob("*.parquet")).unlink()
    write_report(gather(tmp_path), tmp_path, tmp_path / "report.html")
    assert "unfinished: 1 of 2 batches" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (375, 700)])
def test_page_in_a_browser(folder: Path, browser: Any, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    wrong: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    url = (folder / "report.html").as_uri()
    page.goto(url)
    assert wrong == []
    assert [request for request in requests if not request.startswith("data:")] == [url]

    figures = page.locator("figure svg")
    assert figures.count() == len(CHOSEN)
    for k in range(len(CHOSEN)):
        box = figures.nth(k).bounding_box()
        assert figures.nth(k).is_visible()
        assert box["width"] > 300
        assert box["height"] > 100
    # The page itself does not scroll sideways, whatever its figures do inside.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("[id]").evaluate_all("all => new Set(all.map(x => x.id)).size === all.length")

    for link in page.locator("nav a").all():
        link.click()
        assert page.locator(page.evaluate("location.hash")).is_visible()
    targets = page.locator("details a").evaluate_all("all => all.map(a => a.href)")
    assert targets
    for target in targets:
        assert Path(_from_uri(target)).is_file()
    page.close()


def _from_uri(uri: str) -> str:
    from urllib.parse import unquote, urlparse

    return unquote(urlparse(uri).path)
