"""What the documents show runs as it stands, prints what they say, and links lead somewhere."""

import doctest
import importlib
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
)
MODULES = sorted(path for path in (ROOT / "src").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?^```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def assert_prints(printed: str, shown: str) -> None:
    """The same words; numbers to 5%, since the last digits differ between machines; "…" stands for anything."""
    pattern = re.escape(" ".join(NUMBER.sub("#", shown).split())).replace("…", ".*")
    text = " ".join(NUMBER.sub("#", printed).split())
    assert re.fullmatch(pattern, text), f"{printed}\nis not\n{shown}"
    if "…" not in shown:
        for mine, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
            assert math.isclose(float(mine), float(theirs), rel_tol=0.05, abs_tol=1e-12), f"{mine} is not {theirs}"


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if "```python" in path.read_text()], ids=name)
def test_blocks_run_in_turn(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "document"}
    for code, shown in BLOCK.findall(document.read_text(encoding="utf-8")):
        exec(compile(code, name(document), "exec"), namespace)
        printed = capsys.readouterr().out
        if shown:
            assert_prints(printed, shown)


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_docstrings_run(module: Path) -> None:
    dotted = ".".join(module.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(dotted), optionflags=doctest.ELLIPSIS)
    assert result.attempted or "+SKIP" in module.read_text(encoding="utf-8")
    assert not result.failed


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere_and_lines_fit(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if target.startswith(("http:", "https:")):
            continue
        file, _, anchor = target.partition("#")
        linked = document if not file else document.parent / file
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, f"lines of {name(document)} must fit 120 columns: {long[0][:60]}…"
