"""The kernels for CUDA, run by Triton's interpreter where there is Triton but no GPU."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from attsvm.optim import MirrorAdam, MirrorDescent, _fused

pytest.importorskip("triton")
inside = os.environ.get("TRITON_INTERPRET") == "1"  # Triton looks at it when it is imported
outside = pytest.mark.skipif(inside or torch.cuda.is_available(), reason="the kernels themselves are tested")


@outside
def test_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    ended = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-5000:]


@pytest.fixture(params=["a table", "its own launch"])
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take tensors on a CPU. The interpreter has no libdevice."""
    import triton.language as tl

    from attsvm.optim import _triton

    known = SimpleNamespace(
        pow=lambda x, a: tl.where(x == 0, 0.0, tl.exp2(tl.log2(x) * a)),
        expm1=lambda x: tl.exp(x) - 1.0,
        cbrt=lambda x: tl.exp2(tl.log2(x) / 3),
        fast_log2f=lambda x: tl.log2(x),
        fast_dividef=lambda a, b: a / b,
    )
    monkeypatch.setattr(_triton, "libdevice", known)
    if request.param == "its own launch":
        monkeypatch.setattr(_triton, "table_of", lambda *_: None)

    def given(kernel):
        # what the step on a CPU has besides: rests and signatures
        return lambda rows, *others, **flags: kernel([row[:-2] for row in rows], *others, **flags)

    both = SimpleNamespace(adam=given(_triton.adam), descend=given(_triton.descend))
    monkeypatch.setattr(_fused, "kernels", lambda weight: both)
    monkeypatch.setattr(_fused, "_why_not", lambda weight: None)


def trained(kind, pruned: bool, **options) -> tuple[Tensor, dict[str, Tensor]]:
    start = torch.randn(700, generator=torch.Generator().manual_seed(0))
    w = nn.Parameter(start + 0.1 * start.sign())
    optimizer = kind([w], **({"lr": 0.01} | options))
    if pruned:
        optimizer.set_mask(w, torch.arange(700) % 3 > 0)
    for step in range(10):
        noise = torch.randn(700, generator=torch.Generator().manual_seed(step + 1))
        w.grad = (3 * w.detach()).sin() + noise
        optimizer.step()
    return w.detach(), optimizer.state[w]


@pytest.mark.skipif(not inside, reason="Triton compiles here")
@pytest.mark.filterwarnings("ignore")  # of numpy, which computes both sides of every choice
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"l1": 0.3}, {"l1": 0.3, "l1_of": "weight"}, {"weight_decay": 0.1, "maximize": True}],
    ids=str,
)
@pytest.mark.parametrize("p", [1.1, 1.4, 1.5, 1.75, 2, 3])
@pytest.mark.parametrize("kind", [MirrorAdam, MirrorDescent, "of the mirror"])
def test_they_take_the_steps_of_the_other_forms(kind, p, options, pruned):
    if kind == "of the mirror":
        if p > 2:
            pytest.skip("refused")
        kind, options = MirrorAdam, {**options, "moments_of": "mirror"}
    (found, state), (expected, _) = (
        trained(kind, pruned, p=p, **options, **form) for form in ({"fused": True}, {"foreach": True})
    )
    assert ((found - expected).norm() / expected.norm()).item() < 2e-5
    assert torch.equal(found == 0, expected == 0)
    if pruned:
        assert not any(kept[::3].any() for kept in (found, *state.values()) if kept.shape == found.shape)
