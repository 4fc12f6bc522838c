"""From the lr of SGD or AdamW to one for the mirror optimizers."""

import math
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.errors import AttsvmError
from attsvm.optim._checks import check_has_shape, check_has_values, check_lr, check_p
from attsvm.optim._shards import whole

__all__ = ["starting_lr"]


def starting_lr(
    lr: float, p: float, weights: float | Tensor | np.ndarray | nn.Module | Iterable[Tensor | tuple[str, Tensor]]
) -> float:
    r"""The lr at which a mirror step moves the weights as far as a step of SGD or AdamW with `lr` does.

    From SGD to :class:`~attsvm.optim.MirrorDescent` without ``normalize``, and from AdamW to
    :class:`~attsvm.optim.MirrorAdam`. A step :math:`d\theta` of the mirror variable
    :math:`\theta = \operatorname{sign}(w)|w|^{p-1}` moves a weight by

    .. math:: dw = \frac{|w|^{2-p}}{p-1}\, d\theta ,
              \qquad\text{so}\qquad
              \gamma_p = \gamma_2\, (p-1)\, s^{p-2}

    with a typical size s of the weights. For p < 2 the s used is the one for which the *root mean square* of the two
    steps is the same where step and weight are independent: :math:`s^{2-p} = \sqrt{\operatorname{mean} |w|^{2(2-p)}}`.
    For p > 2 the few weights near 0 move much further than the formula says, and s is the median of \|w\|.

    With sharded weights (FSDP2) all ranks must call it together, because it gathers the weights one after another.

    The result is a start, not an optimum. Weight decay, which multiplies by 1 − lr·weight_decay, changes with lr.

    Args:
        lr: what works for SGD or AdamW.
        p: the exponent of the mirror optimizer; p = 2 returns `lr`.
        weights: the parameters, named or not, or their module, at their start; or their typical size, a number.

    Example:
        >>> import torch
        >>> import attsvm
        >>> model = torch.nn.Linear(16, 16)
        >>> groups = attsvm.optim.param_groups(model, p=1.1)
        >>> for group in groups:
        ...     group["lr"] = starting_lr(3e-4, group["p"], group["params"])
        >>> optimizer = attsvm.optim.MirrorAdam(groups)
    """
    check_lr(lr)
    check_p(p)
    if p == 2:
        return lr * 1  # of a tensor a copy: groups that share one would be scheduled as one
    if isinstance(weights, Real):
        size = float(weights)
        mobility = size ** (2 - p) if 0 < size < math.inf else math.nan  # |w|^(2−p) of a typical weight
    else:
        mobility = _mobility((whole(t.detach()).flatten().double().abs() for t in _tensors(weights)), p)
    if not 0 < mobility < math.inf:
        raise AttsvmError(
            f"weights must be finite and not all 0, but their typical size gives no lr for p = {p}: "
            "what starts at 0 wants p = 2."
        )
    return lr * (p - 1) / mobility


def _tensors(weights: Any) -> Iterator[Tensor]:
    if isinstance(weights, nn.Module):
        weights = weights.parameters()
    elif isinstance(weights, Tensor | np.ndarray):
        weights = [weights]
    for weight in weights if isinstance(weights, Iterable) else [weights]:
        weight = weight[-1] if isinstance(weight, tuple) and weight else weight  # one with its name
        if not isinstance(weight, Tensor | np.ndarray):
            raise AttsvmError(
                f"weights must be parameters, a module or a number, but one is a {type(weight).__name__}: "
                "pass e.g. model.parameters()."
            )
        weight = torch.as_tensor(weight)
        check_has_shape("one of the weights", weight)
        check_has_values("one of the weights", weight)
        yield weight


def _mobility(sizes: Iterator[Tensor], p: float) -> float:
    if p > 2:
        every = list(sizes)
        median = torch.cat(every).median().item() if any(s.numel() for s in every) else 0.0
        return median ** (2 - p) if median else math.nan
    total, number = 0.0, 0
    for s in sizes:
        total, number = total + s.pow(2 * (2 - p)).sum().item(), number + s.numel()
    return (total / number) ** 0.5 if number else math.nan
