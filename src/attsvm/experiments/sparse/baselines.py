"""What sparse training is compared with: AdaBreg and pAdam, with Adam's moments, and Muon. Powerprop is MirrorAdam's
`moments_of="mirror"`."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from attsvm.optim import newton_schulz

BETAS, EPS = (0.9, 0.999), 1e-8


class _Adam(Optimizer):
    """Adam's direction of a gradient; what is done with it is `_move`'s."""

    @torch.no_grad()
    def __init__(self, params: Iterable[Any], lr: float, **options: float) -> None:
        super().__init__(params, {"lr": lr, **options})
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w]
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
                self._start(w, state, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w]
                grad = w.grad
                state["step"] += 1
                t, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
                m.lerp_(grad, 1 - BETAS[0])
                v.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
                direction = (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt_() + EPS)
                self._move(w, direction, state, group)

    def _start(self, w: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None: ...

    @abstractmethod
    def _move(self, w: Tensor, direction: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None: ...


class AdaBreg(_Adam):
    """A subgradient variable takes Adam's steps and the weight is its soft threshold: what starts below the threshold
    starts at 0, so the network starts sparse (`dense`: the share that does not) and grows."""

    def _start(self, w: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        kept = torch.rand_like(w) < group["dense"]
        w.mul_(kept).div_(group["dense"] ** 0.5)  # the same variance of outputs
        state["dual"] = w + group["l1"] * w.sign()

    def _move(self, w: Tensor, direction: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        dual = state["dual"].add_(direction, alpha=-group["lr"])
        w.copy_(dual - dual.clamp(-group["l1"], group["l1"]))


class PAdam(_Adam):
    """Adam with a decoupled decay of λ‖w‖_q^q in the form that stays stable at 0: after the step the weight is divided
    by 1 + lr·λ·q·|w|^(q−2), with the w before the step. A weight that is 0 stays 0."""

    def _move(self, w: Tensor, direction: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        size = w.abs() ** (2 - group["q"])
        w.sub_(direction, alpha=group["lr"]).mul_(size / (size + group["lr"] * group["decay"] * group["q"]))


class Muon(Optimizer):
    """torch.optim.Muon with match_rms_adamw, matrices of one shape orthogonalised together: many small products take
    far longer than few large ones. A group with `adam` takes AdamW's step instead, at `adam` times the lr. With p < 2
    the same step is taken in the mirror variable sign(w)|w|^(p−1)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        beta2: float = BETAS[1],  # of AdamW's step
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "adam": None, "p": 2.0}
        super().__init__(params, {**defaults, "beta2": beta2})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            for w in group["params"]:
                if group["adam"] is not None:
                    self._adam(w, group)
                    continue
                state = self.state[w]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(w)
                    if group["p"] != 2:
                        state["mirror"] = w.sign() * w.abs() ** (group["p"] - 1)
                buffer = state["momentum_buffer"].lerp_(w.grad, 1 - group["momentum"])
                update, wide = w.grad.lerp(buffer, group["momentum"]), w.shape[0] <= w.shape[1]
                least, most = sorted(w.shape)
                by_shape.setdefault((least, most), []).append((w, update if wide else update.T, group))
        for (_, most), rows in by_shape.items():
            orthogonal = newton_schulz(torch.stack([update for _, update, _ in rows]).bfloat16(), steps=5)
            for (w, _, group), update in zip(rows, orthogonal):
                update = update if w.shape == update.shape else update.T
                moved = self.state[w].get("mirror", w)
                moved.mul_(1 - group["lr"] * group["weight_decay"])
                moved.add_(update, alpha=-group["lr"] * 0.2 * most**0.5)
                if moved is not w:
                    w.copy_(moved.sign() * moved.abs() ** (1 / (group["p"] - 1)))

    def _adam(self, w: Tensor, group: dict[str, Any]) -> None:
        assert w.grad is not None
        state = self.state[w]
        if not state:
            state["step"] = torch.zeros((), device=w.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
        tensors = ([w], [w.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]])
        adamw(
            *tensors,
            foreach=not w.is_cuda,
            fused=w.is_cuda,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=group["beta2"],
            lr=group["lr"] * group["adam"],
            weight_decay=group["weight_decay"],
            eps=EPS,
            maximize=False,
        )
