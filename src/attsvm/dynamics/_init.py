"""Where training starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, Philox
from torch import Tensor

from attsvm.checks import as_count, as_float, as_index, as_real, check_real, describe
from attsvm.data import TokenData
from attsvm.errors import AttsvmError
from attsvm.geometry import Geometry

Shapes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Gaussian:
    """Independent normal entries of standard deviation `scale` in every block.

    Every trial has a random stream of its own, keyed by (seed, its number): `trials` gives the numbers where the
    data are only some trials of a larger set, 0, 1, … without it.
    """

    scale: float = 0.1
    seed: int = 0
    trials: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", as_real("scale", self.scale, least=0))
        object.__setattr__(self, "seed", as_count("seed", self.seed, least=0, most=2**63 - 1))

    def draw(self, B: int, shapes: Shapes) -> dict[str, Tensor]:
        numbers = list(range(B)) if self.trials is None else as_index("trials", list(self.trials)).tolist()
        if len(numbers) != B or any(number < 0 for number in numbers):
            raise AttsvmError(f"trials must be {B} numbers at least 0, but got {describe(self.trials)}.")
        streams = [Generator(Philox(key=[self.seed, number])) for number in numbers]
        drawn = {}
        for name, shape in shapes.items():
            normal = np.array([stream.standard_normal(shape) for stream in streams]).reshape(B, *shape)
            drawn[name] = self.scale * torch.from_numpy(normal)
        return drawn


@dataclass(frozen=True, eq=False)
class Near:
    """A W of the given norm (in the geometry of the run) at an angle, in radians, to the direction of `W`.

    `W` (d, e) or (B, d, e) is as a rule an SVM solution, so that a small angle is inside its cone. The side to
    which W(0) leans is random, one stream a trial as in `Gaussian`; v starts at 0.
    """

    W: Any
    norm: float = 1.0
    angle: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", as_real("norm", self.norm, least=0))
        object.__setattr__(self, "angle", as_real("angle", self.angle, least=0))


Init = str | Gaussian | Near | Mapping[str, Any]


def start(init: Init, data: TokenData, geometry: Geometry, shapes: Shapes) -> dict[str, Tensor]:
    """The blocks at step 0, (B, rows, columns) each."""
    if isinstance(init, str) and init == "zero":
        if "K" in shapes:
            raise AttsvmError("init must not be zero for (K, Q): K = Q = 0 has gradient 0; take Gaussian(scale).")
        return {name: data.X.new_zeros(data.B, *shape) for name, shape in shapes.items()}
    if isinstance(init, Gaussian):
        return {name: block.to(data.X) for name, block in init.draw(data.B, shapes).items()}
    if isinstance(init, Near):
        given: dict[str, Any] = {"W": _near(init, data, geometry)}
        if "v" in shapes:
            given["v"] = data.X.new_zeros(data.B, data.d)
    elif isinstance(init, Mapping):
        given = dict(init)
    else:
        raise AttsvmError(f'init must be "zero", Gaussian(…), Near(…) or tensors by name, but got {describe(init)}.')
    if "K" in shapes and set(given) == {"W"}:
        W = _block("W", given["W"], data, (data.d, data.e))
        given = dict(zip("KQ", _balanced(W, shapes["K"][1])))
    if set(given) != set(shapes):
        raise AttsvmError(
            f"init must name {', '.join(shapes)}, but it names {', '.join(map(str, given)) or 'nothing'}."
        )
    return {name: _block(name, given[name], data, shape) for name, shape in shapes.items()}


def _block(name: str, value: Any, data: TokenData, shape: tuple[int, int]) -> Tensor:
    """A block of every trial from one for all or one each; v comes without its column axis."""
    block = as_float(name, value, like=data.X).detach()
    check_real(name, block)
    full = shape if name != "v" else shape[:1]
    if tuple(block.shape) not in (full, (data.B, *full)):
        raise AttsvmError(f"init {name} must have shape {full} or {(data.B, *full)}, but got {tuple(block.shape)}.")
    return block.expand(data.B, *full).reshape(data.B, *shape).clone()


def _near(init: Near, data: TokenData, geometry: Geometry) -> Tensor:
    shape = (data.d, data.e)
    target = _block("W", init.W, data, shape)
    length = torch.linalg.matrix_norm(target)[:, None, None]
    if bool((length == 0).any()):
        raise AttsvmError("W of Near must have a direction, but it is zero in a trial.")
    target = target / length
    side = Gaussian(1.0, init.seed).draw(data.B, {"W": shape})["W"].to(data.X)
    side = side - (side * target).sum((1, 2), keepdim=True) * target
    length = torch.linalg.matrix_norm(side)[:, None, None]
    side = side / torch.where(length > 0, length, 1.0)  # 1 × 1 matrices have no other side
    angle = torch.tensor(init.angle)
    return init.norm * geometry.unit(torch.cos(angle) * target + torch.sin(angle) * side)


def _balanced(W: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """K = U√S and Q = V√S with K Qᵀ = U S Vᵀ, the best rank-m approximation of W."""
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    r = min(m, s.shape[-1])
    root = s[:, None, :r].sqrt()
    K, Q = U[..., :r] * root, Vh.mT[..., :r] * root
    return torch.nn.functional.pad(K, (0, m - r)), torch.nn.functional.pad(Q, (0, m - r))
