"""Adam's moments of the gradient, the step taken in the mirror variable of the ℓp potential."""

# pyright: reportPrivateImportUsage=false

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.optim._base import Masks, MirrorOptimizer, Tensors, masked, zero_pruned, zeros_like
from attsvm.optim._checks import check_at_least_zero, check_betas, check_moments_of
from attsvm.optim._chunks import SMALL, Chunk, are_contiguous, chunks, kept
from attsvm.optim._edits import Watch
from attsvm.optim._fused import fused_step
from attsvm.optim._loading import Source, is_foreign
from attsvm.optim._mirror_map import (
    Scratch,
    Step,
    apart,
    inverse_exponent,
    leaves_weights,
    read_off,
    settle,
    slope_of_weight,
    state_dtype,
    subtract_multiple,
    subtract_ratio,
)
from attsvm.optim._shards import local

__all__ = ["MirrorAdam", "mirror_adam"]

Subtract = Callable[[Tensor], object]


class MirrorAdam(MirrorOptimizer):
    r"""Adam's step in the mirror variable of the potential :math:`\psi(W) = \frac1p \lVert W \rVert_p^p`; p = 2 is
    :class:`torch.optim.AdamW`.

    .. math::
       \begin{aligned}
            &\rule{110mm}{0.4pt}                                                                        \\
            &\textbf{input} : \gamma \text{ (lr)}, \: \beta_1, \beta_2 \text{ (betas)}, \: \epsilon, \: p, \:
                \lambda \text{ (weight decay)}, \: \textit{maximize}                                    \\
            &\textbf{initialize} : \theta_0 \leftarrow \nabla\psi(W_0)
                = \operatorname{sign}(W_0)\,|W_0|^{p-1}, \: m_0 \leftarrow 0, \: v_0 \leftarrow 0 \\[-1.ex]
            &\rule{110mm}{0.4pt}                                                                        \\
            &\textbf{for} \: t = 1 \: \textbf{to} \: \ldots \: \textbf{do}                              \\
            &\hspace{5mm} g_t \leftarrow \pm\nabla f_t(W_{t-1})
                \hspace{5mm} (- \text{ if } \textit{maximize})                                          \\
            &\hspace{5mm} m_t \leftarrow \beta_1 m_{t-1} + (1 - \beta_1) g_t                            \\
            &\hspace{5mm} v_t \leftarrow \beta_2 v_{t-1} + (1 - \beta_2) g_t^2                          \\
            &\hspace{5mm} \hat m_t \leftarrow m_t / (1 - \beta_1^t), \quad
                \hat v_t \leftarrow v_t / (1 - \beta_2^t)                                               \\
            &\hspace{5mm} \theta_t \leftarrow (1 - \gamma\lambda)^{p-1}\, \theta_{t-1}
                - \gamma \hat m_t / (\sqrt{\hat v_t} + \epsilon)                                        \\
            &\hspace{5mm} W_t \leftarrow \nabla\psi^*(\theta_t)
                = \operatorname{sign}(\theta_t)\,|\theta_t|^{1/(p-1)}                            \\[-1.ex]
            &\rule{110mm}{0.4pt}
       \end{aligned}

    **Why it works.** Adam makes the step independent of the gradient's scale: every :math:`\theta` moves by about
    :math:`\gamma`. The mirror map makes it independent of the weight's scale, too:

    .. math:: d\log|W| = \frac{d\theta}{(p-1)\,\theta}, \qquad
              |\theta| = |W|^{p-1} \to 1 \text{ as } p \to 1 .

    So for p near 1 every weight, large or small, is multiplied by about the same factor :math:`e^{\pm\gamma/(p-1)}` per
    step: exponentiated gradient with Adam's signs and confidences. At p = 1.1, lr = 1e-3 and a weight of
    0.02 (:math:`\theta = 0.68`) that is 1.5% per step. Three things follow. The step adapts to layers of different
    scale by itself: over widths and initial scales one lr loses half of what it does with AdamW (``sparse-lr``); the
    best still falls with the width. Small weights stay small in absolute terms while useful ones grow in
    proportion, so their sizes spread and most can be pruned. And no weight overshoots: to change its sign it must move
    :math:`\theta` from about 1 to −1, which takes about :math:`2/\gamma` steps of one sign. This is also where it
    fails: what starts at 0 or has to change its sign often (biases, norm shifts) hardly moves. Give these parameters
    p = 2, which is AdamW, in a separate group.

    The state is the mirror variable and the moments, in float32 even for bf16 and fp16 parameters. Weight decay,
    weights changed by hand and nan or inf in gradients are treated as in :class:`MirrorDescent`.

    Args:
        params: parameters or named parameters, or dicts of parameter groups; every option below but ``foreach``,
            ``fused`` may differ between groups.
        lr: learning rate, a number or a tensor of one element, which ``torch.compile`` and CUDA graphs can change
            without recompiling.
        betas: factors of the running averages of the gradient and of its square.
        eps: added to the root of the second moment.
        p: the exponent, 1 < p < inf.
        weight_decay: factor :math:`\lambda`; the default is AdamW's.
        l1: strength :math:`\mu` of an ℓ1 penalty: a soft threshold by :math:`\gamma\mu` in every step.
        l1_of: what is thresholded: the weight after the step (``"weight"``) or θ (``"mirror"``, the exact composite
            mirror step). For p = 2 they are the same, the proximal step.
        moments_of: whose gradient m and v are of: the weight's (``"weight"``) or θ's (``"mirror"``), which is
            :math:`g_t\,dW/d\theta = g_t\,|W|^{2-p}/(p-1)`. With ``"mirror"``, p = 1 + 1/α and no weight decay, this is
            powerprop (Schwarz et al., 2021), the reparametrisation W = φ\|φ\|^(α−1), under Adam. Use it with gradual
            pruning at 95% zeros or more (experiments ``sparse-wikitext`` and ``sparse-vit``). It needs p ≤ 2; for p < 2
            what starts at 0 stays there.
        keep_mirror: False computes θ from the weight in every step and keeps neither θ nor its roundings. The state is
            then as small as AdamW's, and the step is slower. It needs float32 or float64 weights; a weight whose next θ
            is so small that the weight underflows stays 0; on CUDA ``fused`` is not used.
        maximize: ascend instead of descend.
        foreach: the multi-tensor form, the default where the fused one is not. False takes one tensor after the other.
        fused: one pass over memory: by Triton on CUDA, the default there; on a CPU by code that the first step
            compiles, in about a second. There it is the default for groups of 2^20 trained entries or more, in float32
            or bf16, if a C++ compiler works. True asks for it always, False never.
        capturable: allow the step inside a CUDA graph capture; the step counter is then on the device.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = MirrorAdam([{"params": [model.weight]}, {"params": [model.bias], "p": 2}], lr=1e-3, p=1.1)
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()

    Reference: the mirror map comes from ℓp-AttGD, "Optimizing Attention with Mirror Descent: Generalized Max-Margin
    Token Selection"; combining it with Adam's moments is this library's.
    """

    _state_columns = 3
    _source = Source("AdamW", "betas", "amsgrad", frozenset({"step", "exp_avg", "exp_avg_sq"}))

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        p: float = 1.1,
        weight_decay: float = 1e-2,
        *,
        l1: float = 0.0,
        l1_of: str = "weight",
        moments_of: str = "weight",
        keep_mirror: bool = True,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "p": p,
            "weight_decay": weight_decay,
            "l1": l1,
            "l1_of": l1_of,
            "moments_of": moments_of,
            "keep_mirror": keep_mirror,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        check_betas(group["betas"])
        check_at_least_zero("eps", group["eps"])
        check_moments_of(group["moments_of"], group["p"])

    def _adopt(self, group: dict[str, Any], origin: Mapping[str, Any]) -> None:
        # Moments of AdamW, and of earlier versions, are the weight's.
        if not _chained(group) or ("moments_of" in origin and not is_foreign(origin)):
            return
        for param in group["params"]:
            if "exp_avg" in (state := self.state.get(param, {})):
                weight = local(param.detach()).to(state_dtype(param))
                slope = slope_of_weight(weight, inverse_exponent(group["p"]), of_weight=True)
                for name, power in (("exp_avg", 1), ("exp_avg_sq", 2)):
                    state[name] = state[name].clone()  # it may still be the other optimizer's
                    local(state[name]).mul_(slope**power)

    def _init_state(self, group: dict[str, Any], param: Tensor) -> Sequence[Tensor]:
        state = self.state[param]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["exp_avg"] = zeros_like(param)
            state["exp_avg_sq"] = zeros_like(param)
        return local(state["exp_avg"]), local(state["exp_avg_sq"]), state["step"]

    def _init_group(
        self, group: dict[str, Any], fused: bool, params: Tensors, weights: Tensors, *columns: Tensors
    ) -> None:
        check_moments_of(group["moments_of"], group["p"])  # they may have been edited
        super()._init_group(group, fused, params, weights, *columns)
        steps = columns[-1]
        # Counters are on the host, where reading them is free, unless the kernel or a graph reads them.
        on_device = group["capturable"] or fused
        for i, weight in enumerate(weights):
            if steps[i].is_cpu == (on_device and not weight.is_cpu) or steps[i].dtype != torch.float32:
                # torch counts in the default dtype, the kernels in float32.
                steps[i] = steps[i].to(weight.device if on_device else "cpu", torch.float32)
                self.state[params[i]]["step"] = steps[i]

    def _step_group(
        self, group: dict[str, Any], fused: bool, weights: Tensors, grads: Tensors, masks: Masks, *states: Tensors
    ) -> None:
        mirror_adam(
            weights,
            [local(grad) for grad in grads],
            *states,
            beta1=float(group["betas"][0]),
            beta2=float(group["betas"][1]),
            eps=group["eps"],
            moments_of=group["moments_of"],
            **self._shared(group, fused, weights, masks),
        )


