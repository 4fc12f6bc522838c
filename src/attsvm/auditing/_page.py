"""The pages of audits: offline HTML files that hold their data."""

from __future__ import annotations

import json
from typing import Any

from attsvm.files import PathLike
from attsvm.pages import render, write_page


def write_data_page(path: PathLike, template: str, facts: dict[str, Any]) -> None:
    """Write the page of a template that draws `facts`, which it also has as JSON in `data`."""
    # "</script>" in a text must not end the data, and lines of their own separators must not end a string.
    data = json.dumps(facts, allow_nan=False, ensure_ascii=True).replace("<", "\\u003c")
    write_page(path, render(template, facts=facts, data=data))
