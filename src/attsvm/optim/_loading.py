"""Which saved states an optimizer takes: its own, and that of its model in torch."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.optim._shards import local

MIRROR = "mirror"
REST = "rest"
MASK = "mask"
_HOW = ("foreach", "fused", "capturable")  # how to compute here: of another optimizer's state they are not taken over
_FOREIGN = {"dampening": 0, "amsgrad": False}  # what torch's optimizers have and these have not
_OURS = ("p", "l1", "l1_of", "moments_of", "keep_mirror", "normalize", "head_lr")  # torch's do nothing with them
_UNUSED = (*_FOREIGN, *_OURS, "differentiable", "decoupled_weight_decay")

Group = Mapping[str, Any]


class Source(NamedTuple):
    """Whose states an optimizer takes beside its own."""

    name: str | None  # of the optimizer in torch
    shared: str  # an option that both have
    theirs: str  # one that tells it from others in torch
    states: frozenset[str]


def is_foreign(saved: Group) -> bool:
    """Whether an optimizer of torch saved the group: these keep the p of `param_groups`."""
    return "p" not in saved or "differentiable" in saved


def taken(saved: Group, source: Source, ours: str) -> dict[str, Any]:
    """The options of a saved group that hold here too."""
    foreign = is_foreign(saved)
    of_muon = "ns_steps" in saved and source.shared != "ns_steps"  # which has the options of the others as well
    if source.shared not in saved or of_muon or (foreign and source.theirs not in saved):
        raise _others(source, ours)
    if not foreign:
        return dict(saved)
    for name, without in _FOREIGN.items():
        if saved.get(name, without) != without:
            raise AttsvmError(
                f"the saved optimizer has {name}={saved[name]}, which the mirror optimizers have not: "
                "begin without its state."
            )
    if not saved.get("decoupled_weight_decay", True) and saved["weight_decay"] != 0:
        raise AttsvmError(
            f"the saved optimizer is torch.optim.Adam with weight_decay={saved['weight_decay']}, which is part of its "
            f"moments, but {ours}'s is apart from them, as AdamW's: begin without its state."
        )
    return {name: value for name, value in saved.items() if name not in (*_HOW, *_UNUSED)}


def check_states(
    states: Mapping[Any, Any], saved: Iterable[Group], own: Iterable[Group], source: Source, ours: str
) -> None:
    """Refuse states of other optimizers, and of parameters of another shape: kernels walk through memory by it."""
    own = list(own)
    keys = chain.from_iterable(group["params"] for group in saved)
    params = chain.from_iterable(group["params"] for group in own)
    names = chain.from_iterable(group.get("param_names") or [None] * len(group["params"]) for group in own)
    for i, (key, param, name) in enumerate(zip(keys, params, names)):
        state = states.get(key, {})
        known = source.states & state.keys()
        if known and known != source.states:
            raise _others(source, ours)
        for entry, value in state.items():
            of_entries = entry != "step" and isinstance(value, Tensor)
            if of_entries and (value.shape != param.shape or local(value).shape != local(param).shape):
                raise AttsvmError(
                    f"the saved {entry} of parameter {i if name is None else name} has shape "
                    f"{_shape(value)}, but the parameter has {_shape(param)}: "
                    "load the state that was saved with this model."
                )


def _shape(t: Tensor) -> str:
    part = tuple(local(t).shape)
    return f"{tuple(t.shape)}" + (f" with {part} on this rank" if part != tuple(t.shape) else "")


def _others(source: Source, ours: str) -> AttsvmError:
    known = "" if source.name is None else f" and those of torch.optim.{source.name}"
    return AttsvmError(f"{ours} takes its own states{known}, but this is another optimizer's: begin without it.")