def mirror_adam(
    params: Tensors,
    grads: Tensors,
    mirrors: Tensors,
    rests: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    foreach: bool | None = None,
    fused: bool = False,
    capturable: bool = False,
    lr: float | Tensor,
    p: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
    masks: Masks = (),
    l1: float = 0.0,
    l1_of: str = "weight",
    moments_of: str = "weight",
    watch: Watch | None = None,
) -> None:
    """The arithmetic of :class:`MirrorAdam`.

    ``mirrors[i] is params[i]`` where the weight is its own mirror variable (p = 2 in full precision), and
    ``rests[i] is mirrors[i]`` where no roundings are kept. ``masks`` is empty for none, and ``masks[i]`` may be None.
    """
    step = Step.of(lr, p, weight_decay, l1, l1_of)
    chained = moments_of == "mirror" and step.a != 1
    masks = masks or [None for _ in params]
    compiling = torch.compiler.is_compiling()
    if state_steps[0].is_cpu and not compiling:
        torch._foreach_add_(
            state_steps, torch.ones((), device="cpu"), alpha=1.0
        )  # a number would be made a tensor each time
    else:
        torch._foreach_add_(state_steps, 1)
    if fused:
        columns = params, grads, mirrors, masks, exp_avgs, exp_avg_sqs, state_steps
        moments = (1 - beta1, beta2, 1 - beta2, *_logs(beta1, beta2), eps)
        fused_step("adam", columns, rests, watch, step, moments, capturable, MAXIMIZE=maximize, CHAIN=chained)
        return
    # Where counts may not be read (in a graph, when compiled) every tensor has its own.
    counts = torch.stack(state_steps).tolist() if state_steps[0].is_cpu and not compiling else state_steps
    alone = foreach is False or counts is state_steps or leaves_weights(step.lr)
    columns = params, mirrors, rests, masked(masks, grads), exp_avgs, exp_avg_sqs
    number = not isinstance(step.lr, Tensor)
    gathered = 3 if number and not chained else None
    of_chunks = {"small": SMALL, "keys": counts, "gathered": gathered, "alone": alone}
    for chunk in chunks(*columns, **of_chunks, watch=watch, p=p):
        at_once = not alone and number and chunk.row[0].is_cpu and are_contiguous(chunk.parts[0])
        if chained:
            row = _chain_rule(chunk.row, step.a)
            chunk = chunk._replace(row=row, parts=[row])
        subtract = (_adam_at_once if at_once else _adam)(chunk, step.lr, beta1, beta2, eps, maximize)
        if not leaves_weights(step.lr):
            _step(chunk.row, subtract, step, chunk.scratch)
    zero_pruned(masks, params, mirrors, rests, exp_avgs, exp_avg_sqs)


