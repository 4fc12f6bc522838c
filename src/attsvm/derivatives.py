"""Derivatives of functions that users write."""

from collections.abc import Callable

import torch
from torch import Tensor


def derivative(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient of Σ function(x) in x, itself differentiable if x is. For an entrywise function: its derivative."""
    with torch.enable_grad():
        at = x if x.requires_grad else x.detach().requires_grad_()
        value = function(at)
        if not value.requires_grad:  # a constant
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(value.sum(), at, create_graph=x.requires_grad, materialize_grads=True)
    return slope
