"""What MirrorDescent and MirrorAdam share: the mirror map, the mirror variable as state, norms and layouts."""

# pyright: reportPrivateImportUsage=false

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, StateDict

from attsvm.errors import AttsvmError

try:
    from attsvm.optim import _triton
except ImportError:  # Triton comes with CUDA builds of torch
    _triton = None

MIRROR = "mirror"
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Up to here x^n by multiplication errs by less than 1e-6 in float32 and is faster than `pow`.
LARGEST_WHOLE_EXPONENT = 12
# Entries that the multi-tensor form takes at a time on a CPU, for each thread.
CACHED = 1 << 17
_FLAGS = {"maximize": False, "foreach": None, "fused": None, "capturable": False}

T = TypeVar("T")


# The mirror map of ψ = ‖W‖_p^p / p, entry by entry: θ = sign(w)|w|^(p−1) and w = sign(θ)|θ|^(1/(p−1)).


def inverse_exponent(p: float) -> float:
    """1/(p − 1), whole where the decimal p means a whole number: 10 for p = 1.1."""
    a = 1 / (p - 1)
    return float(round(a)) if abs(a - round(a)) < 1e-12 * a else a


def whole_exponent(a: float) -> int:
    """`a` where powers are taken by multiplication, else 0."""
    return int(a) if a == int(a) and a <= LARGEST_WHOLE_EXPONENT else 0


