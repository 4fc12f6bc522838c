"""The explorer's page: built from its sources, complete in one file; in a browser it plays, obeys and agrees."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attsvm

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explorer.html"


def test_the_page_is_built_from_its_sources() -> None:
    folder = ROOT / "explorer"
    names = ["package.json", "package-lock.json", "build.mjs"]
    names += [f"src/{path.name}" for path in sorted((folder / "src").iterdir())]
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{(folder / name).read_text('utf-8')}\0".encode())
    said = re.search("sources sha256 ([0-9a-f]{64})", PAGE.read_text("utf-8"))
    assert said is not None
    assert said[1] == digest.hexdigest(), "explorer/ has changed: run `make explorer`"


def test_the_page_is_complete() -> None:
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"https?://[\w.]+", page)) <= {"http://www.w3.org"}  # names of the SVG standard
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]
    assert "Permission to use, copy, modify, and/or distribute" in page  # d3's licence
    text = re.sub(r"<[^>]+>", " ", page.partition('<section class="text">')[2].partition("</section>")[0])
    assert len(text.split()) > 150  # it explains itself without a script


@pytest.mark.slow
def test_building_again_gives_the_same_page(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (ROOT / "explorer" / "node_modules").is_dir():
        pytest.skip("node or explorer/node_modules is missing: run `make explorer`")
    subprocess.run([node, ROOT / "explorer" / "build.mjs", tmp_path / "page.html"], check=True, capture_output=True)
    assert (tmp_path / "page.html").read_bytes() == PAGE.read_bytes()


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens the page; at the end no page may have had an error, a console message or a request beside itself."""
    pages: list[Any] = []
    wrong: list[str] = []

    def opened(address: str = "", width: int = 1280, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url == url else wrong.append(request.url))
        url = PAGE.as_uri()
        page.goto(url + address)
        return page

    yield opened
    for page in pages:
        page.close()
    assert wrong == []


def step(page: Any) -> int:
    return int(page.locator("#step").inner_text().replace(",", ""))


def finished(page: Any) -> None:
    page.wait_for_function("document.getElementById('play').textContent === 'Replay'")


def settings(page: Any) -> dict[str, str]:
    return dict(part.split("=") for part in page.evaluate("location.hash")[1:].split("&"))


def sequences(page: Any) -> list[tuple[int, list[float], list[list[float]]]]:
    """Answer, query and tokens of every sequence, as the address has them."""
    found = []
    for text in settings(page)["data"].split("_"):
        answer, query, *tokens = text.split("/")
        points = [[float(v) for v in pair.split(",")] for pair in (query, *tokens)]
        found.append((int(answer), points[0], points[1:]))
    return found


def centre(page: Any, handle: str) -> tuple[float, float]:
    box = page.locator(f"[data-id={handle}] .touch").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def agrees(page: Any) -> None:
    """The bracket on the page holds the library's optimum for what the address says."""
    data = sequences(page)
    fixed = settings(page)["model"] == "p"
    X = np.array([[tokens for _, _, tokens in data]])
    z = np.ones((1, len(data), 1)) if fixed else np.array([[query for _, query, _ in data]])
    answers = np.array([[[answer] for answer, _, _ in data]])
    solution = attsvm.solve(attsvm.att_svm(attsvm.TokenData.cross(X, z), answers), settings(page)["norm"])
    text = page.locator("#bracket").inner_text()
    if str(solution.status[0]) == "infeasible":
        assert text == "no solution"
        return
    lower, upper = (float(v) for v in re.findall(r"[\d.]+", text))
    assert lower <= solution.upper.item()
    assert solution.lower.item() <= upper
    assert upper - lower < 1e-6 * upper


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (320, "light")])
def test_the_first_frame_plays(opened: Opened, width: int, scheme: str) -> None:
    page = opened(width=width, color_scheme=scheme)
    page.wait_for_function("Number(document.getElementById('step').textContent) > 5")
    before = step(page)
    page.wait_for_function(f"Number(document.getElementById('time').value) > {before}")
    page.locator("#play").click()
    assert page.locator("#play").inner_text() == "Play"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plane = page.locator("#plane").bounding_box()
    assert plane["width"] > 0.9 * min(width, 640)
    for handle in page.locator(".handle .shape, .handle rect").all():
        box = handle.bounding_box()
        assert plane["x"] <= box["x"]
        assert box["x"] + box["width"] <= plane["x"] + plane["width"]
    assert page.locator(".band").count() + page.locator("path.goal").count() > 0
    assert page.locator("[id]").evaluate_all("all => new Set(all.map(x => x.id)).size === all.length")
    unnamed = "all => all.filter(x => !x.labels?.length && !x.textContent.trim() && !x.ariaLabel).length"
    assert page.locator("button, select, input").evaluate_all(unnamed) == 0


