"""What the options must be."""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from attsvm.errors import AttsvmError, describe
from attsvm.optim._shards import local

# What one of the mirror optimizers, or torch's AdamW, SGD or Muon has, and another has not.
_OF_SOME = {"amsgrad", "betas", "dampening", "differentiable", "eps", "head_lr", "momentum", "moments_of", "muon"}
_OF_SOME |= {"nesterov", "normalize", "ns_coefficients", "ns_steps", "adjust_lr_fn"}
_TYPO = 0.88  # how close to an option a name is that means it: "beta" is, "weight_decay_end" and "max_momentum" are not


def check_names(group: Mapping[str, Any], own: Iterable[str], optimizer: str) -> None:
    """Refuse options that the optimizer would ignore; what schedulers and trainers note in a group may stay."""
    own = set(own)
    for name, value in group.items():
        if name in own:
            continue
        if name in _OF_SOME and value not in (None, 0):
            raise AttsvmError(f"{optimizer} has no option {name}, but a group has {name}={value!r}: leave it out.")
        if close := get_close_matches(str(name).lower(), own, n=1, cutoff=_TYPO):
            raise AttsvmError(f"{optimizer} has no option {name}, but a group has it; did you mean {close[0]}?")


def check_lr(lr: float | Tensor) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise AttsvmError(f"lr must be a number or a tensor of one element, but it has shape {tuple(lr.shape)}.")
    check_at_least_zero("lr", lr)


def check_at_least_zero(name: str, value: float | Tensor) -> None:
    if not isinstance(value, Real | Tensor) or not 0 <= value < math.inf:
        raise AttsvmError(f"{name} must be a number, finite and at least 0, but got {value!r}.")


def check_share(name: str, value: float) -> None:
    if not isinstance(value, Real) or not 0 <= value < 1:
        raise AttsvmError(f"{name} must be a share, at least 0 and below 1, but got {value!r}.")


def check_has_shape(name: str, value: Tensor) -> None:
    if is_lazy(value):
        raise AttsvmError(f"{name} has no shape yet: run a batch through the model first.")


def check_has_values(name: str, value: Tensor) -> None:
    if value.is_meta:
        raise AttsvmError(f"{name} is on the meta device, without values: load the model's weights first.")


def check_saved(state: Any, whose: str, *keys: str) -> None:
    if not isinstance(state, Mapping):
        raise AttsvmError(f"state_dict must be what {whose}.state_dict() returned, but got {describe(state)}.")
    missing = next((key for key in keys if key not in state), None)
    if missing is not None:
        raise AttsvmError(f"state_dict must be what {whose}.state_dict() returned, but it has no {missing!r}.")


def check_p(p: float) -> None:
    if not isinstance(p, Real) or not 1 < p < math.inf:
        raise AttsvmError(f"p must be a number with 1 < p < inf, but got {p!r}: choose e.g. p = 1.1 or 3.")


def check_betas(betas: Any) -> None:
    two = isinstance(betas, tuple | list) and len(betas) == 2 and all(isinstance(beta, Real | Tensor) for beta in betas)
    if not two or not all(0 <= beta < 1 for beta in betas):
        raise AttsvmError(f"betas must be two numbers with 0 <= beta < 1, but got {betas!r}.")


def check_normalize(by: str | None) -> None:
    if by not in (None, "tensor", "group"):
        raise AttsvmError(f'normalize must be None, "tensor" or "group", but got {by!r}.')


def check_l1(l1: float, of: str) -> None:
    check_at_least_zero("l1", l1)
    if of not in ("mirror", "weight"):
        raise AttsvmError(f'l1_of must be "mirror" or "weight", but got {of!r}.')


def check_moments_of(of: str, p: float) -> None:
    check_p(p)
    if of not in ("weight", "mirror"):
        raise AttsvmError(f'moments_of must be "weight" or "mirror", but got {of!r}.')
    if of == "mirror" and p > 2:
        raise AttsvmError(f'moments_of="mirror" needs p ≤ 2, but got p = {p:g}: above 2, dw/dθ is infinite at 0.')


def sticks_at_zero(group: Mapping[str, Any], param: Tensor) -> bool:
    """Whether a parameter of a group starts at 0, from where it hardly moves at the group's p."""
    entries = local(param.detach())
    if group["p"] >= (2 if group.get("moments_of") == "mirror" else 1.5) or entries.is_meta or entries.numel() == 0:
        return False
    # A corner decides nearly always.
    return not entries[(slice(8),) * entries.ndim].any() and not entries.any()
