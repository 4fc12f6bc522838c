"""Docstrings are written to be read in an editor: `code` in single backticks, tables by columns, formulas as plain
text. This Sphinx extension turns them into reStructuredText: names of the library become links, other code literals,
and characters that mean something to docutils are escaped. It also takes the tables of benchmarks/results into the
site, so that links to them work here as they do in the repository."""

import builtins
import importlib
import re
import shutil
from pathlib import Path
from typing import Any, cast

from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

HERE = Path(__file__).parent
PACKAGES = tuple(sorted(path.stem for path in (HERE / "api").glob("*.md") if path.stem != "index"))
ROW = re.compile(r"(\S.*?) {2,}(\S.*)")


def public_names() -> dict[str, str]:
    """Where each public class and function is documented; names in two packages are not linked."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        module = importlib.import_module(f"attsvm.{package}")
        for name in module.__all__:
            vars(module).setdefault(name, getattr(module, name))  # names that are imported when asked for
            if callable(getattr(module, name)):
                found.setdefault(name, []).append(f"attsvm.{package}.{name}")
    return {name: places[0] for name, places in found.items() if len(places) == 1 and not hasattr(builtins, name)}


def text(line: str, names: dict[str, str]) -> str:
    """One line of prose: code becomes a link or a literal, and the rest is escaped."""
    parts = re.split(r"`+([^`]+)`+", line)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = re.sub(r"([*|_\\])", r"\\\1", part)
            continue
        name = part.removeprefix("attsvm.")
        parts[number] = f":py:obj:`{part} <{names[name]}>`" if name in names else f"``{part}``"
        if re.match(r"[\w(]", parts[number + 1]):  # docutils wants markup set apart from what touches it
            parts[number] += "\\ "
    return "".join(parts)


def block(lines: list[str], names: dict[str, str]) -> list[str]:
    """One paragraph: doctest, list, code (indented), table (name, spaces, meaning) or prose."""
    if lines[0].lstrip().startswith(">>>"):
        return lines
    if re.match(r"\s*([-*]|\d+\.) ", lines[0]):
        return [text(line, names) for line in lines]
    if all(line.startswith("    ") for line in lines):
        return [".. code-block:: text", "", *lines]
    if ROW.fullmatch(lines[0]) and all(ROW.fullmatch(line) or line.startswith("    ") for line in lines):
        rows: list[str] = []
        for line in lines:
            found = None if line.startswith("    ") else ROW.fullmatch(line)
            rows += (
                [f"``{found[1]}``", f"    {text(found[2], names)}"] if found else [f"    {text(line.strip(), names)}"]
            )
        return rows
    return [text(line.lstrip(), names) for line in lines]


def convert(lines: list[str], names: dict[str, str]) -> list[str]:
    if any(":math:" in line or line.startswith(("Args:", "Example:")) for line in lines):
        return str(
            GoogleDocstring(lines, cast(Any, Config(napoleon_use_ivar=True)))
        ).splitlines()  # written as reStructuredText already, as torch's are
    result: list[str] = []
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            result += [*block(paragraph, names), ""]
            paragraph = []
    return result


def _get_sg_image_scraper() -> Any:
    """Figures of examples that pyplot does not know of, since attsvm keeps out of its global state."""
    return _own_figure


def _own_figure(block: Any, variables: dict[str, Any], conf: dict[str, Any]) -> str:
    from sphinx_gallery.scrapers import figure_rst

    figure = variables["example_globals"].pop("figure", None)
    if figure is None or hasattr(figure, "number"):
        return ""
    path = next(variables["image_path_iterator"])
    figure.savefig(path, dpi=150)
    return figure_rst([path], conf["src_dir"])


def start(app: Any) -> None:
    app.env.attsvm_names = public_names()
    target = HERE / "benchmarks"
    for path in (HERE.parent / "benchmarks" / "results").rglob("*"):
        if path.suffix in (".md", ".png", ".svg", ".jsonl"):
            copy = target / path.relative_to(HERE.parent / "benchmarks" / "results")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", start)
    app.connect("autodoc-process-docstring", process)
    app.connect("source-read", lambda app, name, source: relink(source))
    return {"parallel_read_safe": True}


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The docstring, and the examples of the gallery that use what it is about."""
    lines[:] = convert(lines, app.env.attsvm_names)
    used = f"attsvm.{name.rpartition('.')[2]}"
    examples = HERE / "gallery" / "backreferences" / f"{used}.examples"
    if what in ("class", "function") and examples.exists() and examples.stat().st_size:
        lines += ["", ".. rubric:: Examples", "", f".. minigallery:: {used}", ""]


def relink(source: list[str]) -> None:
    """Links as the repository has them, to where the site has the page."""
    for here, there in (("../benchmarks/results/", "benchmarks/"), ("../ARCHITECTURE.md", "architecture.md")):
        source[0] = source[0].replace(f"]({here}", f"]({there}")
