"""Norms and their mirror maps: one small object that solver, trainer and measures all take."""

from attsvm.errors import AttsvmError
from attsvm.geometry._base import Geometry
from attsvm.geometry._blocks import Blocks
from attsvm.geometry._group import Group
from attsvm.geometry._hybrid import Hybrid, Part
from attsvm.geometry._lp import Frobenius, Lp
from attsvm.geometry._mahalanobis import Mahalanobis
from attsvm.geometry._nuclear import Nuclear
from attsvm.geometry._own import check_mirror, check_norm, is_own
from attsvm.geometry._schatten import Schatten, Spectral

__all__ = [
    "Blocks",
    "Frobenius",
    "Geometry",
    "Group",
    "Hybrid",
    "Lp",
    "Mahalanobis",
    "Nuclear",
    "Part",
    "Schatten",
    "Spectral",
    "check_mirror",
    "check_norm",
    "is_own",
    "parse_geometry",
]


SYNONYMS = {"fro": "l2", "frobenius": "l2", "euclidean": "l2", "nuc": "nuclear", "inf": "linf", "max": "linf"}


def parse_geometry(text: str | float | Geometry) -> Geometry:
    """The geometry called "l<p>" ("l1.75", "linf"), "nuclear", "spectral", "schatten<p>", "group:rows" or
    "group:columns" ("group-max:rows" for its dual); a number is p; a Geometry is returned as is."""
    if isinstance(text, Geometry):
        return text
    if isinstance(text, int | float) and not isinstance(text, bool):
        return Lp(text)
    name = text.strip().lower() if isinstance(text, str) else ""
    name = SYNONYMS.get(name, name)
    if name == "nuclear":
        return Nuclear()
    if name == "spectral":
        return Spectral()
    for prefix, largest in (("group:", False), ("group-max:", True)):
        if name in (f"{prefix}rows", f"{prefix}columns"):
            return Group(name.removeprefix(prefix), largest)
    try:
        if name.startswith("schatten"):
            return Schatten(float(name.removeprefix("schatten")))
        return Lp(float(name.removeprefix("l")))
    except ValueError as error:
        if isinstance(error, AttsvmError):
            raise
    raise AttsvmError(
        f"{text!r} is not a geometry: give a number p ≥ 1 (1.75 or 'l1.75', 'linf'), 'frobenius', 'nuclear', "
        "'spectral', 'schatten3', 'group:rows', 'group:columns', or a Geometry."
    )
