"""Muon's orthogonal steps, taken in the mirror variable of the ℓp potential."""

# pyright: reportPrivateImportUsage=false

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from attsvm.errors import AttsvmError
from attsvm.optim._base import Masks, MirrorOptimizer, Tensors, masked, zeros_like
from attsvm.optim._checks import check_at_least_zero, check_lr, check_moments_of
from attsvm.optim._fused import outside_compiled
from attsvm.optim._loading import Source
from attsvm.optim._mirror_adam import MirrorAdam
from attsvm.optim._mirror_descent import mirror_descent
from attsvm.optim._mirror_map import inverse_exponent, slope_of_weight
from attsvm.optim._shards import local, through_whole

__all__ = ["MirrorMuon", "mirror_muon"]

LONGEST = 10  # a matrix that is more times as long as wide makes logits, looks up or adapts: it is no hidden one
# One step of Newton and Schulz is σ ← aσ + bσ³ + cσ⁵ of the singular values: Muon's coefficients.
NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)


class MirrorMuon(MirrorAdam):
    r"""Muon's step in the mirror variable of the potential :math:`\psi(W) = \frac1p \lVert W \rVert_p^p` for hidden
    matrices, :class:`MirrorAdam`'s for everything else. At p = 2 hidden matrices take the step of
    :class:`torch.optim.Muon` with ``adjust_lr_fn="match_rms_adamw"``.

    .. math::
       \begin{aligned}
            &g_t \leftarrow \nabla_\theta f_t = \nabla f_t(W_{t-1}) \, |W_{t-1}|^{2-p}/(p-1), \qquad
             m_t \leftarrow \mu m_{t-1} + (1 - \mu) g_t                                                        \\
            &O_t \leftarrow \operatorname{orthogonal}\bigl(\mu m_t + (1 - \mu) g_t\bigr), \qquad
             \theta_t \leftarrow (1 - \gamma\lambda)^{p-1}\, \theta_{t-1}
                - 0.2\, \gamma \sqrt{\max(\text{rows}, \text{columns})}\; O_t                                  \\
            &W_t \leftarrow \operatorname{sign}(\theta_t)\,|\theta_t|^{1/(p-1)}
       \end{aligned}

    With p = 1 + 1/α and no weight decay this is Muon on the parameter φ of powerprop (Schwarz et al., 2021),
    W = φ\|φ\|^(α−1): small weights move little and can be pruned, and steps have one scale in every direction. Use it
    with :class:`GradualPruning` (experiments ``sparse-wikitext`` and ``sparse-vit``).

    Which step a parameter takes is decided when its group is added. Hidden matrices are those of groups that are not
    called "embeddings" or "vectors" (as :func:`param_groups` names them) and that are at most ten times as long as
    wide; convolutions count as matrices of their outputs. Longer matrices, such as the head of a language model, become
    a group "heads" of their own, and vectors among them a group "vectors", with p = 2 unless ``moments_of="weight"``.
    They take Adam's step, as Muon's authors advise.

    Masks are applied to the gradient before it is orthogonalised. The state is θ and a momentum for hidden matrices.
    Sharded matrices (FSDP2) are gathered for the orthogonal factor, one after another.

    Args:
        params: parameters or named parameters, or dicts of parameter groups.
        lr: learning rate. At p = 2 a rate of AdamW is a first guess. The entries of θ move by 0.2·lr.
        betas, eps: of Adam's step.
        p: the exponent, 1 < p ≤ 2.
        weight_decay: factor :math:`\lambda`.
        momentum: factor :math:`\mu`, of hidden matrices.
        ns_steps: Newton–Schulz steps of the orthogonal factor, in bf16 on CUDA.
        muon: whether the hidden matrices of a group take Muon's step; by default as said above.
        head_lr: the lr of the groups "heads"; by default `lr`.
        l1, l1_of, moments_of, keep_mirror, maximize, foreach, fused, capturable: as in :class:`MirrorAdam`.

    Example:
        >>> from attsvm.optim import param_groups
        >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        >>> optimizer = MirrorMuon(param_groups(model, p=1.5), lr=6e-3)
        >>> [(group["name"], group["muon"]) for group in optimizer.param_groups]
        [('matrices', True), ('heads', False), ('vectors', False)]
        >>> model(torch.ones(2, 16)).sum().backward()
        >>> optimizer.step()

    Reference: Muon is Jordan et al. (2024), its scale Liu et al. (2025); the mirror variable is this library's.
    """

    _source = Source(None, "ns_steps", "muon", frozenset())

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        p: float = 1.5,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.95,
        ns_steps: int = 5,
        muon: bool | None = None,
        head_lr: float | None = None,
        l1: float = 0.0,
        l1_of: str = "weight",
        moments_of: str = "mirror",
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
            "momentum": momentum,
            "ns_steps": ns_steps,
            "muon": muon,
            "head_lr": head_lr,
            "l1": l1,
            "l1_of": l1_of,
            "moments_of": moments_of,
            "keep_mirror": keep_mirror,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        MirrorOptimizer.__init__(self, params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, and others of its heads and vectors, which take Adam's step."""
        super().add_param_group(param_group)
        group = self.param_groups.pop()
        if group["muon"] is None:
            group["muon"] = group.get("name") not in ("embeddings", "vectors")
        columns = {name: group[name] for name in ("params", "param_names") if name in group}
        kinds = [_kind(param) if group["muon"] else "others" for param in group["params"]]
        apart = {"muon": False, "lr": _own(group["lr"])}
        of_kinds: dict[str, dict[str, Any]] = {
            "hidden": {},
            "heads": {**apart, "name": "heads", **({} if group["head_lr"] is None else {"lr": _own(group["head_lr"])})},
            # With moments of θ what starts at 0 would stay there.
            "vectors": {**apart, "name": "vectors", **({"p": 2.0} if group["moments_of"] == "mirror" else {})},
            "others": {},
        }
        for kind, own in of_kinds.items():
            chosen = {c: [value for value, k in zip(values, kinds) if k == kind] for c, values in columns.items()}
            if chosen["params"] or (not kinds and kind == "others"):  # a group may be empty
                self.param_groups.append({**group, **chosen, **own})

    def _warn_of_zeros(self, group: dict[str, Any]) -> None:
        apart = group["moments_of"] == "mirror"  # then vectors get p = 2
        params = [param for param in group["params"] if not (apart and _kind(param) == "vectors")]
        super()._warn_of_zeros({**group, "params": params})

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        if group["head_lr"] is not None:
            check_lr(group["head_lr"])
        check_at_least_zero("momentum", group["momentum"])
        if not 0 <= group["momentum"] < 1:
            raise AttsvmError(f"momentum must be below 1, but got {group['momentum']!r}.")
        if not isinstance(group["ns_steps"], int) or not 1 <= group["ns_steps"] < 100:
            raise AttsvmError(f"ns_steps must be a whole number from 1 to 99, but got {group['ns_steps']!r}.")
        if group["muon"] not in (None, True, False):
            raise AttsvmError(f"muon must be True, False or None, but got {group['muon']!r}.")

    def _init_state(self, group: dict[str, Any], param: Tensor) -> Sequence[Tensor]:
        if not group["muon"]:
            return super()._init_state(group, param)
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = zeros_like(param)
        return (local(state["momentum_buffer"]),)

    @outside_compiled
    def _step_groups(self) -> None:
        """`torch.compile` leaves the step as it is: torch 2.11 cannot compile the orthogonal factors for CUDA, and if
        only the rest is compiled, it mixes up states. Little of the step could be fused."""
        super()._step_groups()

    def _init_group(
        self, group: dict[str, Any], fused: bool, params: Tensors, weights: Tensors, *columns: Tensors
    ) -> None:
        if group["muon"]:  # no counters of steps
            check_moments_of(group["moments_of"], group["p"])  # they may have been edited
            MirrorOptimizer._init_group(self, group, fused, params, weights, *columns)
        else:
            super()._init_group(group, fused, params, weights, *columns)

    def _step_group(
        self, group: dict[str, Any], fused: bool, weights: Tensors, grads: Tensors, masks: Masks, *states: Tensors
    ) -> None:
        if not group["muon"]:
            super()._step_group(group, fused, weights, grads, masks, *states)
            return
        mirrors, rests, buffers = states[:3]
        mirror_muon(
            weights,
            grads,
            mirrors,
            rests,
            buffers,
            momentum=group["momentum"],
            ns_steps=group["ns_steps"],
            moments_of=group["moments_of"],
            **self._shared(group, fused, weights, masks),
        )


def mirror_muon(
    params: Tensors,
    grads: Tensors,
    mirrors: Tensors,
    rests: Tensors,
    momentum_buffers: Tensors,
    *,
    p: float,
    momentum: float,
    ns_steps: int,
    moments_of: str = "mirror",
    masks: Masks = (),
    **options: Any,
) -> None:
    """The arithmetic of :class:`MirrorMuon` for hidden matrices. `grads` may be sharded, the others are local;
    `options` are those of :func:`mirror_descent`, which takes the step."""
    masks = masks or [None for _ in params]
    a = inverse_exponent(p) if moments_of == "mirror" else 1.0
    steps = _orthogonal_steps(params, grads, momentum_buffers, masks, a, momentum, ns_steps)
    mirror_descent(params, steps, mirrors, rests, [], [], p=p, momentum=0.0, nesterov=False, masks=masks, **options)


def _orthogonal_steps(
    params: Tensors, grads: Tensors, buffers: Tensors, masks: Masks, a: float, momentum: float, ns_steps: int
) -> Tensors:
    """Orthogonal factors of the momentum, which is updated; of the gradient with respect to θ for a ≠ 1."""
    slopes = masked(masks, [local(grad) for grad in grads])
    slopes = [slope.to(buffer.dtype) for slope, buffer in zip(slopes, buffers)]
    if a != 1:
        # Of the weight, not of θ: what was edited since the last step is noticed later.
        slopes = [slope * slope_of_weight(w.to(slope.dtype), a, of_weight=True) for w, slope in zip(params, slopes)]
    torch._foreach_lerp_(buffers, slopes, 1 - momentum)
    means = torch._foreach_lerp(slopes, buffers, momentum)
    steps = orthogonal([through_whole(grad, mean) for grad, mean in zip(grads, means)], ns_steps)
    return [through_whole(grad, step, back=True) for grad, step in zip(grads, steps)]


def orthogonal(directions: Sequence[Tensor], ns_steps: int) -> Tensors:
    """Roughly the orthogonal factor of every matrix, times 0.2·√(its longer side): the root mean square of an entry is
    then about 0.2. Matrices of one size are multiplied together, because many small products take long."""
    sizes: dict[tuple[int, int], list[int]] = {}
    matrices = []
    for i, direction in enumerate(directions):
        matrix = direction.flatten(1)
        matrices.append(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T)
        sizes.setdefault(tuple(matrices[i].shape), []).append(i)
    found: dict[int, Tensor] = {}
    for (_, longer), numbers in sizes.items():
        x = torch.stack([matrices[i] for i in numbers])
        x = newton_schulz(x.bfloat16() if x.is_cuda else x, ns_steps).to(x.dtype) * (0.2 * math.sqrt(longer))
        found.update(zip(numbers, x.unbind()))
    turned = ((direction, found[i], matrices[i]) for i, direction in enumerate(directions))
    return [(x if m.shape == d.flatten(1).shape else x.T).reshape(d.shape).contiguous() for d, x, m in turned]


def newton_schulz(x: Tensor, steps: int) -> Tensor:
    """Of a stack of wide matrices: their singular values become 0.7 to 1.2 if they are not tiny beside the norm."""
    a, b, c = NEWTON_SCHULZ
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _own(lr: float | Tensor) -> float | Tensor:
    """Schedulers write into tensors: groups do not share one."""
    return lr.clone() if isinstance(lr, Tensor) else lr


def _kind(param: Tensor) -> str:
    if param.ndim < 2 or param.numel() == 0:
        return "vectors"
    rows, columns = param.shape[0], param.numel() // param.shape[0]
    return "hidden" if max(rows, columns) <= LONGEST * min(rows, columns) else "heads"
