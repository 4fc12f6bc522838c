"""From the lr of SGD or AdamW to one for the mirror optimizers."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from attsvm.errors import AttsvmError
from attsvm.optim._base import check_lr, check_p
from attsvm.optim._shards import local

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
    if isinstance(weights, float | int):
        mobility = float(weights) ** (2 - p) if 0 < weights < math.inf else math.nan  # |w|^(2−p) of a typical weight
    else:
        tensors = [weights] if isinstance(weights, Tensor) else list(weights)
        mobility = _mobility([local(t.detach()).flatten().double().abs() for t in tensors], p)
    if not 0 < mobility < math.inf:
        raise AttsvmError(
            f"weights must be finite and not all 0, but their typical size gives no lr for p = {p}: "
            "what starts at 0 wants p = 2."
        )
    return lr * (p - 1) / mobility


def _mobility(sizes: list[Tensor], p: float) -> float:
    if not any(s.numel() for s in sizes):
        return math.nan
    if p > 2:
        return torch.cat(sizes).median().item() ** (2 - p)
    return (sum(s.pow(2 * (2 - p)).sum().item() for s in sizes) / sum(s.numel() for s in sizes)) ** 0.5
