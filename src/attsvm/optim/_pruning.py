"""Gradual magnitude pruning while an optimizer trains."""

import inspect
import math
import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from attsvm.checks import as_count
from attsvm.errors import AttsvmError
from attsvm.optim._base import MirrorOptimizer, zero_pruned
from attsvm.optim._checks import check_has_values, check_saved, check_share
from attsvm.optim._fused import outside_compiled
from attsvm.optim._loading import MASK, MIRROR
from attsvm.optim._mirror_map import mirror_of
from attsvm.optim._shards import is_sharded, local, owner, through_whole, whole
from attsvm.optim._units import fits, relative, smallest, units_of

__all__ = ["GradualPruning"]

SCOPES = ("global", "relative", "layer")
STRUCTURES = (None, "2:4", "row", "head")
T = TypeVar("T")
WOKEN = 0.1  # of the smallest weight that stays: regrown weights of its whole size disturb the others


class GradualPruning:
    r"""Set more and more of the smallest weights to 0 while an optimizer trains, and keep them there.

    The share of zeros grows between the steps start·total_steps and end·total_steps as

    .. math:: s(k) = s + (s_0 - s)(1 - \tau)^3, \qquad \tau = \frac{k - k_\text{start}}{k_\text{end} - k_\text{start}},

    where s is `sparsity` and :math:`s_0` is `initial`; the rest of the training recovers. A pruned entry is exactly 0
    in the weight, and in everything that the optimizer keeps of its shape (mirror variable, moments), after every step.

    It works with any optimizer of torch's kind. :class:`~attsvm.optim.MirrorAdam`, :class:`~attsvm.optim.MirrorMuon`
    and :class:`~attsvm.optim.MirrorDescent` know the masks, save them with their own state and apply them inside the
    step. For other optimizers hooks apply them to the gradients before every step and to weights and moments after it,
    and this object's state holds them; a later GradualPruning of the same parameters takes these masks over.

    ``copy.deepcopy((model, optimizer, pruning))`` copies the three together, and so does pickle. Of torch's optimizers
    a copy without this object has no masks.

    Args:
        optimizer: the optimizer, before or in training.
        sparsity: the share of zeros at the end, 0 ≤ sparsity < 1.
        total_steps: number of steps of the whole training.
        start, end: the shares of the training between which zeros are made.
        every: steps between two changes of the masks; by default 50, fewer in short runs: ten changes.
        initial: the share of zeros at the start.
        scope: one threshold for all parameters ("global"), one for all in units of each parameter's root mean square
            ("relative"), or the same share of each ("layer"). Near p = 1 parameters keep the ratios of their initial
            sizes: where these differ, as in GPT-2's start, "global" cuts the small ones first. "relative" and "layer"
            may leave too little of a small head.
        structure: what is pruned as one. None: entries. "2:4": entries, so that in the end two of four neighbours in a
            row are 0 (sparsity = 0.5). "row": rows of matrices (outputs; inputs of GPT-2's Conv1D, which is stored
            transposed), and slices along the first of more axes (channels of convolutions; of stacked matrices, as of
            experts, whole ones). "head": attention heads, that is their part of the query, key and value matrices. The
            three may lie in one matrix: all queries first, then all keys, then all values. Nothing else is pruned then.
            Models with fewer heads of keys than of queries, or with interleaved heads (GPT-NeoX), are refused.
        regrow: at every change of the masks this share of the kept weights is exchanged for the pruned ones with the
            largest gradient; the share falls to 0 along a cosine until `end`. With
            ``initial=sparsity, start=0, scope="layer"`` this is RigL with the same share in every matrix. Gradients
            must still be there when :meth:`step` is called. Regrown weights start at 0 or, for p < 2, where 0 is
            sticky, at a tenth of the smallest weight that stays.
        params: what to prune, named or not; vectors among them are left as they are. By default the matrices in the
            groups "attention" and "matrices" of :func:`~attsvm.optim.param_groups` and in the group "heads" of
            :class:`~attsvm.optim.MirrorMuon`; attention heads are those of "attention". Parameters that the optimizer
            is given later are not pruned.
        heads: number of heads, for ``structure="head"``.

    Example:
        >>> from attsvm.optim import MirrorAdam, param_groups
        >>> model = torch.nn.Linear(64, 64)
        >>> optimizer = MirrorAdam(param_groups(model, p=1.1), lr=4e-3)
        >>> pruning = GradualPruning(optimizer, sparsity=0.95, total_steps=100, every=5)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 64)).square().sum().backward()
        ...     optimizer.step()
        ...     pruning.step()
        >>> f"{(model.weight == 0).float().mean():.2f}"
        '0.95'
    """

    def __init__(
        self,
        optimizer: Optimizer,
        sparsity: float,
        total_steps: int,
        *,
        start: float = 0.2,
        end: float = 0.75,
        every: int | None = None,
        initial: float = 0.0,
        scope: str = "global",
        structure: str | None = None,
        regrow: float = 0.0,
        params: nn.Module | Iterable[Tensor | tuple[str, Tensor]] | None = None,
        heads: int | None = None,
    ) -> None:
        _check(sparsity, total_steps, start, end, every, initial, scope, structure, regrow, heads)
        self._given = optimizer
        self.optimizer: Optimizer = getattr(optimizer, "optimizer", optimizer)  # trainers wrap them
        if not hasattr(self.optimizer, "param_groups"):
            raise AttsvmError(
                f"optimizer must be the optimizer that trains the model, but got a {type(self.optimizer).__name__}."
            )
        self.sparsity, self.initial, self.scope, self.regrow = sparsity, initial, scope, regrow
        self.structure, self.heads = structure, heads
        self.first, self.last = (round(share * operator.index(total_steps)) for share in (start, end))
        self.every = max(1, min(50, (self.last - self.first) // 10)) if every is None else every
        if regrow > 0 and self.every >= self.last - self.first:
            raise AttsvmError(
                f"regrow needs several changes of the masks, but of {self.last - self.first} steps every "
                f"{self.every}th changes them: make every smaller."
            )
        named = _prunable(self.optimizer, params, structure)
        self._names, self.params = [name for name, _ in named], [param for _, param in named]
        self._units = units_of(named, structure, heads)
        if sparsity > 0 and not any(fits(units, sparsity) for units in self._together(self._units)):
            warnings.warn(
                f"sparsity = {sparsity:g} prunes nothing: it is less than one {structure or 'entry'} of the matrices.",
                stacklevel=2,
            )
        if regrow > 0 and any(is_sharded(param) for param in self.params):
            raise AttsvmError("regrow takes no sharded parameters: leave it out.")
        self._masks: dict[Tensor, Tensor] = {}
        # Mirror optimizers keep the masks themselves.
        self._mirror = self.optimizer if isinstance(self.optimizer, MirrorOptimizer) else None
        self._hook()
        self.count = 0
        if self.first == 0:  # of a state that has been loaded the masks are enough, and stay
            self._prune(self.scheduled(0))

    def scheduled(self, count: int) -> float:
        """The share of zeros after `count` steps."""
        if count < self.first:
            return 0.0
        done = 1.0 if count >= self.last else (count - self.first) / (self.last - self.first)
        return self.sparsity + (self.initial - self.sparsity) * (1 - done) ** 3

    def step(self) -> None:
        """Call it after every step of the optimizer."""
        accumulation = getattr(self._given, "gradient_state", None)  # of accelerate, whose optimizer has not stepped
        if accumulation is not None and not accumulation.sync_gradients:
            return
        self.count += 1
        if self._exchanges(self.count):
            self._exchange(self.scheduled(self.count))
        elif self._is_due(self.count):
            self._prune(self.scheduled(self.count))
            if self.count == self.last:
                self._warn_of_nothing_left()

    def _together(self, parts: Sequence[T]) -> list[Sequence[T]]:
        """What has one threshold."""
        return [[part] for part in parts] if self.scope == "layer" else [parts]

    def _warn_of_nothing_left(self) -> None:
        """One threshold for all may leave nothing of a matrix, which cuts its layer out of the model."""
        masks = {param: mask for param, mask in self.masks().items() if not is_sharded(param)}
        gone = [(name, p) for name, p in zip(self._names, self.params) if p in masks and not bool(masks[p].any())]
        if gone:
            shape = "×".join(map(str, gone[0][1].shape))
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            scopes = {"global": '"relative" or "layer"', "relative": '"layer"'} if len(self.params) > 1 else {}
            other = f": try scope={scopes[self.scope]}" if self.scope in scopes else ""
            warnings.warn(f"pruning has left nothing of {gone[0][0]} ({shape}){more}{other}.", stacklevel=3)

    def _is_due(self, count: int) -> bool:
        due = (count - self.first) % self.every == 0 or count == self.last
        return due and self.first <= count <= self.last

    def _exchanges(self, count: int) -> bool:
        return self.regrow > 0 and count < self.last and self._is_due(count)

    def masks(self) -> dict[Tensor, Tensor]:
        """The mask of every pruned parameter: True is kept."""
        if self._mirror is None:
            return dict(self._masks)
        return {param: self.optimizer.state[param][MASK] for param in self.params if self._mask(param) is not None}

    def achieved(self) -> float:
        """The present share of zeros among the weights that may be pruned; of sharded ones, on this rank."""
        weights = [local(param) for param in self.params]
        return sum(int((w == 0).sum()) for w in weights) / max(sum(w.numel() for w in weights), 1)

    def state_dict(self) -> dict[str, Any]:
        """The count of steps and the masks by number. Mirror optimizers save them, too, but not every way to load
        their state brings them back: torch.distributed.checkpoint loads only what a fresh object has. So there is a
        mask of every parameter, pruned or not."""
        found = (self._mask(param) for param in self.params)
        masks = {i: torch.ones_like(self.params[i], dtype=torch.bool) if m is None else m for i, m in enumerate(found)}
        return {"count": self.count, "masks": masks, "with_optimizer": self._mirror is not None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; load the states of the model and of the optimizer as well, in any order."""
        check_saved(state_dict, "GradualPruning", "count", "masks")
        saved, shapes = state_dict["masks"], {i: param.shape for i, param in enumerate(self.params)}
        if not isinstance(saved, Mapping) or any(getattr(m, "shape", 0) != shapes.get(i) for i, m in saved.items()):
            raise AttsvmError("the saved masks are of other parameters: load the state that was saved with this model.")
        kept_here = self._mirror is not None
        if state_dict.get("with_optimizer", kept_here) != kept_here:
            raise AttsvmError("the saved masks are of another optimizer's training: begin with the same optimizer.")
        self.count = as_count("the saved count", state_dict["count"], least=0)
        for i, mask in saved.items():
            param = self.params[i]
            if self._mask(param) is not None or not whole(mask).all():  # else it is not pruned yet, on any rank
                self._set(param, local(mask) if is_sharded(mask) else through_whole(param, mask.to(param.device), True))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_units"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copied together with the optimizer and its parameters, it prunes the copies."""
        vars(self).update(state)
        self._units = units_of(list(zip(self._names, self.params)), self.structure, self.heads)
        self._hook()

    def _hook(self) -> None:
        if self._mirror is not None:
            return
        # A compiled step would be compiled again for every count.
        self.optimizer.register_step_pre_hook(outside_compiled(self._before_step))
        self.optimizer.register_step_post_hook(outside_compiled(self._after_step))
        earlier: list[GradualPruning] = vars(self.optimizer).setdefault("_prunings", [])
        for masks in [each._masks for each in earlier]:  # of what is pruned here, too
            self._masks.update({param: masks.pop(param) for param in self.params if param in masks})
        earlier.append(self)

    def _mask(self, param: Tensor) -> Tensor | None:
        return self._masks.get(param) if self._mirror is None else self.optimizer.state.get(param, {}).get(MASK)

    def _before_step(self, _: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
        """Mask the gradients; a closure, such as Lightning's, makes them in the step."""
        given = args[1] if len(args) > 1 else kwargs.get("closure")
        if given is None:
            self._mask_gradients()
            return None

        def closure() -> Any:
            loss = given()
            self._mask_gradients()
            return loss

        return (args[0], closure, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}

    @torch.no_grad()
    def _mask_gradients(self) -> None:
        """Before a step: where the gradients of pruned entries would steer the others, as in Muon's polar factor. An
        exchange needs them as they are."""
        if not self._exchanges(self.count + 1):
            rows = [(mask, param.grad) for param, mask in self._masks.items() if param.grad is not None]
            zero_pruned([local(mask) for mask, _ in rows], [local(grad) for _, grad in rows])

    def _after_step(self, *_: Any) -> None:
        for param in self._masks:
            self._apply(param)

    @torch.no_grad()
    def _apply(self, param: Tensor) -> None:
        stepped = getattr(self.optimizer, "optim", self.optimizer)  # in ZeroRedundancyOptimizer
        states = [v for v in stepped.state.get(param, {}).values() if isinstance(v, Tensor)]
        # Of quantised moments the code 0 need not mean 0; they fade by themselves.
        states = [v for v in states if v.shape == param.shape and (v.is_floating_point() or v.is_complex())]
        zero_pruned([local(self._masks[param])], *([local(t)] for t in (param.detach(), *states)))

    @torch.no_grad()
    def _set(self, param: Tensor, part: Tensor) -> None:
        """`part` is the mask of the local part of the parameter."""
        mask = torch.empty_like(param, dtype=torch.bool, memory_format=torch.preserve_format)
        local(mask).copy_(part)
        if self._mirror is None:
            self._masks[param] = mask
            self._apply(param)
        else:
            self._mirror.set_mask(param, mask)

    @torch.no_grad()
    def _prune(self, share: float) -> None:
        """Masks of the smallest units, so that so large a share of all entries is 0. What is masked stays masked."""
        if share <= 0:
            return
        if {id(param) for param in self.params} - {id(p) for g in self.optimizer.param_groups for p in g["params"]}:
            raise AttsvmError(
                "the optimizer no longer trains what is pruned: make GradualPruning after what gives it other "
                "parameters, such as FSDP in accelerator.prepare."
            )
        sharded = any(is_sharded(param) for param in self.params)
        for units in self._together(self._units):
            scores = [unit.scores([self._mask(param) for param in unit.params]) for unit in units]
            if self.scope == "relative":
                scores = [relative(score, unit.params, sharded) for unit, score in zip(units, scores)]
            owners = [owner(unit.params[0]) for unit in units] if sharded else None
            pruned = smallest(scores, [unit.size for unit in units], share, owners)
            for unit, marks in zip(units, pruned):
                for param, mask in zip(unit.params, unit.masks(~marks)):
                    before = self._mask(param)
                    self._set(param, mask if before is None else mask & local(before))
        if isinstance(self.optimizer, LBFGS):  # its history is of the weights as they were
            self.optimizer.state.clear()

    @torch.no_grad()
    def _exchange(self, share: float) -> None:
        """Prune more than the share, and take back of the pruned weights those with the largest gradient."""
        before = {param: torch.ones_like(local(param), dtype=torch.bool) for param in self.params}
        before.update((param, local(mask).clone()) for param, mask in self.masks().items())
        if all(param.grad is None for param in self.params):
            raise AttsvmError("regrow needs the gradients: call step() before optimizer.zero_grad().")
        # A part of the model that had no part in this step, such as an idle expert, has none.
        gradients = [local(torch.zeros_like(param) if param.grad is None else param.grad) for param in self.params]
        # Where nothing is pruned there is nothing to take back; inf and nan, as of a step that GradScaler has skipped,
        # do not tell what.
        out = sum(int((~mask).sum()) for mask in before.values()) / sum(mask.numel() for mask in before.values())
        if out == 0 or not all(bool(grad.isfinite().all()) for grad in gradients):
            self._prune(share)
            return
        done = (self.count - self.first) / (self.last - self.first)
        exchanged = self.regrow / 2 * (1 + math.cos(math.pi * done))
        self._prune(share + min(exchanged * (1 - share), out))  # no more is dropped than can be taken back
        # Of what is pruned now, without what was dropped in this exchange: grown back by the gradient.
        masks = {param: local(mask) for param, mask in self.masks().items()}
        sizes = [local(param.detach()).abs() for param in self.params]
        size = WOKEN * min((kept.min().item() for each in sizes if len(kept := each[each > 0])), default=0.0)
        for part in self._together(range(len(self.params))):
            params = [self.params[i] for i in part]
            scores = []
            for i, param in zip(part, params):
                free = ~masks[param] & ~before[param]
                scores.append(torch.where(free, 1 / (gradients[i].abs().float() + 1e-30), torch.inf))
            stay = sum(int(masks[param].sum()) for param in params)
            total = sum(masks[param].numel() for param in params)
            grown = smallest(scores, [1] * len(scores), max(total - round(share * total) - stay, 0) / total)
            for i, param, back in zip(part, params, grown):
                self._set(param, masks[param] | back)
                self._wake(param, gradients[i], back, size)

    def _wake(self, param: Tensor, grad: Tensor, back: Tensor, size: float) -> None:
        """Near p = 1 a weight at 0 hardly moves: there it starts at `size`, downhill."""
        group = next(g for g in self.optimizer.param_groups if any(param is q for q in g["params"]))
        if self._mirror is None or (p := group["p"]) >= 2:
            return
        weight = local(param.detach())
        downhill = grad.sign() if group["maximize"] else -grad.sign()
        weight.copy_(torch.where(back, size * downhill.to(weight.dtype), weight))
        theta = self.optimizer.state[param].get(MIRROR)
        if theta is not None:
            local(theta).copy_(torch.where(back, mirror_of(weight, p), local(theta)))


def _prunable(optimizer: Optimizer, params: Any, structure: str | None) -> list[tuple[str, Tensor]]:
    """What to prune, with names."""
    ours = ("attention",) if structure == "head" else ("attention", "matrices", "heads")
    wanted: dict[int, str] | None = None
    if params is not None:
        if not isinstance(params, nn.Module | Iterable):
            raise AttsvmError(f"params must be parameters or a module, but got {params!r}.")
        listed = params.named_parameters() if isinstance(params, nn.Module) else params
        pairs = (entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry) for entry in listed)
        wanted = {id(param): name for name, param in pairs}
    found = []
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"{number}.{i}" for i in range(len(group["params"]))]
        for name, param in zip(names, group["params"]):
            if id(param) in wanted if wanted is not None else group.get("name") in ours:
                found.append(((wanted and wanted[id(param)]) or name, param))
    if wanted is not None and len(found) < len(wanted):
        raise AttsvmError("params has a tensor that is not in the optimizer: pass parameters that it trains.")
    found = [(name, param) for name, param in found if param.ndim >= 2 and param.numel()]
    masked = next((name for name, _ in found if name.endswith("_orig")), None)
    if masked is not None:
        raise AttsvmError(
            f"params must not be masked by torch.nn.utils.prune, but {masked} is: make that permanent first, with "
            "torch.nn.utils.prune.remove."
        )
    for name, param in found:
        check_has_values(name, param)
    made = next((name for name, _ in found if "parametrizations." in name), None)
    if made is not None:
        warnings.warn(
            f"{made} is pruned, but zeros of it need not be zeros of the weight that is made of it: remove the "
            "parametrization, or leave it out of params.",
            stacklevel=3,
        )
    if not found:
        raise AttsvmError(
            f"GradualPruning found no {'query, key or value ' * (structure == 'head')}matrix to prune: make the "
            "optimizer's groups with attsvm.optim.param_groups(model), or pass params=[…]."
        )
    return found


def check_plan(sparsity: float, **options: Any) -> None:
    """What GradualPruning would refuse whatever the optimizer and the number of steps."""
    try:
        given = inspect.signature(GradualPruning).bind(None, sparsity, 1, **options)
    except TypeError as error:
        raise AttsvmError(f"the options must be those of GradualPruning: {error}.") from error
    given.apply_defaults()
    _check(**{name: value for name, value in given.arguments.items() if name not in ("optimizer", "params")})


def _check(
    sparsity: float,
    total_steps: int,
    start: float,
    end: float,
    every: int | None,
    initial: float,
    scope: str,
    structure: str | None,
    regrow: float,
    heads: int | None,
) -> None:
    for name, value in (("sparsity", sparsity), ("initial", initial), ("regrow", regrow)):
        check_share(name, value)
    if initial > sparsity:
        raise AttsvmError(f"initial must be at most sparsity, {sparsity}, but got {initial}.")
    if not isinstance(start, Real) or not isinstance(end, Real) or not 0 <= start <= end <= 1:
        raise AttsvmError(
            f"start and end must be shares of the training with start <= end, but got {start!r} and {end!r}."
        )
    as_count("total_steps", total_steps)
    for name, value in (("every", every), ("heads", heads)):
        if value is not None:
            as_count(name, value)
    if scope not in SCOPES:
        raise AttsvmError(f"scope must be one of {SCOPES}, but got {scope!r}.")
    if structure not in STRUCTURES:
        raise AttsvmError(f"structure must be one of {STRUCTURES}, but got {structure!r}.")
    if structure == "2:4" and sparsity != 0.5:
        raise AttsvmError(f'structure="2:4" makes half of the entries 0: sparsity must be 0.5, but got {sparsity}.')
    if structure == "head" and heads is None:
        raise AttsvmError('structure="head" needs the number of heads: pass heads=….')
    if structure != "head" and heads is not None:
        raise AttsvmError('heads is for structure="head": leave it out.')
    if regrow > 0 and structure is not None:
        raise AttsvmError("regrow exchanges single entries: leave structure out.")
