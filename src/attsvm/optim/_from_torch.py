"""From a run of AdamW or SGD to one of the mirror optimizers."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from attsvm.errors import AttsvmError
from attsvm.optim._advice import starting_lr
from attsvm.optim._groups import param_groups
from attsvm.optim._mirror_adam import MirrorAdam
from attsvm.optim._mirror_descent import MirrorDescent

__all__ = ["from_torch"]


def from_torch(
    optimizer: torch.optim.Optimizer, model: nn.Module, p: float = 1.1, **options: Any
) -> MirrorAdam | MirrorDescent:
    """The mirror optimizer that continues where ``torch.optim.AdamW`` or ``torch.optim.SGD`` stands.

    AdamW becomes :class:`~attsvm.optim.MirrorAdam`, SGD :class:`~attsvm.optim.MirrorDescent`, over the groups of
    :func:`~attsvm.optim.param_groups`, which are split where the groups of `optimizer` were. Moments, momentum and step
    counts are copied parameter by parameter. Options come from `optimizer`, including the weight decay of vectors, and
    :func:`~attsvm.optim.starting_lr` translates lr, so that groups with p = 2 continue as before. What a scheduler
    noted in the groups is dropped: a new one starts from the present lr. Parameters that `optimizer` does not step are
    left out.

    Args:
        optimizer: a ``torch.optim.AdamW``, an ``Adam`` without weight decay, or a ``torch.optim.SGD``.
        model: the module that it trains.
        p: the exponent of attention and other matrices.
        options: as in :func:`~attsvm.optim.param_groups`; they override those of `optimizer`. An lr given here is not
            translated; ``normalize`` needs one.

    Example:
        >>> model = torch.nn.Linear(16, 16)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # as far as it was trained
        >>> optimizer = from_torch(optimizer, model, p=1.1)
    """
    if not isinstance(optimizer, Adam | AdamW | SGD):
        raise AttsvmError(
            f"optimizer must be a torch.optim.AdamW or SGD, but got a {type(optimizer).__name__}: "
            "begin without its state."
        )
    made = MirrorDescent if isinstance(optimizer, SGD) else MirrorAdam
    of_vectors = {**options, **(options.get("vectors") or {})}
    groups, saved, states = [], [], {}
    for group in param_groups(model, p, **options):
        if group["name"] == "vectors" and "weight_decay" not in of_vectors:
            del group["weight_decay"]  # a default of `param_groups`: the optimizer's holds
        for old in optimizer.param_groups:
            stepped = {id(param) for param in old["params"]}
            named = [(n, q) for n, q in zip(group["param_names"], group["params"]) if id(q) in stepped]
            if not named:
                continue
            params = [param for _, param in named]
            own = {name: value for name, value in group.items() if name not in ("params", "param_names")}
            if "lr" not in own:
                if own.get("normalize") is not None:
                    raise AttsvmError("lr of SGD cannot be translated for steps with normalize: pass lr=… too.")
                own["lr"] = starting_lr(old["lr"], own["p"], params)
            keys = range(len(states), len(states) + len(params))
            states.update((key, deepcopy(optimizer.state.get(param, {}))) for key, param in zip(keys, params))
            groups.append({**own, "params": params, "param_names": [name for name, _ in named]})
            theirs = {name: old[name] for name in optimizer.defaults if name in old}
            saved.append({**theirs, **own, "params": list(keys)})
    trained = {id(param) for old in optimizer.param_groups for param in old["params"] if param.requires_grad}
    if trained - {id(param) for group in groups for param in group["params"]}:
        raise AttsvmError("the optimizer steps a parameter that is not the model's: pass the model that it trains.")
    new = made(groups)
    new.load_state_dict({"state": states, "param_groups": saved})
    return new
