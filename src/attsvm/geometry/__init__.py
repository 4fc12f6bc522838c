"""Norms and their mirror maps: one small object that solver, trainer and measures all take."""

from attsvm.errors import AttsvmError
from attsvm.geometry._base import Geometry
from attsvm.geometry._lp import Frobenius, Lp
from attsvm.geometry._nuclear import Nuclear

__all__ = ["Frobenius", "Geometry", "Lp", "Nuclear", "parse_geometry"]


def parse_geometry(text: str | Geometry) -> Geometry:
    """The geometry called "l<p>" ("l1.75", "L3"), "frobenius" or "nuclear"; a Geometry is returned as is."""
    if isinstance(text, Geometry):
        return text
    name = text.strip().lower() if isinstance(text, str) else ""
    if name == "frobenius":
        return Frobenius()
    if name == "nuclear":
        return Nuclear()
    if name.startswith("l"):
        try:
            p = float(name[1:])
        except ValueError:
            pass
        else:
            return Lp(p)
    raise AttsvmError(
        f"{text!r} is not a geometry: give 'l' and a number p > 1 (as in 'l1.75'), 'frobenius' or 'nuclear'."
    )
