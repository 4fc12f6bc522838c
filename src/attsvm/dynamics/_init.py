"""Where training starts."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.checks import as_count, as_float, as_real, check_real
from attsvm.data import TokenData, trial_streams
from attsvm.errors import AttsvmError, describe
from attsvm.geometry import Geometry

Shapes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Gaussian:
    """Independent normal entries of standard deviation `scale` in every block.

    Every trial has its own random stream, keyed by (seed, `data.trials`). So it starts from the same weights in any
    batch.
    """

    scale: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", as_real("scale", self.scale, least=0))
        object.__setattr__(self, "seed", as_count("seed", self.seed, least=0, most=2**63 - 1))

    def draw(self, trials: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        """Blocks (B, rows, columns) for the trials of these numbers."""
        streams = trial_streams(self.seed, trials.tolist())
        drawn = {}
        for name, shape in shapes.items():
            normal = np.array([stream.standard_normal(shape) for stream in streams]).reshape(len(streams), *shape)
            drawn[name] = self.scale * torch.from_numpy(normal)
        return drawn


@dataclass(frozen=True, eq=False)
class Near:
    """A W of the given norm (in the geometry of the run) at an angle, in radians, to the direction of `W`.

    `W` (d, e) or (B, d, e) is usually an SVM solution; then a small angle is inside its cone. The side to which W(0)
    leans is random, with one stream per trial as in `Gaussian`. v starts at 0.
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
        return {name: block.to(data.X) for name, block in init.draw(data.trials, shapes).items()}
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


def described(init: Init) -> dict[str, Any]:
    """The start as plain data: its kind and numbers, and a digest of the given tensors."""
    if isinstance(init, str):
        return {"kind": init}
    if isinstance(init, Gaussian):
        return {"kind": "gaussian", "scale": init.scale, "seed": init.seed}
    given = {"W": init.W} if isinstance(init, Near) else dict(init)
    digest = hashlib.sha256()
    for name in sorted(given):
        digest.update(name.encode() + as_float(name, given[name]).detach().cpu().double().numpy().tobytes())
    facts: dict[str, Any] = {"tensors": digest.hexdigest()}
    if isinstance(init, Near):
        return {"kind": "near", "norm": init.norm, "angle": init.angle, "seed": init.seed} | facts
    return {"kind": "tensors"} | facts


def _block(name: str, value: Any, data: TokenData, shape: tuple[int, int]) -> Tensor:
    """A block for every trial, from one for all or from one each; v comes without its column axis."""
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
    side = Gaussian(1.0, init.seed).draw(data.trials, {"W": shape})["W"].to(data.X)
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
