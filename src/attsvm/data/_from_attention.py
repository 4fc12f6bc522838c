"""Tokens, queries and W of one head of a real attention module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attsvm.captures import Attended, affine, capture
from attsvm.checks import as_count
from attsvm.errors import AttsvmError

SPACES = ("tokens", "head")


def head_parts(
    module: nn.Module, hidden_states: Tensor, head: int, space: str, inputs: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X (n, T, d), Z (n, K, e), mask (n, K, T) and W with logits x_tᵀ W z, as the module computes them."""
    if space not in SPACES:
        raise AttsvmError(f'space must be "tokens" or "head", but got {space!r}.')
    if not isinstance(module, nn.Module) or not isinstance(hidden_states, Tensor) or hidden_states.ndim != 3:
        raise AttsvmError("from_attention needs a torch module and hidden states of shape (n, T, d).")
    found = _only(module, hidden_states, inputs)
    head = as_count("head", head, 0, found.q.shape[1] - 1)
    bias = torch.zeros(()) if found.bias is None else found.bias.detach()
    bias = bias.expand(*found.q.shape[:3], found.k.shape[2])[:, head].double()
    mask = bias > -torch.inf
    if bool((bias[mask] != 0).any()):
        raise AttsvmError("the logits must be x_tᵀ W z, but this module adds a bias to them, which no W holds.")
    q, k = found.q[:, head].detach().double(), found.keys[:, head].detach().double()
    if space == "head":
        return k, q, mask, found.scale * torch.eye(q.shape[-1], dtype=torch.float64, device=q.device)
    Z, X = (None if x is None else x.detach().double() for x in found.hidden())
    if X is None or Z is None:
        raise AttsvmError('queries and keys must come from linear maps, but none was seen: take space="head".')
    A_q, b_q, A_k, b_k = (x[head].double() for x in affine(found))
    for of, made, x in (("queries", A_q @ Z.mT + b_q[:, None], q), ("keys", A_k @ X.mT + b_k[:, None], k)):
        if not torch.allclose(made.mT, x, rtol=1e-3, atol=1e-4 * float(x.abs().max())):
            raise AttsvmError(
                f"the {of} must be the same linear map of every token, but they are rotated or normalised: take "
                'space="head".'
            )
    if bool(b_q.any()) or bool(b_k.any()):  # a token gets a coordinate 1, which carries the biases
        A_q, A_k = torch.cat([A_q, b_q[:, None]], 1), torch.cat([A_k, b_k[:, None]], 1)
        X, Z = (torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1) for x in (X, Z))
    return X, Z, mask, found.scale * A_k.mT @ A_q


def _only(module: nn.Module, hidden_states: Tensor, inputs: dict[str, Any]) -> Attended:
    found: list[Attended] = []
    training = module.training
    module.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad(), capture(module, found.append, differentiable=True):
            hidden_states = hidden_states.clone() if hidden_states.is_inference() else hidden_states
            module(*(hidden_states,) * (3 if isinstance(module, nn.MultiheadAttention) else 1), **inputs)
    finally:
        module.train(training)
    if len(found) != 1:
        raise AttsvmError(f"the module must compute one softmax attention, but {len(found)} were seen.")
    return found[0]
