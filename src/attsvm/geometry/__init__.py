"""Norms and their mirror maps: one small object that solver, trainer and measures all take."""

from attsvm.errors import AttsvmError
from attsvm.geometry._base import Geometry
from attsvm.geometry._lp import Frobenius, Lp
from attsvm.geometry._nuclear import Nuclear

__all__ = ["Frobenius", "Geometry", "Lp", "Nuclear", "parse_geometry"]


SYNONYMS = {"fro": "l2", "frobenius": "l2", "euclidean": "l2", "nuc": "nuclear"}


def parse_geometry(text: str | float | Geometry) -> Geometry:
    """The geometry called "l<p>" ("l1.75", "L3"), "frobenius" or "nuclear"; a number is p; a Geometry is returned."""
    if isinstance(text, Geometry):
        return text
    if isinstance(text, int | float) and not isinstance(text, bool):
        return Lp(text)
    name = text.strip().lower() if isinstance(text, str) else ""
    name = SYNONYMS.get(name, name)
    if name == "nuclear":
        return Nuclear()
    try:
        return Lp(float(name.removeprefix("l")))
    except ValueError as error:
        if isinstance(error, AttsvmError):
            raise
    raise AttsvmError(
        f"{text!r} is not a geometry: give a number p > 1 (1.75 or 'l1.75'), 'frobenius' or 'nuclear', or a Geometry."
    )