def _chained(group: Mapping[str, Any]) -> bool:
    """Whether the gradient with respect to θ is another than that with respect to the weight."""
    return group["moments_of"] == "mirror" and group["p"] != 2


def _chain_rule(row: Sequence[Tensor], a: float) -> Sequence[Tensor]:
    """The row with the gradient with respect to θ, at the θ before the step."""
    weight, theta, rest, grad, *states = row
    slope = slope_of_weight(theta, a, of_weight=theta is weight)
    return [weight, theta, rest, grad * slope, *states]


def _adam(chunk: Chunk, lr: float | Tensor, beta1: float, beta2: float, eps: float, maximize: bool) -> Subtract:
    """Update the moments; what is returned subtracts lr·m̂/(√v̂ + eps)."""
    _, theta, _, grad, exp_avg, exp_avg_sq = chunk.row
    t = chunk.key
    grad = grad.to(theta.dtype)
    if maximize:
        grad = -grad
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.lerp_(grad * grad, 1 - beta2)
    # lr·m̂/(√v̂ + eps) = (lr/ratio)·m/(√v + eps·root)
    if isinstance(t, Tensor):  # in float32 1 − 0.999^t would lose four digits
        correction1, correction2 = (-torch.expm1(t * log) for log in _logs(beta1, beta2))
    else:
        correction1, correction2 = 1 - beta1**t, 1 - beta2**t
    root = correction2**0.5
    ratio = correction1 / root
    size = exp_avg_sq.sqrt().add_(eps * root)

    return lambda x: subtract_ratio(x, exp_avg, size, lr / ratio)


