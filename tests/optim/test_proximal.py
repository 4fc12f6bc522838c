"""At p = 2 `l1` is a proximal step: of AdamW and of SGD, in every precision and form of the step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attsvm.native import compiler
from attsvm.optim import MirrorAdam, MirrorDescent

LR, L1, DECAY = 1e-2, 0.5, 0.1
Update = Callable[[int, Tensor], Tensor]


def adam() -> Update:
    m, v = 0.0, 0.0

    def update(t: int, g: Tensor) -> Tensor:
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)

    return update


def sgd(nesterov: bool) -> Update:
    b = 0.0

    def update(_: int, g: Tensor) -> Tensor:
        nonlocal b
        b = 0.9 * b + g
        return g + 0.9 * b if nesterov else b

    return update


def proximal(w: Tensor, grads: list[Tensor], update: Update) -> Tensor:
    """An independent one, in float64."""
    w = w.double()
    for t, grad in enumerate(grads, start=1):
        w = w * (1 - LR * DECAY) - LR * update(t, grad.double())
        w = torch.where(w.abs() > LR * L1, w - w.sign() * LR * L1, 0.0)
    return w


MADE = {
    "adam": (adam, lambda w, **how: MirrorAdam(w, LR, p=2, weight_decay=DECAY, l1=L1, **how)),
    "sgd": (
        lambda: sgd(False),
        lambda w, **how: MirrorDescent(w, LR, p=2, momentum=0.9, weight_decay=DECAY, l1=L1, **how),
    ),
    "nesterov": (
        lambda: sgd(True),
        lambda w, **how: MirrorDescent(w, LR, p=2, momentum=0.9, nesterov=True, weight_decay=DECAY, l1=L1, **how),
    ),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
FORMS = ({"foreach": True}, {"foreach": False})
CASES = [(name, how, dtype, False) for name in MADE for how in FORMS for dtype in DTYPES]
CASES += [(name, {}, torch.float32, True) for name in ("adam", "sgd")]
CASES += [("sgd", {"fused": True}, torch.float32, False)] if compiler() else []


@pytest.mark.parametrize(("name", "how", "dtype", "compiled"), CASES, ids=str)
@pytest.mark.parametrize("of", ["mirror", "weight"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own compiler
def test_l1_at_p_2_is_the_proximal_step(name, how, dtype, compiled, of) -> None:
    generator = torch.Generator().manual_seed(0)
    starts = [0.5 * torch.randn(shape, generator=generator).to(dtype) for shape in ((40, 30), (7,), (2, 3, 4))]
    grads = [[torch.randn(w.shape, generator=generator).to(dtype) for w in starts] for _ in range(100)]
    update, make = MADE[name]
    weights = [nn.Parameter(start.clone()) for start in starts]
    optimizer = make(weights, l1_of=of, **how)
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
    for of_step in grads:
        for weight, grad in zip(weights, of_step):
            weight.grad = grad
        step()
    for k, weight in enumerate(weights):
        exact = proximal(starts[k], [of_step[k] for of_step in grads], update())
        theta = optimizer.state[weight].get("mirror", weight.detach())  # of bf16 and fp16 it holds the digits
        tolerance = 1e-6 if theta.dtype == torch.float32 else 1e-12
        assert (theta.double() - exact).abs().max() <= tolerance * max(1.0, exact.abs().max().item())
        assert torch.equal(weight.detach(), theta.to(dtype))
        assert torch.equal(weight == 0, exact.to(dtype) == 0)
        assert k > 0 or 0 < (exact == 0).double().mean() < 0.9
