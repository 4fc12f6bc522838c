"""Mirror descent with the ℓp potential."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.errors import AttsvmError
from attsvm.optim._base import Masks, MirrorOptimizer, Tensors, masked, zero_pruned, zeros_like
from attsvm.optim._checks import check_at_least_zero, check_normalize
from attsvm.optim._chunks import SMALL, chunks
from attsvm.optim._edits import Watch
from attsvm.optim._fused import fused_step, kernels
from attsvm.optim._loading import Source
from attsvm.optim._mirror_map import (
    Scratch,
    Step,
    add_multiple,
    apart,
    leaves_weights,
    read_off,
    settle,
    subtract_multiple,
)
from attsvm.optim._norms import dual_norms
from attsvm.optim._shards import local

__all__ = ["MirrorDescent", "mirror_descent"]


class MirrorDescent(MirrorOptimizer):
    r"""Mirror descent with the potential :math:`\psi(W) = \frac1p \lVert W \rVert_p^p`; p = 2 is
    :class:`torch.optim.SGD` with decoupled weight decay.

    .. math::
       \begin{aligned}
            &\rule{110mm}{0.4pt}                                                                        \\
            &\textbf{input} : \gamma \text{ (lr)}, \: p, \: \mu \text{ (momentum)}, \:
                \lambda \text{ (weight decay)}, \: \textit{nesterov, maximize, normalize}               \\
            &\textbf{initialize} : \theta_0 \leftarrow \nabla\psi(W_0)
                = \operatorname{sign}(W_0)\,|W_0|^{p-1}, \: b_0 \leftarrow 0                     \\[-1.ex]
            &\rule{110mm}{0.4pt}                                                                        \\
            &\textbf{for} \: t = 1 \: \textbf{to} \: \ldots \: \textbf{do}                              \\
            &\hspace{5mm} g_t \leftarrow \pm\nabla f_t(W_{t-1})
                \hspace{5mm} (- \text{ if } \textit{maximize})                                          \\
            &\hspace{5mm} \textbf{if} \: \textit{normalize} : \: g_t \leftarrow g_t / \lVert g_t \rVert_q
                \hspace{5mm} (1/p + 1/q = 1)                                                            \\
            &\hspace{5mm} b_t \leftarrow \mu b_{t-1} + g_t                                              \\
            &\hspace{5mm} d_t \leftarrow g_t + \mu b_t \text{ if } \textit{nesterov} \text{ else } b_t  \\
            &\hspace{5mm} \theta_t \leftarrow (1 - \gamma\lambda)^{p-1}\, \theta_{t-1} - \gamma d_t     \\
            &\hspace{5mm} W_t \leftarrow \nabla\psi^*(\theta_t)
                = \operatorname{sign}(\theta_t)\,|\theta_t|^{1/(p-1)}                            \\[-1.ex]
            &\rule{110mm}{0.4pt}
       \end{aligned}

    Gradients, the momentum buffer and the step live in the dual space, like :math:`\theta`. Heavy ball and Nesterov
    work as in :class:`torch.optim.SGD`, with :math:`\theta` in place of the weights.

    **Small p makes weights of very different size**, not exact zeros. A step changes a weight by :math:`dW =
    \frac{1}{p-1} |W|^{2-p} d\theta`: near p = 1 in proportion to its size. On separable data the direction of W goes to
    the ℓp max-margin solution. Weights that start at 0 hardly move for p near 1 (they need :math:`|\theta|` of order
    1): give biases and norm parameters p = 2 in a separate group. The same lr means very different steps for different
    p.

    **The mirror variable is the state** (``state["mirror"]``), in float32 even for bf16 and fp16 parameters, for which
    it serves as master weights. A weight can leave 0, because :math:`\theta` moves while :math:`|\theta|^{1/(p-1)}`
    still underflows. For p = 2 in float32 and float64 there is no extra state: the weight is its own mirror variable.

    **Weight decay** is decoupled and multiplies W by :math:`1 - \gamma\lambda` in every step, as AdamW's does, whatever
    p is (for p ≠ 2 by 0 where :math:`\gamma\lambda > 1`). In the mirror variable this is a gradient step of the penalty
    :math:`\lambda (p-1) \psi(W) = \lambda \frac{p-1}{p} \lVert W \rVert_p^p`, so the minimised objective is
    f plus this ℓp penalty. SGD's weight decay goes into the momentum; without momentum both are the same at p = 2.

    **Weights changed by hand** between two steps (``weight.mul_(…)``, ``weight.data.mul_(mask)``, ``load_state_dict``
    of the model) are noticed, and :math:`\theta` is recomputed where it no longer matches the weight. You may also
    change a group's p. ``set_mask`` sets entries to 0 for good; :class:`GradualPruning` does so while training.

    **In float32** the weights are within 1e-6 of float64 after 100 steps of size 1e-3 for p from 1.08 to 5, and within
    1e-5 for p from 1.01 to 10. A rounding of :math:`\theta` is 1/(p − 1) times as large in the weight. So for p ≤ 4/3
    what it loses is kept for the next step: in ``state["rest"]``, or, by the fused step for p = 1 + 1/n, n = 3 … 12, in
    the weight's own digits, without a state.

    Gradients that are nan or inf reach the weights, as in torch's own optimizers: use a GradScaler or skip the step.

    Args:
        params: parameters or named parameters, or dicts of parameter groups; every option below but ``foreach``,
            ``fused`` may differ between groups.
        lr: learning rate, a number or a tensor of one element, which ``torch.compile`` and CUDA graphs can change
            without recompiling.
        p: the exponent, 1 < p < inf.
        momentum: factor :math:`\mu` of the sum of past gradients.
        nesterov: Nesterov momentum.
        weight_decay: factor :math:`\lambda`.
        normalize: divide gradients by their dual norm :math:`\lVert g \rVert_q`: each by its own (``"tensor"``) or all
            by the norm of the whole group (``"group"``), before momentum. The norm of a sharded parameter (FSDP2,
            DTensor) is the norm of the whole parameter. A gradient of 0 makes no step.
        l1: strength :math:`\mu` of an ℓ1 penalty: a soft threshold by :math:`\gamma\mu` in every step.
        l1_of: what is thresholded: the weight after the step (``"weight"``) or θ (``"mirror"``, the exact composite
            mirror step). For p = 2 they are the same, the proximal step.
        keep_mirror: False computes θ from the weight in every step and keeps neither θ nor its roundings. The state is
            then as small as SGD's, and the step is slower. It needs float32 or float64 weights; a weight whose next θ
            is so small that the weight underflows stays 0; on CUDA ``fused`` is not used.
        maximize: ascend instead of descend.
        foreach: the multi-tensor form, the default where the fused one is not. False takes one tensor after the other.
        fused: one pass over memory: by Triton on CUDA, the default there; on a CPU by code that the first step
            compiles, in about a second. There it is the default for groups of 2^20 trained entries or more, in float32
            or bf16, if a C++ compiler works. True asks for it always, False never.
        capturable: allow the step inside a CUDA graph capture.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = MirrorDescent(model.parameters(), lr=0.1, p=1.1)
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()

    Reference: ℓp-AttGD, the mirror descent of "Optimizing Attention with Mirror Descent: Generalized Max-Margin Token
    Selection", is ``normalize=None`` (its experiments: ``normalize="tensor"``) on the key-query weights.
    """

    _state_columns = 1
    _source = Source("SGD", "momentum", "dampening", frozenset({"momentum_buffer"}))

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        p: float = 1.1,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        normalize: str | None = None,
        l1: float = 0.0,
        l1_of: str = "weight",
        keep_mirror: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "p": p,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "normalize": normalize,
            "l1": l1,
            "l1_of": l1_of,
            "keep_mirror": keep_mirror,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        check_at_least_zero("momentum", group["momentum"])
        if group["nesterov"] and group["momentum"] == 0:
            raise AttsvmError("nesterov needs a momentum above 0.")
        check_normalize(group["normalize"])

    def _init_state(self, group: dict[str, Any], param: Tensor) -> Sequence[Tensor]:
        if group["momentum"] == 0:
            return ()
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = zeros_like(param)
        return (local(state["momentum_buffer"]),)

    def _step_group(
        self, group: dict[str, Any], fused: bool, weights: Tensors, grads: Tensors, masks: Masks, *states: Tensors
    ) -> None:
        by, norms, pieces = group["normalize"], [], [local(grad) for grad in grads]
        check_normalize(by)  # it may have been edited
        if by is not None:
            sums = partial(kernels(weights[0]).power_sums, weights, capturable=group["capturable"]) if fused else None
            norms = dual_norms(grads, masked(masks, pieces) if masks else pieces, group["p"], by, sums)
        mirror_descent(
            weights,
            pieces,
            *states,
            norms=norms,
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            **self._shared(group, fused, weights, masks),
        )


def mirror_descent(
    params: Tensors,
    grads: Tensors,
    mirrors: Tensors,
    rests: Tensors,
    momentum_buffers: Tensors,
    norms: Tensors,
    *,
    foreach: bool | None = None,
    fused: bool = False,
    capturable: bool = False,
    lr: float | Tensor,
    p: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    maximize: bool,
    masks: Masks = (),
    l1: float = 0.0,
    l1_of: str = "weight",
    watch: Watch | None = None,
) -> None:
    """The arithmetic of :class:`MirrorDescent`.

    ``mirrors[i] is params[i]`` where the weight is its own mirror variable (p = 2 in full precision), and
    ``rests[i] is mirrors[i]`` where no roundings are kept;
    ``momentum_buffers`` is empty for momentum 0, and ``norms``, the divisors of the gradients, for none;
    ``masks`` is empty for none, and ``masks[i]`` may be None.
    """
    step = Step.of(lr, p, weight_decay, l1, l1_of)
    masks = masks or [None for _ in params]
    if fused:
        columns = params, grads, mirrors, masks, momentum_buffers or mirrors, norms or mirrors
        flags = {"MAXIMIZE": maximize, "MOMENTUM": momentum != 0, "NESTEROV": nesterov, "NORMALIZE": bool(norms)}
        fused_step("descend", columns, rests, watch, step, (momentum,), capturable, **flags)
        return
    grads = masked(masks, grads)
    if norms:
        grads = [grad.to(theta.dtype) / norm for grad, theta, norm in zip(grads, mirrors, norms)]
    columns = params, mirrors, rests, grads, *([momentum_buffers] if momentum_buffers else [])
    alone = foreach is False or torch.compiler.is_compiling() or leaves_weights(step.lr)
    for chunk in chunks(*columns, small=SMALL, alone=alone, watch=watch, p=p):
        _descend(chunk.row, chunk.scratch, step, momentum, nesterov, maximize)
    zero_pruned(masks, params, mirrors, rests, momentum_buffers or params)


def _descend(
    row: Sequence[Tensor], scratch: Scratch, step: Step, momentum: float, nesterov: bool, maximize: bool
) -> None:
    weight, theta, rest, grad, *buffers = row
    direction = grad.to(theta.dtype)
    if maximize:
        direction = -direction
    for buffer in buffers:
        buffer.mul_(momentum).add_(direction)
        direction = direction.add(buffer, alpha=momentum) if nesterov else buffer
    if leaves_weights(step.lr):
        return
    if theta is weight and step.a != 1:
        read_off(weight, direction * -step.lr, step)
        return
    rest = apart(theta, rest, step.l1)
    subtract_multiple(rest, add_multiple(direction, theta, step.pull, scratch[1]), step.lr)
    settle(weight, theta, rest, step, scratch)
