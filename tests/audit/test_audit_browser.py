"""The page of an audit in a browser: what it shows is what was computed, on a desk and on a phone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from attsvm.auditing import Audit, audit_steps
from attsvm.models import GPT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Audit]:
    pairs = []
    for step, size in ((0, 0.2), (7, 1.0)):
        torch.manual_seed(0)
        model = GPT(vocabulary=30, length=200, width=8, layers=2, heads=2)
        for block in model.blocks:
            torch.nn.init.normal_(block.qkv.weight, std=size)  # pyright: ignore[reportArgumentType]
        pairs.append((step, model))
    found = audit_steps(pairs, None, torch.randint(30, (4, 200)).tolist(), norms=["l2"])
    place = tmp_path_factory.mktemp("pages")
    found.save(place / "audit")
    return place / "audit", found.audits[-1][1]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_shows_what_was_computed(folder: tuple[Path, Audit], width: int) -> None:
    from playwright.sync_api import sync_playwright

    place, found = folder
    with sync_playwright() as start:
        browser = start.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
        page.goto((place / "audit.html").as_uri())
        for measure in ("confidence", "self"):
            page.select_option("#measure", measure)
            cells = page.locator("#grid button").all_inner_texts()
            assert [float(cell) for cell in cells] == pytest.approx(
                [head.measures[measure] for head in found.heads], abs=6e-4
            )
        page.locator("#grid button").nth(3).click()
        head = found.heads[3]
        assert page.locator("#head h2").inner_text() == f"{head.layer}, head {head.head}"
        cards = page.locator(".cards").inner_text()
        assert f"{head.measures['entropy']:.2f}" in cards or f"{head.measures['entropy']:.3f}" in cards
        assert page.locator("rect").count() == len(head.spectrum)
        texts = page.locator(".text")
        assert texts.count() == len(head.support)
        for fact, box in zip(head.support, texts.all()):
            assert box.locator(".q").count() == box.locator(".s").count() == box.locator(".c").count() == 1
            shade = box.locator(".s").get_attribute("style") or ""
            share = float(shade.split("rgba(0,114,178,")[1].split(")")[0]) / 0.75
            assert share == pytest.approx(fact["weights"][fact["selected"]], abs=2e-3)
        more = texts.first.locator("button")
        before = texts.first.locator(".words span").count()
        more.first.click()
        assert texts.first.locator(".words span").count() > before
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto((place / "steps.html").as_uri())
        assert page.locator("path").count() == len(found.heads) + 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not wrong
        browser.close()
