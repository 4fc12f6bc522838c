"""The site: `make docs` builds it into docs/_build/html, which opens from the folder, without a server or a network."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import attsvm

project = "attsvm"
author = "The attsvm developers"
release = version = attsvm.__version__
project_copyright = "the attsvm developers"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docstrings",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",
]
exclude_patterns = [
    "_build",
    "images",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.md5",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# Every public name of a package is documented once, where the package lists it; type hints name private modules, which
# the canonical names resolve.
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [
    # other packages: their documentation is not reached, since the site is built without a network
    (r"py:.*", r"(torch|numpy|np|collections|pathlib|matplotlib|os|abc|typing|enum|fractions|sklearn|tokenizers)\..*"),
    (r"py:.*", r"Tensor|Figure|Axes|Path"),
    # bases, aliases and type variables that nobody names
    (r"py:.*", r"attsvm\.dynamics\._optimizers\._OnWeights|attsvm\.optim\._(base\.MirrorOptimizer|edits\.Watch)"),
    (
        r"py:.*",
        r"attsvm\.plots\._common\.F|attsvm\.progress\.Tell|attsvm\.transformer\._pivotal\.Review|Params|Columns",
    ),
]
autodoc_default_options = {"members": True, "imported-members": True}
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "attsvm"
html_static_path: list[str] = []
html_extra_path = ["explorer.html"]
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
suppress_warnings = ["config.cache"]  # the order of examples below is a function

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "image_scrapers": ("docstrings", "matplotlib"),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "doc_module": ("attsvm",),
    "backreferences_dir": "gallery/backreferences",
    "abort_on_example_error": True,
    "min_reported_time": 0,
}


def keep_intervals(app: Any, name: str, source: list[str]) -> None:
    """Numbers and their intervals stay in one line of a narrow table."""
    source[0] = re.sub(r"\s+±\s+", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", source[0])


def setup(app: Any) -> None:
    app.connect("source-read", keep_intervals)
