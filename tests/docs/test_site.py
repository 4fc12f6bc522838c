"""The site builds without a warning, its links lead somewhere, and a browser shows it without asking the network."""

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("sphinx_gallery", reason="make docs installs it")
ROOT = Path(__file__).parents[2]
PAGES = (
    "index",
    "model",
    "quickstart",
    "choose",
    "verdict",
    "papers",
    "optimizers",
    "gallery/index",
    "api/svm",
    "glossary",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with the examples as text: `make docs` also runs them."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples", "benchmarks/results"):
        unwanted = shutil.ignore_patterns("_build", "gallery" if name == "docs" else "", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for path in ROOT.glob("*.md"):
        shutil.copyfile(path, folder / path.name)
    html = folder / "html"
    options = ["--fail-on-warning", "--keep-going", "--quiet", "-D", "plot_gallery=False"]
    result = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(folder / "docs"), str(html)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return html


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids |= {value for key in ("id", "name") if (value := named.get(key))}
        if tag == "a" and named.get("href"):
            self.targets.append(named["href"] or "")
        loaded = (
            named.get("src") if tag in ("img", "script", "iframe") else named.get("href") if tag == "link" else None
        )
        self.loaded += [loaded] if loaded else []


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    read = {}
    for path in site.rglob("*.html"):
        read[path] = Links()
        read[path].feed(path.read_text(encoding="utf-8"))
    assert len(read) > 40
    for path, links in read.items():
        assert not [url for url in links.loaded if re.match(r"(https?:)?//", url)], path
        for url in links.targets + links.loaded:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)} links to {url}"
            if parts.fragment and target in read and not parts.fragment.startswith("searchbox"):
                assert unquote(parts.fragment) in read[target].ids, f"{path.relative_to(site)} links to {url}"


def test_every_public_name_is_documented(site: Path) -> None:
    for path in (ROOT / "docs" / "api").glob("*.md"):
        if path.stem == "index":
            continue
        page = (site / "api" / f"{path.stem}.html").read_text(encoding="utf-8")
        module = importlib.import_module(f"attsvm.{path.stem}")
        for name in module.__all__:
            if inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name)):
                assert f'id="attsvm.{path.stem}.{name}"' in page, f"attsvm.{path.stem}.{name} has no docstring"


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_in_a_browser(site: Path, width: int) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no browser is installed")
    with playwright.sync_playwright() as start:
        browser = start.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        for name in PAGES:
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{name} is too wide"
        page.goto((site / "model.html").as_uri())
        page.wait_for_selector("mjx-container")
        browser.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    assert not errors
