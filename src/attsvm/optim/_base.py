"""What MirrorDescent and MirrorAdam share: the step, and the mirror variable as state."""

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, StateDict

from attsvm.errors import AttsvmError, describe
from attsvm.optim._checks import (
    check_at_least_zero,
    check_has_shape,
    check_l1,
    check_lr,
    check_names,
    check_p,
    check_saved,
    sticks_at_zero,
)
from attsvm.optim._edits import Watch
from attsvm.optim._fused import compares, outside_compiled, pays_on_cpu, same_layout, use_fused
from attsvm.optim._loading import MASK, MIRROR, REST, Source, check_states, is_foreign, taken
from attsvm.optim._mirror_map import has_mirror, inverse_exponent, keeps_roundings, means, mirror_of, state_dtype
from attsvm.optim._shards import gradient, local

Tensors = list[Tensor]
Masks = Sequence[Tensor | None]
FIRST_LOOK = 16  # the first step after which weights are looked at for inf and nan
LEAST_UNDERFLOWING_P = 3  # up to here |w|^(p−1) is above 0 in float32 for |w| > 1e-22


def zero_pruned(masks: Masks, *columns: Tensors) -> None:
    """Exact zeros where a mask has them, also in place of nan and inf."""
    for mask, *row in zip(masks, *columns):
        if mask is not None:
            pruned = ~mask
            for t in {id(t): t for t in row}.values():
                t.masked_fill_(pruned, 0)


def masked(masks: Masks, grads: Tensors) -> Tensors:
    """Gradients that are 0 where a mask is: then states and weights that are 0 stay so."""
    return [grad if mask is None else torch.where(mask, grad, 0) for mask, grad in zip(masks, grads)]


def zeros_like(param: Tensor) -> Tensor:
    """A state tensor laid out and sharded as the parameter."""
    return torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)


