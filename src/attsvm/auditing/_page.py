"""The page of an audit: one offline HTML file."""

from __future__ import annotations

import json
from typing import Any

from attsvm.files import PathLike
from attsvm.pages import render, write_page


def write_audit_page(path: PathLike, facts: dict[str, Any]) -> None:
    """Write the page of `Audit.facts()`."""
    # "</script>" in a text must not end the data, and lines of their own separators must not end a string.
    data = json.dumps(facts, allow_nan=False, ensure_ascii=True).replace("<", "\\u003c")
    write_page(path, render("auditing/audit.html", facts=facts, data=data))
