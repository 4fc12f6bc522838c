"""What MirrorDescent and MirrorAdam share: the step, and the mirror variable as state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, StateDict

from attsvm.errors import AttsvmError
from attsvm.optim._fused import same_layout, use_fused
from attsvm.optim._mirror_map import has_mirror, inverse_exponent, keeps_roundings, means, mirror_of, state_dtype
from attsvm.optim._shards import gradient, local

MIRROR = "mirror"
REST = "rest"
Tensors = list[Tensor]
_FLAGS = {"maximize": False, "foreach": None, "fused": None, "capturable": False}
_HOW = ("foreach", "fused", "capturable")  # how to compute here: of another optimizer's state they are not taken over
_FOREIGN = {"dampening": 0, "amsgrad": False}  # what torch's optimizers have and these have not


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


def zeros_like(param: Tensor) -> Tensor:
    """A state tensor laid out and sharded as the parameter."""
    return torch.zeros_like(param, dtype=state_dtype(param), memory_format=torch.preserve_format)


class MirrorOptimizer(Optimizer, ABC):
    """The state handling of the mirror optimizers."""

    # The counter of in-place changes of every weight, by id, as this optimizer left it; not part of the saved state.
    _versions: dict[int, int]
    # How many lists of states a step works on, apart from mirror variables and their rests.
    _state_columns: int

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if defaults["fused"] and defaults["foreach"]:
            raise AttsvmError("fused and foreach cannot both be True.")
        self._versions = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(self._with_names(param_group))
        try:
            self._check_group(self.param_groups[-1])
        except AttsvmError:
            self.param_groups.pop()
            raise

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

    def _check_group(self, group: dict[str, Any]) -> None:
        check_lr(group["lr"])
        check_p(group["p"])
        check_at_least_zero("weight_decay", group["weight_decay"])
        if any(param.is_complex() for param in group["params"]):
            raise AttsvmError("mirror optimizers take real parameters, but one is complex: use torch.view_as_real.")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._versions = {}
        for group in self.param_groups:
            for name, value in _FLAGS.items():
                group.setdefault(name, value)

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
            fused = self._use_fused(group)
            params, weights, grads, *states = ([] for _ in range(5 + self._state_columns))
            self._init_group(group, fused, params, weights, grads, *states)
            if params:
                self._step_group(group, fused, weights, grads, *states)
                self._remember(params, weights)
        return loss

    def _use_fused(self, group: dict[str, Any]) -> bool:
        if torch.compiler.is_compiling() and not group["fused"]:
            return False
        weights = (local(param) for param in group["params"] if param.grad is not None)
        return use_fused(weights, group["foreach"], group["fused"])

    def _init_group(
        self, group: dict[str, Any], fused: bool, params: Tensors, weights: Tensors, *columns: Tensors
    ) -> None:
        """Collect what has a gradient: local weights; columns of gradients, local mirror variables, their rests (or
        they themselves, where no roundings are kept), and other states.

        By its name `torch.compile` knows where state is made, and looks at it again when that has changed.
        """
        p, a = group["p"], inverse_exponent(group["p"])
        rows = []
        for param in group["params"]:
            if param.grad is not None:
                weight = local(param)
                theta = self._mirror(param, weight, p) if has_mirror(weight, p) else weight
                rest = self._rest(param) if not fused and keeps_roundings(weight, theta, a) else theta
                if rest is theta:
                    self.state.get(param, {}).pop(REST, None)  # left by steps of the other kind
                rows.append((param, weight, gradient(param), theta, rest, *self._init_state(group, param)))
        for column, values in zip((params, weights, *columns), zip(*rows)):
            column.extend(values)

    @abstractmethod
    def _init_state(self, group: dict[str, Any], param: Tensor) -> Sequence[Tensor]:
        """The local states of a parameter, made on the first step."""

    @abstractmethod
    def _step_group(
        self, group: dict[str, Any], fused: bool, weights: Tensors, grads: Tensors, *states: Tensors
    ) -> None:
        """Hand the lists, and the group's options, to the arithmetic; first of the states are θ and rests."""

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
                    if REST in state:
                        local(state[REST]).zero_()
                else:
                    del state[MIRROR]
                    state.pop(REST, None)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load the state as torch does, but leave that of bf16 and fp16 parameters in float32.

        A state of torch's optimizers is taken too: AdamW's moments go on in MirrorAdam, SGD's momentum in
        MirrorDescent. Options that the saved groups have, such as lr, are theirs; those that they lack, such as p, stay
        as they are here; and the mirror variable is made from the weights.
        """
        loaded: StateDict = {}
        own = [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]

        def fill(_: Optimizer, hooked: StateDict) -> StateDict:
            groups = hooked["param_groups"]
            if len(groups) == len(own):  # else torch refuses
                groups = [{**mine, **_taken(saved)} for mine, saved in zip(own, groups)]
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
        state = self.state[param]
        if MIRROR not in state:
            state[MIRROR] = zeros_like(param)
            local(state[MIRROR]).copy_(mirror_of(weight, p))
            return local(state[MIRROR])
        theta = local(state[MIRROR])
        if self._versions.get(id(param)) != weight._version and not _capturing(weight):
            # Somebody wrote to the weight, or the state was loaded: where θ no longer means it, the weight wins.
            same = means(theta, weight, p)
            theta.copy_(torch.where(same, theta, mirror_of(weight, p)))
            if REST in state:
                local(state[REST]).masked_fill_(~same, 0)
        return theta

    def _rest(self, param: Tensor) -> Tensor:
        """What the roundings of the local θ lost."""
        state = self.state[param]
        if REST not in state:
            state[REST] = zeros_like(param)
        return local(state[REST])

    def _remember(self, params: list[Tensor], weights: list[Tensor]) -> None:
        """Note the weights as the step left them."""
        if not torch.compiler.is_compiling():
            self._versions.update((id(param), weight._version) for param, weight in zip(params, weights))


def _taken(saved: dict[str, Any]) -> dict[str, Any]:
    """The options of a saved group that hold here too."""
    if "p" in saved:  # one of ours
        return saved
    for name, without in _FOREIGN.items():
        if saved.get(name, without) != without:
            raise AttsvmError(
                f"the saved optimizer has {name}={saved[name]}, which the mirror optimizers have not: "
                "begin without its state."
            )
    return {name: value for name, value in saved.items() if name not in _HOW}


def _capturing(t: Tensor) -> bool:
    return t.is_cuda and torch.cuda.is_current_stream_capturing()