@pytest.mark.slow
def test_dragging_moves_tokens_and_queries(opened: Opened) -> None:
    page = opened(reduced_motion="reduce")
    finished(page)
    for handle, take in (("x0-3", lambda data: data[0][2][3]), ("z1", lambda data: data[1][1])):
        before, bracket = sequences(page), page.locator("#bracket").inner_text()
        x, y = centre(page, handle)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 30, y - 10)
        page.mouse.move(x + 60, y - 40)
        page.mouse.up()
        finished(page)
        after = sequences(page)
        unit = page.locator("#plane").bounding_box()["width"] / 4  # pixels per unit of the plane
        moved = np.subtract(take(after), take(before))
        assert moved == pytest.approx([60 / unit, 40 / unit], abs=0.02)
        assert centre(page, handle) == pytest.approx((x + 60, y - 40), abs=2)
        assert page.locator("#bracket").inner_text() != bracket
        agrees(page)
    # Out of the plane: the token stays at its edge.
    page.mouse.move(*centre(page, "x0-3"))
    page.mouse.down()
    page.mouse.move(5, 5)
    page.mouse.up()
    assert sequences(page)[0][2][3] == [-2, 2]


@pytest.mark.slow
def test_a_click_or_enter_chooses_the_answer_and_arrows_move(opened: Opened) -> None:
    page = opened(reduced_motion="reduce")
    finished(page)
    page.locator("[data-id=x0-1]").click()
    assert [answer for answer, _, _ in sequences(page)] == [1, 0]
    page.locator("[data-id=x1-2]").focus()
    before = sequences(page)[1][2][2]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowUp")
    assert sequences(page)[1][2][2] == pytest.approx([before[0] + 0.05, before[1] + 0.01])
    page.keyboard.press("Enter")
    assert [answer for answer, _, _ in sequences(page)] == [1, 2]
    finished(page)
    assert "the answer" in page.locator("[data-id=x1-2]").get_attribute("aria-label")
    for _ in range(120):  # a held key: the address is written now and then, without a complaint of the browser
        page.keyboard.press("Shift+ArrowDown")
    page.wait_for_function(f"location.hash.includes('{before[0] + 0.05:g},{before[1] + 0.01 - 1.2:g}')")
    agrees(page)


@pytest.mark.slow
def test_every_norm_and_rule_can_be_chosen(opened: Opened) -> None:
    page = opened(reduced_motion="reduce")
    for example in ("one", "none", "two"):
        page.select_option("#example", example)
        for norm in page.locator("#norms input").all():
            norm.check()
            assert settings(page)["norm"] == norm.get_attribute("value")
            finished(page)
            agrees(page)
    for value in page.locator("#rule option").evaluate_all("all => all.map(x => x.value)"):
        page.select_option("#rule", value)
        finished(page)
        assert settings(page)["rule"] == value
        # The rule brings its norm, and most of that norm's margin.
        assert page.locator(".norm.expected input").is_checked()
        assert float(page.locator("#share").inner_text().removesuffix("%")) > 95
        assert step(page) == 20000


@pytest.mark.slow
def test_the_address_holds_the_state(opened: Opened) -> None:
    page = opened(reduced_motion="reduce")
    page.select_option("#sequences", "3")
    page.select_option("#per-sequence", "6")
    page.select_option("#rule", "muon")
    page.locator("#norms input[value=nuclear]").check()
    finished(page)
    assert [len(tokens) for _, _, tokens in sequences(page)] == [6, 6, 6]
    address = page.evaluate("location.hash")
    seen = [page.locator(name).inner_text() for name in ("#bracket", "#share", "#size", "#status")]
    agrees(page)
    other = opened(address, reduced_motion="reduce")
    finished(other)
    assert other.evaluate("location.hash") == address
    assert [other.locator(name).inner_text() for name in ("#bracket", "#share", "#size", "#status")] == seen
    # An address that says nothing sensible is the first page; one that is typed in takes effect.
    bad = opened("#model=W&rule=ngd&norm=l2&lr=0.05&data=7/1,1/0,0", reduced_motion="reduce")
    assert settings(bad)["rule"] == "ngd"
    assert len(sequences(bad)) == 2
    bad.evaluate(f"location.hash = {address!r}")
    bad.wait_for_function("document.getElementById('rule').value === 'muon'")


@pytest.mark.slow
def test_fingers_on_a_phone(opened: Opened) -> None:
    page = opened(width=390, has_touch=True, is_mobile=True, reduced_motion="reduce")
    finished(page)
    page.touchscreen.tap(*centre(page, "x1-3"))
    assert [answer for answer, _, _ in sequences(page)] == [0, 3]
    x, y = centre(page, "x0-0")
    client = page.context.new_cdp_session(page)
    touch = lambda kind, *at: client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(at)})  # noqa: E731
    touch("touchStart", {"x": x, "y": y})
    touch("touchMove", {"x": x + 20, "y": y + 12})
    touch("touchMove", {"x": x + 40, "y": y + 24})
    touch("touchEnd")
    page.wait_for_function("!document.body.classList.contains('held')")
    assert sequences(page)[0][2][0] == pytest.approx(np.add([-1.1, 1.1], [40 / 89.5, -24 / 89.5]), abs=0.03)
    finished(page)
    agrees(page)
