"""What people install works: wheel and sdist build without network, are complete, and the wheel runs elsewhere."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling import build

import attsvm

ROOT = Path(__file__).parents[1]
SOURCES = {
    str(path.relative_to(ROOT / "src"))
    for path in (ROOT / "src" / "attsvm").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
IMPORTS = """
import sys
from importlib.resources import files

import attsvm, attsvm.pages

templates = [path for path in sys.argv[1:] if path.endswith(".html")]
for template in templates:
    assert files("attsvm").joinpath(template).read_text(encoding="utf-8")
assert "<html" in attsvm.pages.render("templates/base.html")
print(attsvm.__file__, attsvm.__version__, len(templates))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    return out / _in_root(lambda: build.build_wheel(str(out)))


def _in_root(step) -> str:
    """Build hooks run in the folder of pyproject.toml."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return step()


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == SOURCES
    assert "attsvm/py.typed" in inside
    assert any(name.endswith(".html") for name in inside)


def test_the_wheel_runs_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(place), str(wheel)], check=True, cwd=elsewhere)
    environment = {**os.environ, "PYTHONPATH": str(place)}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, check=True, cwd=elsewhere, env=environment, capture_output=True, text=True
        ).stdout.strip()

    templates = sorted(name.removeprefix("attsvm/") for name in SOURCES if name.endswith(".html"))
    imported = f"{place / 'attsvm' / '__init__.py'} {attsvm.__version__} {len(templates)}"
    assert python("-c", IMPORTS, *templates) == imported
    assert python("-m", "attsvm", "--version").endswith(attsvm.__version__)


def test_the_sdist_holds_what_its_tests_need(tmp_path: Path) -> None:
    name = _in_root(lambda: build.build_sdist(str(tmp_path)))
    assert name == f"attsvm-{attsvm.__version__}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        inside = {member.partition("/")[2] for member in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", "tools/layers.py"}
    assert needed <= inside
    assert {f"src/{path}" for path in SOURCES} <= inside
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")}
    assert tests <= inside


def test_changelog_and_citation_are_of_this_version() -> None:
    release = re.search(r"^## (\S+) – (\d{4}-\d{2}-\d{2})$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert release is not None
    citation = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    assert f"version: {release[1]}" in citation
    assert f"date-released: {release[2]}" in citation
    assert release[1] == attsvm.__version__
