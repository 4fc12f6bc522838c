"""Adam's moments of the gradient, the step taken in the mirror variable of the ℓp potential."""

# pyright: reportPrivateImportUsage=false

import math
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.errors import AttsvmError
from attsvm.optim import _common
from attsvm.optim._common import MirrorOptimizer

__all__ = ["MirrorAdam", "mirror_adam"]


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

    **Why it works.** Adam makes the step free of the gradient's scale: every :math:`\theta` moves by about
    :math:`\gamma`. The mirror map makes it free of the weight's scale too:

    .. math:: d\log|W| = \frac{d\theta}{(p-1)\,\theta}, \qquad
              |\theta| = |W|^{p-1} \to 1 \text{ as } p \to 1 .

    So for p near 1 every weight is multiplied by about the same factor :math:`e^{\pm\gamma/(p-1)}` a step, large or
    small: exponentiated gradient with Adam's signs and confidences. At p = 1.1, lr = 1e-3 and a weight of
    0.02 (:math:`\theta = 0.68`) that is 1.5% a step. Three things follow. The step adapts to layers of different scale
    by itself, so a wide range of lr works. Small weights stay small in absolute terms while useful ones grow in
    proportion, so the weights become sparse and can be pruned. And no weight overshoots: to change its sign it must
    pass :math:`\theta` from about 1 to −1, which takes of order :math:`1/\gamma` steps of one mind.
    The last is also where it fails: what starts at 0 or has to change its sign often (biases, norm shifts) hardly
    moves. Give such parameters p = 2, which is AdamW, in a group of their own.

    The mirror variable is the state, in float32 even for bf16 and fp16 parameters, and so are the moments. Weight
    decay, weights changed by hand and nan or inf in gradients are treated as in :class:`MirrorDescent`.

    Args:
        params: parameters or named parameters, or dicts of parameter groups; every option below but ``foreach``,
            ``fused`` may differ between groups.
        lr: learning rate, a number or a tensor of one element, which ``torch.compile`` and CUDA graphs can change
            without recompiling.
        betas: factors of the running averages of the gradient and of its square.
        eps: added to the root of the second moment.
        p: the exponent, 1 < p < inf.
        weight_decay: factor :math:`\lambda`; the default is AdamW's.
        maximize: ascend instead of descend.
        foreach: the multi-tensor form; the default where the fused one is not. False is one tensor after the other.
        fused: the Triton form; by default on CUDA where Triton can be imported. Set it to False to switch it off.
        capturable: allow the step inside a CUDA graph capture; the step counter is then on the device.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = MirrorAdam([{"params": [model.weight]}, {"params": [model.bias], "p": 2}], lr=1e-3, p=1.1)
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()

    Reference: the mirror map is that of ℓp-AttGD, "Optimizing Attention with Mirror Descent: Generalized Max-Margin
    Token Selection"; Adam's moments in it are this library's.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        p: float = 1.1,
        weight_decay: float = 1e-2,
        *,
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
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if not all(0 <= beta < 1 for beta in group["betas"]):
            raise AttsvmError(f"betas must be two numbers with 0 <= beta < 1, but got {group['betas']}.")
        _common.check_at_least_zero("eps", group["eps"])

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        mirrors: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
    ) -> None:
        with_grad = [param for param in group["params"] if param.grad is not None]
        params.extend(map(_common.local, with_grad))
        # Counters are on the host, where reading them is free, unless the kernel or a graph reads them.
        on_device = group["capturable"] or _common.use_fused(params, group["foreach"], group["fused"])
        for param, weight in zip(with_grad, params):
            grads.append(_common.local(_common.gradient(param)))
            mirrors.append(self._mirror(param, weight, group["p"]))
            state = self.state[param]
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = _common.zeros_like(param)
                state["exp_avg_sq"] = _common.zeros_like(param)
            if state["step"].is_cpu == (on_device and not weight.is_cpu):
                state["step"] = state["step"].to(weight.device if on_device else "cpu")
            exp_avgs.append(_common.local(state["exp_avg"]))
            exp_avg_sqs.append(_common.local(state["exp_avg_sq"]))
            state_steps.append(state["step"])

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Perform one step.

        Args:
            closure: evaluates the model again and returns the loss.
        """
        self._check_capture()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            mirrors: list[Tensor] = []
            exp_avgs: list[Tensor] = []
            exp_avg_sqs: list[Tensor] = []
            state_steps: list[Tensor] = []
            self._init_group(group, params, grads, mirrors, exp_avgs, exp_avg_sqs, state_steps)
            if not params:
                continue
            mirror_adam(
                params,
                grads,
                mirrors,
                exp_avgs,
                exp_avg_sqs,
                state_steps,
                foreach=group["foreach"],
                fused=group["fused"],
                capturable=group["capturable"],
                lr=group["lr"],
                p=group["p"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                maximize=group["maximize"],
            )
            self._remember(group)

        return loss


def mirror_adam(
    params: list[Tensor],
    grads: list[Tensor],
    mirrors: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    foreach: bool | None = None,
    fused: bool | None = None,
    capturable: bool = False,
    lr: float | Tensor,
    p: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """The arithmetic of :class:`MirrorAdam`.

    ``mirrors[i] is params[i]`` where the weight is its own mirror variable (p = 2 in full precision).
    """
    lr = _common.step_lr(lr)
    path = _common.choose_path(
        params,
        foreach,
        fused,
        fused_path=_fused_mirror_adam,
        foreach_path=_multi_tensor_mirror_adam,
        single_path=_single_tensor_mirror_adam,
    )
    path(
        params,
        grads,
        mirrors,
        exp_avgs,
        exp_avg_sqs,
        state_steps,
        capturable=capturable or torch.compiler.is_compiling(),
        lr=lr,
        pull=_common.decay_pull(lr, weight_decay, p),
        exponent=_common.inverse_exponent(p),
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        maximize=maximize,
    )


def _single_tensor_mirror_adam(
    params: list[Tensor],
    grads: list[Tensor],
    mirrors: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    capturable: bool,
    lr: float | Tensor,
    pull: float | Tensor,
    exponent: float,
    beta1: float,
    beta2: float,
    eps: float,
    maximize: bool,
) -> None:
    for i, (param, theta) in enumerate(zip(params, mirrors)):
        grad = grads[i].to(theta.dtype)
        if maximize:
            grad = -grad
        exp_avg, exp_avg_sq = exp_avgs[i], exp_avg_sqs[i]
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        size, floor = _step_size(state_steps[i].add_(1), lr, beta1, beta2, eps, capturable)
        update = (exp_avg / (exp_avg_sq.sqrt() + floor)).mul_(size)
        if isinstance(pull, Tensor) or pull != 0:
            update.add_(theta * (lr * pull))
        theta.sub_(update)
        if theta is not param and not _common.leaves_weights(lr):
            param.copy_(_common.signed_power(theta, exponent))


def _multi_tensor_mirror_adam(
    params: list[Tensor],
    grads: list[Tensor],
    mirrors: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    capturable: bool,
    lr: float | Tensor,
    pull: float | Tensor,
    exponent: float,
    beta1: float,
    beta2: float,
    eps: float,
    maximize: bool,
) -> None:
    torch._foreach_add_(state_steps, 1)
    step_sizes = [_step_size(step, lr, beta1, beta2, eps, capturable) for step in state_steps]
    parts = _common.buckets(params, grads, mirrors, exp_avgs, exp_avg_sqs, *zip(*step_sizes))
    for weights, gs, thetas, avgs, avg_sqs, sizes, floors in parts:
        device, dtype = weights[0].device, thetas[0].dtype
        lr, pull = _common.on_device(lr, device), _common.on_device(pull, device)
        if gs[0].dtype != dtype:
            gs = [g.to(dtype) for g in gs]
        if maximize:
            gs = torch._foreach_neg(gs)
        torch._foreach_lerp_(avgs, gs, 1 - beta1)
        torch._foreach_mul_(avg_sqs, beta2)
        torch._foreach_addcmul_(avg_sqs, gs, gs, 1 - beta2)
        roots = torch._foreach_sqrt(avg_sqs)
        torch._foreach_add_(roots, floors)
        updates = torch._foreach_div(avgs, roots)
        torch._foreach_mul_(updates, sizes)
        torch._foreach_sub_(thetas, _common.add_decay(updates, thetas, lr * pull))
        if thetas[0] is not weights[0] and not _common.leaves_weights(lr):
            torch._foreach_copy_(weights, _common.signed_powers(thetas, exponent))


@torch.compiler.disable
def _fused_mirror_adam(
    params: list[Tensor],
    grads: list[Tensor],
    mirrors: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    *,
    capturable: bool,
    lr: float | Tensor,
    pull: float | Tensor,
    exponent: float,
    beta1: float,
    beta2: float,
    eps: float,
    maximize: bool,
) -> None:
    parts = _common.buckets(params, grads, mirrors, exp_avgs, exp_avg_sqs, state_steps)
    for weights, gs, thetas, avgs, avg_sqs, steps in parts:
        torch._foreach_add_(steps, 1)
        log1, log2 = _logs(beta1, beta2)
        _common.kernels().adam(
            _common.kernel_columns(weights, gs, thetas, avgs, avg_sqs, steps),
            (*_common.kernel_lr(lr, pull, weights[0].device), 1 - beta1, beta2, 1 - beta2, log1, log2, eps, exponent),
            capturable,
            MIRROR=thetas[0] is not weights[0] and not _common.leaves_weights(lr),
            N=_common.kernel_exponent(exponent),
            MAXIMIZE=maximize,
        )


def _step_size(
    step: Tensor, lr: float | Tensor, beta1: float, beta2: float, eps: float, capturable: bool
) -> tuple[float | Tensor, float | Tensor]:
    """The factor and the floor of lr·m̂/(√v̂ + eps) = factor·m/(√v + floor); tensors where t must not be read."""
    if capturable:  # in float32 1 − 0.999^t would lose four digits
        correction1, correction2 = (-torch.expm1(step * log) for log in _logs(beta1, beta2))
    else:
        t = step.item()
        correction1, correction2 = 1 - beta1**t, 1 - beta2**t
    root = correction2**0.5
    return lr * root / correction1, eps * root


def _logs(beta1: float, beta2: float) -> tuple[float, float]:
    return math.log(beta1) if beta1 > 0 else -math.inf, math.log(beta2) if beta2 > 0 else -math.inf
