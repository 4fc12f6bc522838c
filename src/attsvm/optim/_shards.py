"""Sharded parameters (DTensor): all arithmetic is entrywise, so it is done on the local shards."""

from typing import Any

import torch
from torch import Tensor

from attsvm.errors import AttsvmError

PLAIN = (Tensor, torch.nn.Parameter)


def local(t: Tensor) -> Tensor:
    if type(t) in PLAIN:
        return t
    return t.to_local() if hasattr(t, "to_local") else t  # pyright: ignore[reportAttributeAccessIssue]


def is_sharded(t: Tensor) -> bool:
    return hasattr(t, "to_local")


def owner(t: Tensor) -> int:
    """The rank that counts this rank's part of a tensor: the first of those that have the same part."""
    if not is_sharded(t):
        return 0
    mesh, placements = t.device_mesh, t.placements  # pyright: ignore[reportAttributeAccessIssue]
    return int(mesh.mesh[tuple(at if to.is_shard() else 0 for at, to in zip(mesh.get_coordinate(), placements))])


def whole(t: Tensor) -> Tensor:
    """The tensor of which every rank has a shard; all ranks must call this."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t  # pyright: ignore[reportAttributeAccessIssue]


def through_whole(like: Tensor, part: Tensor, back: bool = False) -> Tensor:
    """From a rank's part of a tensor that is sharded as `like` to the whole or, with `back`, from the whole to the
    part; `part` itself if `like` is not sharded. All ranks must call this."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = like.device_mesh, like.placements  # pyright: ignore[reportAttributeAccessIssue]
    if not back:
        return DTensor.from_local(part, mesh, placements, shape=like.shape, stride=like.stride()).full_tensor()
    everywhere = DTensor.from_local(part, mesh, [Replicate()] * mesh.ndim)
    return everywhere.redistribute(placements=placements).to_local()


def gradient(param: Tensor) -> Tensor:
    """The gradient, sharded as the parameter is."""
    grad: Any = param.grad
    if grad.layout != torch.strided:
        raise AttsvmError("mirror optimizers take dense gradients, but one is sparse: use sparse=False in Embedding.")
    if type(param) in PLAIN:
        return grad
    placements = getattr(param, "placements", None)
    if placements is not None and grad.placements != placements:
        return grad.redistribute(placements=placements)
    return grad