def _adam_at_once(chunk: Chunk, lr: float | Tensor, beta1: float, beta2: float, eps: float, maximize: bool) -> Subtract:
    """The same on a CPU by torch's own kernel, which updates the moments and subtracts in one pass.

    It walks through memory, so the tensors are contiguous; and it takes those of the parts as they lie there.
    """
    theta, t = chunk.row[1], torch.tensor(chunk.key, dtype=torch.float32, device="cpu")
    _, _, _, grads, exp_avgs, exp_avg_sqs = map(list, zip(*chunk.parts))
    if grads[0].dtype != theta.dtype:
        grads = [grad.to(theta.dtype) for grad in grads]

    def subtract(x: Tensor) -> None:
        xs = kept.split(x, tuple(grad.numel() for grad in grads)) if len(grads) > 1 else [x]
        torch._fused_adamw_(
            xs,
            grads,
            exp_avgs,
            exp_avg_sqs,
            [],
            [t] * len(grads),
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=eps,
            amsgrad=False,
            maximize=maximize,
        )

    return subtract


def _step(row: Sequence[Tensor], subtract: Subtract, step: Step, scratch: Scratch) -> None:
    """The step by lr·m̂/(√v̂ + eps), which `subtract` subtracts, plus lr·pull·θ."""
    lr, pull = step.lr, step.pull
    if row[0] is row[1] and step.a != 1:
        change = torch.zeros_like(row[0]) if scratch[1] is None else scratch[1].zero_()
        subtract(change)
        read_off(row[0], change, step)
        return
    weight, theta, rest = row[0], row[1], apart(row[1], row[2], step.l1)
    if rest is theta and (isinstance(pull, Tensor) or pull != 0):
        change = torch.mul(theta, -lr * pull, out=scratch[1])
        subtract(change)
        theta.add_(change)  # one sum, one rounding of θ
    else:
        subtract_multiple(rest, theta, lr * pull)
        subtract(rest)
    settle(weight, theta, rest, step, scratch)


def _logs(beta1: float, beta2: float) -> tuple[float, float]:
    return math.log(beta1) if beta1 > 0 else -math.inf, math.log(beta2) if beta2 > 0 else -math.inf
