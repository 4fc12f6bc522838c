"""Explanations as HTML: escaped, complete, readable in a browser in light and dark."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_texts import make_texts

from attsvm.text import AttentionTextClassifier, Explanations, visible

HARD = ['c1m1 <3 & "c0m2" w1', "", "c1m1 " * 30 + "x" * 300, "<script>alert(1)</script> c0m1 & <"]


@pytest.fixture(scope="module")
def model() -> AttentionTextClassifier:
    return AttentionTextClassifier(penalty=0.1, ngrams=2).fit(*make_texts(200))


@pytest.fixture(scope="module")
def explanations(model: AttentionTextClassifier) -> Explanations:
    return model.explain(HARD)


def test_the_page_shows_the_text_and_nothing_else_of_it(explanations: Explanations, tmp_path: Path) -> None:
    explanations.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page
    shown = re.findall(r'<p class="text" dir="auto">(.*?)</p>', page, flags=re.DOTALL)
    assert [html.unescape(re.sub(r"</?mark[^>]*>", "", text)) for text in shown] == [one.text for one in explanations]
    assert page.count("the bias alone decides") == sum(not one.words for one in explanations)


def test_the_page_shows_what_would_be_hidden(tmp_path: Path) -> None:
    texts, labels = make_texts(60)
    names = np.array(["good\u202e", "bad\x1b[31m"])[labels]
    model = AttentionTextClassifier(penalty=0.1).fit(texts, names)
    told = model.explain(["c1m1 \u202ec0m1\u2066 \x07\x85<b>w1</b> I <hated this> <!-- c1m2 -->"])
    told.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for shown in (page, str(told[0]), told._repr_html_(), model.words_._repr_html_()):
        assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown)
    for code in ("202E", "2066", "0007", "0085"):
        assert f"⟨U+{code}⟩" in page
    assert "&lt;hated this&gt;" in page
    assert "3 HTML tags and comments were taken out of the text" in page
    assert visible("añ\n\t\u200dم") == "añ\n\t\u200dم"


def test_the_page_shows_both_signs_where_they_differ(model: AttentionTextClassifier, tmp_path: Path) -> None:
    one = next(one for one in model.explain(make_texts(200)[0]) if one.opposed[:12].any() and len(one.words) > 12)
    page = one._repr_html_()
    rows = re.findall(r'<tr class="(for|against)">(.*?)</tr>', page)
    assert len(rows) == 12
    for (side, row), contribution, effect in zip(rows, one.contribution, one.effect):
        assert side == ("for" if contribution > 0 else "against")
        assert f"{contribution:+.3f}" in row
        assert f"{-effect:+.3f}" in row
        assert ('class="opposed"' in row) == (contribution * effect < 0)
    assert "but more strongly" in page
    assert "leaving it out" in str(next(one for one in model.explain(make_texts(200)[0]) if one.opposed[:10].any()))
    rest = re.fullmatch(r"  ([+-]\d\.\d{3}) = (\d+) more", str(one).splitlines()[-1])
    assert rest is not None
    assert float(rest[1]) == pytest.approx(one.contribution[10:].sum(), abs=6e-4)
    assert int(rest[2]) == len(one.words) - 10
    assert "the bias alone decides" in str(model.explain(["unheard"])[0])
    plain = model.explain(["c1m1"])[0]
    assert "decides" not in str(plain)
    assert "more" not in str(plain)
    assert not plain.opposed.any()
    assert "but more strongly" not in plain._repr_html_()


def test_fragments(model: AttentionTextClassifier, explanations: Explanations) -> None:
    for fragment in (explanations._repr_html_(), explanations[0]._repr_html_(), model.words_._repr_html_()):
        assert "<html" not in fragment
        assert 'class="attsvm' in fragment
    assert "c1m1" in model.words_._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 400, 1200])
def test_the_page_in_a_browser(
    explanations: Explanations, browser: Any, scheme: str, width: int, tmp_path: Path
) -> None:
    explanations.save(tmp_path / "page.html")
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    assert len(requests) == 1
    assert not errors
    assert page.locator("section").count() == len(HARD)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    narrow = page.locator("section td:first-child").first.bounding_box()["width"]
    assert width != 400 or narrow > 80  # words are not broken
    assert page.locator("section").evaluate_all("all => all.every(x => x.scrollWidth <= x.clientWidth)")
    # Contrast of the ink with the strongest highlight, by the formula of WCAG.
    contrast = page.evaluate(
        """() => {
          const rgb = text => text.match(/[\\d.]+/g).map(Number);
          const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
          const light = c => { const l = c.map(v => linear(v / 255));
                               return .2126 * l[0] + .7152 * l[1] + .0722 * l[2] };
          const paper = rgb(getComputedStyle(document.body).backgroundColor);
          return Math.min(...[...document.querySelectorAll('.text mark')].map(mark => {
            const style = getComputedStyle(mark), back = rgb(style.backgroundColor), a = back[3] ?? 1;
            const mixed = [0, 1, 2].map(i => a * back[i] + (1 - a) * paper[i]);
            const [x, y] = [light(rgb(style.color).slice(0, 3)), light(mixed)].sort((p, q) => q - p);
            return (x + .05) / (y + .05) })) }"""
    )
    assert contrast > 4.5
    page.close()
