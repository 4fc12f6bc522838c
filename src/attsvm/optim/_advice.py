"""From the lr of SGD or AdamW to one for the mirror optimizers."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.optim._base import check_lr, check_p
from attsvm.optim._shards import whole

__all__ = ["starting_lr"]


def starting_lr(lr: float, p: float, weights: float | Tensor | Iterable[Tensor]) -> float:
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

    Of sharded weights (FSDP2) all ranks must ask together, since it takes the whole weights, one after another.

    It is a start, not an optimum. Weight decay, which multiplies by 1 − lr·weight_decay, changes with lr.

    Args:
        lr: what works for SGD or AdamW.
        p: the exponent of the mirror optimizer; p = 2 returns `lr`.
        weights: the parameters, at their start; or their typical size, a number.

    Example:
        >>> groups = attsvm.optim.param_groups(model, p=1.1)
        >>> for group in groups:
        ...     group["lr"] = starting_lr(3e-4, group["p"], group["params"])
        >>> optimizer = attsvm.optim.MirrorAdam(groups)
    """
    check_lr(lr)
    check_p(p)
    if p == 2:
        return lr
    tensors = [weights] if isinstance(weights, Tensor) else weights
    if isinstance(tensors, Iterable):
        mobility = _mobility((whole(t.detach()).flatten().double().abs() for t in tensors), p)
    else:
        size = float(tensors)
        mobility = size ** (2 - p) if 0 < size < math.inf else math.nan  # |w|^(2−p) of a typical weight
    if not 0 < mobility < math.inf:
        raise AttsvmError(
            f"weights must be finite and not all 0, but their typical size gives no lr for p = {p}: "
            "what starts at 0 wants p = 2."
        )
    return lr * (p - 1) / mobility


def _mobility(sizes: Iterator[Tensor], p: float) -> float:
    if p > 2:
        every = list(sizes)
        median = torch.cat(every).median().item() if any(s.numel() for s in every) else 0.0
        return median ** (2 - p) if median else math.nan
    total, number = 0.0, 0
    for s in sizes:
        total, number = total + s.pow(2 * (2 - p)).sum().item(), number + s.numel()
    return (total / number) ** 0.5 if number else math.nan
