"""The page of an audit in a browser: what it shows is what was computed, on a desk and on a phone."""

from __future__ import annotations

import re
import shutil
import statistics
from pathlib import Path

import pytest
import torch

from attsvm.auditing import Steps, audit_steps
from attsvm.models import GPT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Steps]:
    pairs = []
    for step, size in ((0, 0.2), (700_000, 1.0)):
        torch.manual_seed(0)
        model = GPT(vocabulary=30, length=200, width=8, layers=2, heads=2)
        for block in model.blocks:
            torch.nn.init.normal_(block.qkv.weight, std=size)  # pyright: ignore[reportArgumentType]
        pairs.append((step, model))
    found = audit_steps(pairs, None, torch.randint(30, (4, 200)).tolist(), norms=["l2"])
    place = tmp_path_factory.mktemp("pages")
    found.save(place / "audit")
    return place / "audit", found


def short(value: float | None) -> str:
    """As the page writes numbers."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1000 or 0 < size < 0.001:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{digits}e{int(power):+d}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_shows_what_was_computed(folder: tuple[Path, Steps], width: int) -> None:
    from playwright.sync_api import sync_playwright

    place, steps = folder
    found = steps.audits[-1][1]
    with sync_playwright() as start:
        browser = start.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
        page.goto((place / "audit.html").as_uri())
        for measure in found.heads[0].measures:
            page.select_option("#measure", measure)
            cells = page.locator("#grid button").all_inner_texts()
            assert cells == [short(head.measures[measure]) for head in found.heads]
        page.locator("#grid button").nth(3).click()
        head = found.heads[3]
        assert page.locator("#head h2").inner_text() == f"{head.layer}, head {head.head}"
        assert page.locator("#head h2").inner_html().startswith("blocks.<wbr>")  # a long name breaks behind a dot
        cells = page.locator(".cards td:not(:first-child)").all_inner_texts()
        own = head.measures
        sure = [own[name] for name in ("saturated", "confidence", "entropy", "sink", "first_weight")]
        kinds = [own[name] for name in ("first", "self", "previous", "next", "rare")]
        problems = [facts["l2"][name] for facts in head.problems.values() for name in ("efficiency", "alignment")]
        first, last = short(head.spectrum[0]), short(head.spectrum[-1])
        assert [cell.strip() for cell in cells] == [
            *(short(value) for value in (*sure, *head.quantiles, *kinds, own["norm"], own["stable_rank"])),
            f"{first} to {last}",
            *(short(value) for value in problems),
        ]
        assert f"{head.queries:,} queries" in page.locator("#head").inner_text()
        assert f"{head.selecting} queries" in page.locator(".cards").inner_text()
        assert page.locator("rect").count() == len(head.spectrum)
        texts = page.locator(".text")
        assert texts.count() == len(head.support)
        for fact, box in zip(head.support, texts.all()):
            assert box.locator(".q").count() == box.locator(".s").count() == box.locator(".c").count() == 1
            shade = box.locator(".s").get_attribute("style") or ""
            share = float(shade.split("rgba(0,114,178,")[1].split(")")[0]) / 0.75
            assert share == pytest.approx(fact["weights"][fact["selected"]], abs=2e-3)
            said = box.locator("p").first.inner_text()
            assert f"margin {short(fact['margin'])}, {100 * fact['share']:.0f}% of the multipliers" in said
        more = texts.first.locator("button")
        before = texts.first.locator(".words span").count()
        more.first.click()
        assert texts.first.locator(".words span").count() > before
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto((place / "steps.html").as_uri())
        assert page.locator("path").count() == len(found.heads) + 1
        page.select_option("#measure", "norm")
        table = [[audit.heads[i].measures["norm"] for _, audit in steps.audits] for i in range(len(found.heads))]
        table.append([statistics.median(column) for column in zip(*table)])
        high = max(map(max, table))
        for path, values in zip(page.locator("path").all(), table, strict=True):
            drawn = re.findall(r"[ML][\d.]+ ([\d.]+)", path.get_attribute("d") or "")
            assert [(290 - float(y)) / 270 * high for y in drawn] == pytest.approx(values, abs=1e-3 * high)
        ends = "() => [...document.querySelectorAll('svg text')].map((t) => t.getBBox().x + t.getBBox().width)"
        assert max(page.evaluate(ends)) <= 600  # the width of the picture
        assert float(page.locator("svg text").nth(4).text_content() or "") == pytest.approx(high, rel=6e-3)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not wrong
        browser.close()
