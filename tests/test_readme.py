"""What the README shows must run as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL))
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert capsys.readouterr().out
    solution = namespace.get("solution")
    if solution is not None:
        assert solution.solved.all()  # type: ignore[attr-defined]


def test_links_lead_somewhere() -> None:
    text = README.read_text()
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (README.parent / target).exists(), target
