"""HTML pages: one environment for all of them, and tables for notebooks that need nothing but Python."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from attsvm.errors import AttsvmError
from attsvm.files import PathLike, atomic_path


def render(template: str, **values: Any) -> str:
    """Render a template, named by its place in the package, such as "report/template.html". Values are escaped.

    `templates/base.html` is the frame of a whole page: style, phone layout, blocks `title`, `style` and `body`.
    """
    return _environment().get_template(template).render(values)


def write_page(path: PathLike, page: str) -> None:
    """A page as a file, whole or not at all; characters that UTF-8 cannot hold become "?"."""
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")


def html_table(rows: Iterable[Sequence[object]], head: Sequence[object] = (), caption: str = "") -> str:
    """A table for `_repr_html_`: every cell is escaped, and no package is needed."""

    def line(cells: Sequence[object], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"

    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    return f"<table>{above}{top}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


@cache
def _environment() -> Any:
    try:
        from jinja2 import Environment, FunctionLoader
    except ImportError as error:
        raise AttsvmError("HTML pages need jinja2: pip install 'attsvm[reproduce]'.") from error
    loader = FunctionLoader(lambda name: files("attsvm").joinpath(name).read_text(encoding="utf-8"))
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