class MirrorOptimizer(Optimizer, ABC):
    """The state handling of the mirror optimizers."""

    # By p the counter of in-place changes of every weight, by id, as steps with this p left it; not a part of the saved
    # state.
    _versions: dict[float, dict[int, int]]
    _calls: int  # of step, in this process
    # Tells changes through `.data` of weights with a mirror variable, where the step does not compare them anyway.
    _watch: Watch
    # How many lists of states a step works on, apart from mirror variables and their rests.
    _state_columns: int
    # Whose saved states it takes.
    _source: Source

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._check_options(defaults)  # before the parameters, as torch's optimizers do
        if isinstance(params, nn.Module) or not isinstance(params, Iterable):
            raise AttsvmError(
                f"params must be parameters or groups of them, but got a {type(params).__name__}: "
                "pass model.parameters() or attsvm.optim.param_groups(model)."
            )
        self._versions, self._watch, self._calls = {}, Watch(), 0
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(self._with_names(param_group))
        try:
            self._check_options(self.param_groups[-1])
            params = self.param_groups[-1]["params"]
            for param in params:
                check_has_shape("a parameter", param)
            if any(param.is_complex() for param in params):
                raise AttsvmError("mirror optimizers take real parameters, but one is complex: use torch.view_as_real.")
            _check_kept(self.param_groups[-1], params)
            check_names(self.param_groups[-1], self.defaults, type(self).__name__)
        except AttsvmError:
            self.param_groups.pop()
            raise
        self._warn_of_zeros(self.param_groups[-1])

    def _warn_of_zeros(self, group: dict[str, Any]) -> None:
        """As `param_groups` does, whose groups have names."""
        stuck = [] if "name" in group else [param for param in group["params"] if sticks_at_zero(group, param)]
        if stuck:
            warnings.warn(
                f"{len(stuck)} of {len(group['params'])} parameters start at 0, as biases do, and hardly move at "
                f"p = {group['p']:g}: make the groups by attsvm.optim.param_groups(model), or give them p = 2.",
                stacklevel=6,
            )

    def _with_names(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """Parameters without names get some if all others have names, as those of `param_groups` do: torch wants names
        of all or of none, and trainers that add what they unfreeze know of none."""
        params = param_group["params"]
        named = any("param_names" in group for group in self.param_groups)
        if not named or "param_names" in param_group or isinstance(params, set):  # torch refuses sets
            return param_group
        params = [params] if isinstance(params, Tensor) else list(params)
        if not any(isinstance(param, tuple) for param in params):
            number = len(self.param_groups)
            params = [(f"group {number}, parameter {i}", param) for i, param in enumerate(params)]
        return {**param_group, "params": params}

    def _check_options(self, group: dict[str, Any]) -> None:
        if group["fused"] and group["foreach"]:
            raise AttsvmError("fused and foreach cannot both be True.")
        check_lr(group["lr"])
        check_p(group["p"])
        check_at_least_zero("weight_decay", group["weight_decay"])
        check_l1(group["l1"], group["l1_of"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._versions, self._watch, self._calls = {}, Watch(), 0
        for group in self.param_groups:
            group.setdefault("l1_of", "mirror")  # what states without this option mean
            for option in inspect.signature(type(self)).parameters.values():
                if option.default is not option.empty:
                    group.setdefault(option.name, option.default)

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
        if not torch.compiler.is_compiling():
            self._watch.turn()
        self._step_groups()
        if not torch.compiler.is_compiling():
            self._calls += 1
            if self._calls >= FIRST_LOOK and self._calls & (self._calls - 1) == 0:
                self._look_for_divergence()
        return loss

    def _step_groups(self) -> None:
        for group in self.param_groups:
            fused = self._use_fused(group)
            params, weights, grads, masks, *states = ([] for _ in range(6 + self._state_columns))
            self._init_group(group, fused, params, weights, grads, masks, *states)
            if params:
                step = self._step_fused if fused else self._step_group
                step(group, fused, weights, grads, masks, *states)
                self._remember(group["p"], params, weights)

    def _look_for_divergence(self) -> None:
        """Steps of a power of 2, so that it costs nothing in a long training."""
        for group in self.param_groups:
            weights = [local(param) for param in group["params"] if param.grad is not None and group["p"] < 2]
            weights = [weight for weight in weights if weight.numel() and not capturing(weight) and not weight.is_meta]
            if weights and not all(bool(torch.linalg.vector_norm(w, torch.inf) < torch.inf) for w in weights):
                warnings.warn(
                    f"after {self._calls} steps weights of a group with p = {group['p']:g} are inf or nan: lower lr, "
                    f"which is {float(group['lr']):g} now, and keep lr/(p − 1) at a few percent"
                    + (', or set normalize="tensor".' if group.get("normalize", "") is None else "."),
                    stacklevel=3,
                )
                return

    def _use_fused(self, group: dict[str, Any]) -> bool:
        if torch.compiler.is_compiling() and not group["fused"]:
            return False
        weights = [local(param) for param in group["params"] if param.grad is not None]
        fused = use_fused(weights, group["foreach"], group["fused"])
        # The kernel for a CPU reckons θ anew, which a step of lr = 0 must not.
        if bool(weights) and weights[0].is_cpu:
            return float(group["lr"]) != 0 and (fused or pays_on_cpu(group, self.state))
        return fused and (group["keep_mirror"] or group["p"] == 2)

    def _init_group(
        self, group: dict[str, Any], fused: bool, params: Tensors, weights: Tensors, *columns: Tensors
    ) -> None:
        """Collect what has a gradient: local weights; columns of gradients, masks, local mirror variables, their rests
        (or they themselves, where no roundings are kept), and other states.

        By its name `torch.compile` knows where state is made, and looks at it again when that has changed.
        """
        p = group["p"]
        check_p(p)  # it may have been edited
        a, versions = inverse_exponent(p), self._versions.setdefault(p, {})
        rows = []
        for param in group["params"]:
            if param.grad is not None:
                weight = local(param)
                mirrored = group["keep_mirror"] and has_mirror(weight, p)
                theta = self._mirror(param, weight, p, versions, fused and weight.is_cpu) if mirrored else weight
                kept = mirrored and (weight.is_cpu or not fused) and keeps_roundings(weight, theta, a)
                rest = self._rest(param) if kept else theta
                if rest is theta and (left := self.state.get(param)):  # by steps of another kind, or with another p
                    left.pop(REST, None)
                    if theta is weight:
                        left.pop(MIRROR, None)
                states = self._init_state(group, param)
                mask = state.get(MASK) if (state := self.state.get(param)) else None
                mask = None if mask is None else local(mask)
                rows.append((param, weight, gradient(param), mask, theta, rest, *states))
        for column, values in zip((params, weights, *columns), zip(*rows)):
            column.extend(values)

    @abstractmethod
    def _init_state(self, group: dict[str, Any], param: Tensor) -> Sequence[Tensor]:
        """The local states of a parameter, made on the first step."""

    @abstractmethod
    def _step_group(
        self, group: dict[str, Any], fused: bool, weights: Tensors, grads: Tensors, masks: Masks, *states: Tensors
    ) -> None:
        """Hand the lists, and the group's options, to the arithmetic; first of the states are θ and rests."""

    @outside_compiled
    def _step_fused(self, group: dict[str, Any], *rest: Any) -> None:
        """A compiled step breaks its graph here: what the kernels are told are plain numbers, not guarded ones."""
        self._step_group(group, *rest)

    def _shared(self, group: dict[str, Any], fused: bool, weights: Tensors, masks: Masks) -> dict[str, Any]:
        """What the arithmetic of either optimizer is told."""
        names = ("foreach", "capturable", "lr", "p", "weight_decay", "maximize", "l1", "l1_of")
        watch = None if torch.compiler.is_compiling() or capturing(weights[0]) else self._watch
        return {name: group[name] for name in names} | {"fused": fused, "masks": masks, "watch": watch}

    @torch.no_grad()
    def set_mask(self, param: Tensor, mask: Tensor | None) -> None:
        """Prune a parameter: where `mask` is False the weight, its mirror variable and its moments are 0, now and after
        every step, until another mask is set. None removes the mask.

        The mask is part of the saved state.
        """
        if all(param is not own for group in self.param_groups for own in group["params"]):
            raise AttsvmError("set_mask was given a tensor that is no parameter of this optimizer: pass the parameter.")
        state = self.state[param]
        if mask is None:
            state.pop(MASK, None)
            return
        if not isinstance(mask, Tensor):
            raise AttsvmError(f"a mask must be a tensor of shape {tuple(param.shape)}, but got {describe(mask)}.")
        if mask.shape != param.shape:
            raise AttsvmError(f"a mask must have its parameter's shape {tuple(param.shape)}, not {tuple(mask.shape)}.")
        if not any(self.state.values()):
            self._make_states()
        if MASK not in state:
            state[MASK] = torch.empty_like(param, dtype=torch.bool, memory_format=torch.preserve_format)
        state[MASK].copy_(mask != 0)
        if MIRROR in state:
            self._watch.release(local(state[MIRROR]))
        values = [param.detach(), *(v for name, v in state.items() if name != MASK and v.shape == param.shape)]
        zero_pruned([local(state[MASK])], *([local(value)] for value in values))

    def _make_states(self) -> None:
        """Make all states of a first step. A mask alone would look as if they were there to those who make them before
        they load, such as torch.distributed.checkpoint."""
        for group in self.param_groups:
            bare = [param for param in group["params"] if param.grad is None and param.requires_grad]
            for param in bare:
                param.grad = torch.zeros_like(param)
            self._init_group(group, self._use_fused(group), *([] for _ in range(6 + self._state_columns)))
            for param in bare:
                param.grad = None

    @torch.no_grad()
    def resync(self) -> None:
        """Recompute the mirror variables from the weights.

        The step itself notices changes of the weights between two steps, also through ``.data``, and a new ``p`` of a
        group. Call this only after changes before a captured CUDA graph.
        """
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                self._forget(param, group["p"])
                if MIRROR not in state:
                    continue
                if has_mirror(param, group["p"]):
                    local(state[MIRROR]).copy_(mirror_of(local(param), group["p"]))
                    if REST in state:
                        local(state[REST]).zero_()
                else:
                    del state[MIRROR]
                    state.pop(REST, None)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load the state as torch does, but leave that of bf16 and fp16 parameters in float32.

        States of torch's optimizers work, too: MirrorAdam continues AdamW's moments, MirrorDescent SGD's momentum.
        Options in the saved groups, such as lr, are restored; options that they lack, such as p, stay as they are here.
        The mirror variable is computed from the weights; with ``moments_of="mirror"`` AdamW's moments are translated,
        too. :func:`~attsvm.optim.from_torch` does this for other groups, and translates lr. States of other optimizers,
        and of parameters of other shapes, are refused.
        """
        check_saved(state_dict, "optimizer")
        loaded: StateDict = {}
        origins: list[dict[str, Any]] = []
        own = [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]

        def fill(_: Optimizer, hooked: StateDict) -> StateDict:
            check_saved(hooked, "optimizer", "state", "param_groups")
            groups, ours = hooked["param_groups"], type(self).__name__
            origins.extend(groups)
            options = [taken(saved, self._source, ours) for saved in groups]
            saved, here = ([len(group["params"]) for group in each] for each in (groups, self.param_groups))
            if saved != here:
                how = (
                    "with attsvm.optim.from_torch"
                    if any(map(is_foreign, groups))
                    else "with the groups of the saved one"
                )
                raise AttsvmError(
                    f"the saved groups have {saved} parameters, but those of this optimizer {here}: make it {how}."
                )
            groups = [{**mine, **saved} for mine, saved in zip(own, options)]
            check_states(hooked["state"], groups, self.param_groups, self._source, ours)
            for group, now in zip(groups, self.param_groups):
                _check_kept(group, now["params"])
            loaded.update({**hooked, "param_groups": groups})
            return loaded

        hook = self.register_load_state_dict_pre_hook(fill)  # the last of the hooks: it sees what the others made
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        saved = chain.from_iterable(group["params"] for group in loaded["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(saved, params):
            for name, value in loaded["state"].get(key, {}).items():
                if value is None:  # SGD's momentum before its first step
                    del self.state[param][name]
                elif name == "step" and not isinstance(value, Tensor):  # as old versions of torch saved it
                    self.state[param][name] = torch.tensor(float(value))
                elif name != "step" and isinstance(value, Tensor):
                    value = value.to(device=param.device, dtype=torch.bool if name == MASK else state_dtype(param))
                    # The kernels walk through memory, so the state lies in it as the parameter does.
                    as_param = value if same_layout(value, param) else torch.empty_like(param, dtype=value.dtype)
                    self.state[param][name] = value if as_param is value else as_param.copy_(value)
        for group, origin in zip(self.param_groups, origins):
            self._adopt(group, origin)

    def _adopt(self, group: dict[str, Any], origin: Mapping[str, Any]) -> None:
        """Translate the loaded states of a group, if they mean something else in the saved one."""

    def _check_capture(self) -> None:
        """torch's own check is private and has changed its name."""
        if torch.compiler.is_compiling() or all(group["capturable"] for group in self.param_groups):
            return
        if any(capturing(param) for group in self.param_groups for param in group["params"][:1]):
            raise AttsvmError("step() is being captured in a CUDA graph: construct the optimizer with capturable=True.")

    def _mirror(self, param: Tensor, weight: Tensor, p: float, versions: dict[int, int], by_kernel: bool) -> Tensor:
        """The local θ of a parameter whose local part is `weight`; made from the weights on the first step. The kernel
        for a CPU compares by itself."""
        state = self.state[param]
        new = MIRROR not in state
        if new:
            state[MIRROR] = zeros_like(param)
            local(state[MIRROR]).copy_(_checked_mirror(weight, p))
        theta = local(state[MIRROR])
        compared = (by_kernel and compares(inverse_exponent(p))) or torch.compiler.is_compiling()
        known = not compared and self._watch.take_back(weight, theta, by_kernel)
        if new or versions.get(id(param)) == weight._version:
            return theta
        # Somebody changed the weight or p, or the state was loaded: where θ no longer means it, the weight wins.
        edited = self._forget(param, p)
        if (by_kernel or known) and not edited:
            return theta
        if not capturing(weight):
            same = means(theta, weight, p)
            theta.copy_(torch.where(same, theta, (_checked_mirror if edited else mirror_of)(weight, p)))
            if REST in state:
                local(state[REST]).masked_fill_(~same, 0)
        elif edited:
            raise AttsvmError("p was changed before the capture of a CUDA graph: call optimizer.resync() before it.")
        return theta

    def _rest(self, param: Tensor) -> Tensor:
        """What the roundings of the local θ lost."""
        state = self.state[param]
        if REST not in state:
            state[REST] = zeros_like(param)
        return local(state[REST])

    def _forget(self, param: Tensor, p: float) -> bool:
        """Forget what steps with another p left; whether there were any."""
        found = False
        for other in [q for q in self._versions if q != p]:
            found |= self._versions[other].pop(id(param), None) is not None
            if not self._versions[other]:
                del self._versions[other]
        return found

    def _remember(self, p: float, params: Tensors, weights: Tensors) -> None:
        """Note the weights as the step left them."""
        if not torch.compiler.is_compiling():
            versions = self._versions.setdefault(p, {})
            versions.update((id(param), weight._version) for param, weight in zip(params, weights))
            self._watch.lend()


def _check_kept(group: Mapping[str, Any], params: Sequence[Tensor]) -> None:
    if not group["keep_mirror"] and any(param.dtype != state_dtype(param) for param in params):
        raise AttsvmError("keep_mirror=False needs float32 or float64 weights: of others θ holds the digits.")


def _checked_mirror(weight: Tensor, p: float) -> Tensor:
    """θ, with a warning where it is 0 and the weight is of some size: the step would set the weight to 0."""
    theta = mirror_of(weight, p)
    if p > LEAST_UNDERFLOWING_P and weight.numel() and not weight.is_meta and not capturing(weight):
        size = weight.abs()
        lost = int(((theta == 0) & (size > 1e-3 * size.max())).sum())
        if lost:
            warnings.warn(
                f"{lost} of {weight.numel()} weights of a parameter of shape {tuple(weight.shape)} are so small that "
                f"|w|^(p−1) is 0 in {theta.dtype} for p = {p}, and the step sets them to 0: choose a smaller p.",
                stacklevel=2,
            )
    return theta


def capturing(t: Tensor) -> bool:
    return t.is_cuda and torch.cuda.is_current_stream_capturing()