def signed_power(x: Tensor, a: float) -> Tensor:
    """sign(x)|x|^a; x itself for a = 1."""
    n = whole_exponent(a)
    if not n:
        return torch.copysign(x.abs().pow_(a), x)
    power, k = (x, n // 2) if n % 2 else (x * x.abs(), n // 2 - 1)
    square = x * x if k else x
    while k:  # power · square^k
        if k % 2:
            power = power * square
        k //= 2
        if k:
            square = square * square
    return power


def signed_powers(xs: list[Tensor], a: float) -> Any:
    """`signed_power` of every tensor; the tensors themselves for a = 1."""
    n = whole_exponent(a)
    if not n:
        powers = torch._foreach_abs(xs)
        torch._foreach_pow_(powers, a)
        torch._foreach_mul_(powers, torch._foreach_sign(xs))
        return powers
    if n == 1:
        return xs
    if n % 2:
        powers, k = None, n // 2
    else:
        powers, k = torch._foreach_abs(xs), n // 2 - 1
        torch._foreach_mul_(powers, xs)
    squares = torch._foreach_mul(xs, xs) if k else xs
    while k:
        if k % 2:
            if powers is None:
                powers = torch._foreach_mul(xs, squares)
            else:
                torch._foreach_mul_(powers, squares)
        k //= 2
        if k:
            torch._foreach_mul_(squares, squares)
    assert powers is not None
    return powers


def state_dtype(param: Tensor) -> torch.dtype:
    """Of the mirror variable and the moments: float32 for bf16 and fp16, so that θ doubles as master weights."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def has_mirror(param: Tensor, p: float) -> bool:
    """Whether θ is kept apart from the weight: not for p = 2 in full precision, where they are the same."""
    return p != 2 or param.dtype != state_dtype(param)


def mirror_of(weight: Tensor, p: float) -> Tensor:
    """θ of a plain weight, in the precision of the state."""
    return signed_power(weight.detach().to(state_dtype(weight)), p - 1)


def decay_pull(lr: float | Tensor, weight_decay: float, p: float) -> float | Tensor:
    """The c for which θ ← θ − lr·cθ multiplies W by 1 − lr·weight_decay: (1 − (1 − lr·weight_decay)^(p−1))/lr.

    As lr → 0 this is weight_decay·(p − 1): cθ is then the gradient of weight_decay·(p − 1)ψ. As a part of the step, and
    not as a factor of θ, it is added before θ is rounded: a float32 factor near 1 is off by 3e-8 in every step.
    """
    limit = weight_decay * (p - 1)
    if weight_decay == 0 or p == 2:
        return limit
    if isinstance(lr, Tensor):
        shrink = -torch.expm1((p - 1) * torch.log1p(-(lr * weight_decay).clamp(max=1)))
        return torch.where(lr > 0, shrink / lr, limit)
    if lr == 0:
        return limit
    return (-math.expm1((p - 1) * math.log1p(-lr * weight_decay)) if lr * weight_decay < 1 else 1.0) / lr


def add_decay(gs: Any, thetas: list[Tensor], pull: float | Tensor) -> Any:
    """g + pull·θ for lists; the gradients themselves for no decay."""
    if isinstance(pull, Tensor):
        return torch._foreach_add(gs, torch._foreach_mul(thetas, pull))
    return torch._foreach_add(gs, thetas, alpha=pull) if pull != 0 else gs


# Settings


def check_lr(lr: float | Tensor) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise AttsvmError(f"lr must be a number or a tensor of one element, but it has shape {tuple(lr.shape)}.")
    check_at_least_zero("lr", lr)


def check_at_least_zero(name: str, value: float | Tensor) -> None:
    if not 0 <= value < math.inf:
        raise AttsvmError(f"{name} must be finite and at least 0, but got {value}.")


def check_p(p: float) -> None:
    if isinstance(p, Tensor) or not 1 < p < math.inf:
        raise AttsvmError(f"p must be a number with 1 < p < inf, but got {p!r}: choose e.g. p = 1.1 or 3.")


def step_lr(lr: float | Tensor) -> float | Tensor:
    """lr as the arithmetic wants it: a number, or a 0-dim tensor where reading it would sync or recompile."""
    if not isinstance(lr, Tensor):
        return lr
    return lr.squeeze() if torch.compiler.is_compiling() or lr.is_cuda else lr.item()


def leaves_weights(lr: float | Tensor) -> bool:
    """With lr = 0 the weights keep every bit: torch's checkpointing makes the state by such a step."""
    return not isinstance(lr, Tensor) and lr == 0


# Paths


def choose_path(
    params: list[Tensor],
    foreach: bool | None,
    fused: bool | None,
    *,
    fused_path: Callable[..., T],
    foreach_path: Callable[..., T],
    single_path: Callable[..., T],
) -> Callable[..., T]:
    """The form of the update for these (local) parameters."""
    if use_fused(params, foreach, fused):
        return fused_path
    return single_path if foreach is False else foreach_path


def use_fused(params: Iterable[Tensor], foreach: bool | None, fused: bool | None) -> bool:
    """`fused=None` means: where it can be, unless `foreach` was asked for or the step is being compiled."""
    if fused is None and foreach is None:
        return not torch.compiler.is_compiling() and _triton is not None and all(map(_fusible, params))
    if fused:
        if _triton is None:
            raise AttsvmError("fused=True needs Triton, which cannot be imported: leave fused out, or install triton.")
        for param in params:
            if not _fusible(param):
                raise AttsvmError(
                    "fused=True needs dense CUDA parameters in float32, bfloat16 or float16, but one is "
                    f"{param.dtype} on {param.device}: leave fused out, or set fused=False."
                )
    return bool(fused)


def _fusible(param: Tensor) -> bool:
    return param.is_cuda and param.dtype in FUSED_DTYPES and _is_dense(param)


def _is_dense(t: Tensor) -> bool:
    """Whether the entries fill one block of memory, in any order of the axes."""
    return t.is_contiguous() or torch.empty_like(t, device="meta").stride() == t.stride()


def buckets(params: list[Tensor], grads: list[Tensor], *others: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """The lists, cut into parts of one device and dtype; an empty list stays empty in every part."""
    parts: dict[tuple[torch.device, torch.dtype, torch.dtype], list[int]] = {}
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        parts.setdefault((param.device, param.dtype, grad.dtype), []).append(i)
    for (device, _, _), indices in parts.items():
        part = [[each[i] for i in indices] if each else [] for each in (params, grads, *others)]
        if device.type == "cpu" and not torch.compiler.is_compiling():
            yield from _in_cache(part)
        else:
            yield part


def _in_cache(columns: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """The same columns in parts that stay in the cache of a CPU from one operation to the next."""
    part: list[list[Any]] = [[] for _ in columns]
    size, limit = 0, CACHED * torch.get_num_threads()
    for i in range(len(columns[0])):
        for piece in _pieces([column[i] if column else None for column in columns], limit):
            for target, source, entry in zip(part, columns, piece):
                if source:
                    target.append(entry)
            size += piece[0].numel()
            if size >= limit:
                yield part
                part, size = [[] for _ in columns], 0
    if part[0]:
        yield part


def _pieces(row: list[Any], limit: int) -> Iterator[list[Any]]:
    """One tensor of every column, cut alike; what has another shape (a norm, a number) goes with every piece."""
    shape = row[0].shape
    like = {id(t): t for t in row if isinstance(t, Tensor) and t.shape == shape}
    if row[0].numel() <= limit or not all(t.is_contiguous() for t in like.values()):
        yield row
        return
    cut = {key: t.view(-1).split(limit) for key, t in like.items()}
    for k in range(len(cut[id(row[0])])):
        yield [cut[id(t)][k] if id(t) in cut else t for t in row]


def on_device(value: float | Tensor, device: torch.device) -> float | Tensor:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


# What the kernels take


def kernels() -> Any:
    assert _triton is not None  # `use_fused` has seen to it
    return _triton


def kernel_columns(weights: list[Tensor], grads: list[Tensor], *states: list[Tensor]) -> list[list[Tensor]]:
    """The columns with all entries in the weight's order in memory, through which the kernels walk."""
    for weight, *rest in zip(weights, *states):
        if not all(t.shape != weight.shape or same_layout(t, weight) for t in rest):
            raise AttsvmError(
                "a parameter has changed its memory format since its state was made: set fused=False, or call "
                "optimizer.load_state_dict(optimizer.state_dict())."
            )
    alike = [
        grad if same_layout(grad, weight) else torch.empty_like(weight, dtype=grad.dtype).copy_(grad)
        for grad, weight in zip(grads, weights)
    ]
    return [weights, alike, *states]


def kernel_exponent(a: float) -> int:
    """How a kernel raises to the power `a`: by so many factors, −1 for the square root, 0 for any power."""
    return -1 if a == 0.5 else whole_exponent(a)


def kernel_lr(lr: float | Tensor, pull: float | Tensor, device: torch.device) -> tuple[float | Tensor, float | Tensor]:
    """Both numbers or both tensors on the device."""
    if isinstance(lr, Tensor) and not isinstance(pull, Tensor):
        pull = torch.full((), pull, device=device)
    return on_device(lr, device), on_device(pull, device)


# Layouts


def same_layout(a: Tensor, b: Tensor) -> bool:
    return a.stride() == b.stride() or (a.is_contiguous() and b.is_contiguous())


# Sharded parameters (DTensor): all arithmetic is entrywise, so it is done on the local shards.


def local(t: Tensor) -> Tensor:
    return t.to_local() if hasattr(t, "to_local") else t  # pyright: ignore[reportAttributeAccessIssue]


def gradient(param: Tensor) -> Tensor:
    """The gradient, sharded as the parameter is."""
    grad: Any = param.grad
    if grad.layout != torch.strided:
        raise AttsvmError("mirror optimizers take dense gradients, but one is sparse: use sparse=False in Embedding.")
    if grad.is_complex() or param.is_complex():
        raise AttsvmError("mirror optimizers take real parameters, but one is complex: use torch.view_as_real.")
    placements = getattr(param, "placements", None)
    if placements is not None and grad.placements != placements:
        return grad.redistribute(placements=placements)
    return grad


def dual_norms(grads: list[Tensor], p: float, by: str) -> list[Tensor]:
    """‖g‖_q of every gradient, or of all together (by="group") once for each; 1 where it is 0.

    Scaled by the largest entry: |g|^11 (p = 1.1) leaves the range of float32 at |g| = 1e-4.
    """
    q = p / (p - 1)
    pieces = [local(g) for g in grads]
    pieces = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in pieces]
    zero = pieces[0].new_zeros(())
    largest = torch.stack([torch.linalg.vector_norm(g, math.inf) if g.numel() else zero for g in pieces])
    largest = _reduce(largest, grads, "MAX")
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    sums = torch.stack([torch.linalg.vector_norm(g / s, q) ** q for g, s in zip(pieces, scale)])
    norms = scale * _reduce(sums, grads, "SUM") ** (1 / q)
    if by == "group":
        most = norms.max()
        most = torch.where((most > 0) & most.isfinite(), most, 1.0)
        norms = (most * torch.linalg.vector_norm(norms / most, q)).expand(len(grads))
    return list(torch.where(norms == 0, 1.0, norms).unbind())


def _reduce(values: Tensor, grads: list[Tensor], op: str) -> Tensor:
    """One value a gradient, combined over the ranks that hold its shards."""
    groups: dict[tuple[Any, int], list[int]] = {}
    for i, grad in enumerate(grads):
        for axis, placement in enumerate(getattr(grad, "placements", ())):
            if placement.is_shard():
                groups.setdefault((getattr(grad, "device_mesh"), axis), []).append(i)  # noqa: B009
    for (mesh, axis), indices in groups.items():
        part = values[indices]
        torch.distributed.all_reduce(part, getattr(torch.distributed.ReduceOp, op), group=mesh.get_group(axis))
        values[indices] = part
    return values


class MirrorOptimizer(Optimizer):
    """The state handling of the mirror optimizers."""

    # The counter of in-place changes of every weight as this optimizer left it; not part of the saved state.
    _versions: dict[Tensor, int]

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if defaults["fused"] and defaults["foreach"]:
            raise AttsvmError("fused and foreach cannot both be True.")
        self._versions = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        check_lr(group["lr"])
        check_p(group["p"])
        check_at_least_zero("weight_decay", group["weight_decay"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._versions = {}
        for group in self.param_groups:
            for name, value in _FLAGS.items():
                group.setdefault(name, value)

    @torch.no_grad()
    def resync(self) -> None:
        """Make the mirror variables anew from the weights.

        Call it after changing weights through ``.data`` or under ``torch.compile``, and after changing a group's
        ``p``. Other in-place changes between two steps are noticed by the step itself.
        """
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                if MIRROR not in state:
                    continue
                if has_mirror(param, group["p"]):
                    local(state[MIRROR]).copy_(mirror_of(local(param), group["p"]))
                else:
                    del state[MIRROR]

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load the state as torch does, but leave that of bf16 and fp16 parameters in float32."""
        loaded: StateDict = {}
        # The last of the hooks sees what the others made of the state.
        hook = self.register_load_state_dict_pre_hook(lambda _, hooked: loaded.update(hooked))
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        saved = chain.from_iterable(group["params"] for group in loaded["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(saved, params):
            for name, value in loaded["state"].get(key, {}).items():
                if name != "step" and isinstance(value, Tensor):
                    value = value.to(device=param.device, dtype=state_dtype(param))
                    # The kernels walk through memory, so the state lies in it as the parameter does.
                    self.state[param][name] = value if same_layout(value, param) else zeros_like(param).copy_(value)

    def _check_capture(self) -> None:
        """torch's own check is private and has changed its name."""
        if torch.compiler.is_compiling() or all(group["capturable"] for group in self.param_groups):
            return
        if any(_capturing(param) for group in self.param_groups for param in group["params"][:1]):
            raise AttsvmError("step() is being captured in a CUDA graph: construct the optimizer with capturable=True.")

    def _mirror(self, param: Tensor, weight: Tensor, p: float) -> Tensor:
        """The local θ of a parameter whose local part is `weight`; made from the weights on the first step."""
        if not has_mirror(param, p):
            return weight
        state = self.state[param]
        if MIRROR not in state:
            state[MIRROR] = zeros_like(param)
            theta = local(state[MIRROR])
            theta.copy_(mirror_of(weight, p))
            return theta
        theta = local(state[MIRROR])
        if self._versions.get(param) != weight._version and not _capturing(weight):
            # Somebody wrote to the weight, or the state was loaded: where θ no longer means it, the weight wins.
            expected = signed_power(theta, inverse_exponent(p)).to(weight.dtype)
            tolerance = (1 if weight.dtype != theta.dtype else 16) * torch.finfo(weight.dtype).eps
            kept = torch.isclose(weight, expected, rtol=tolerance, atol=0, equal_nan=True)
            theta.copy_(torch.where(kept, theta, mirror_of(weight, p)))
        return theta

    def _remember(self, group: dict[str, Any]) -> None:
        """Note the weights as the step left them."""
        if torch.compiler.is_compiling():
            return
        for param in group["params"]:
            if param.grad is not None and has_mirror(param, group["p"]):
                self._versions[param] = local(param)._version


def zeros_like(param: Tensor) -> Tensor:
    """A state tensor laid out and sharded as the parameter."""
    return torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)


def _capturing(t: Tensor) -> bool:
    return t.is_cuda and torch.cuda.is_current_stream_capturing()
