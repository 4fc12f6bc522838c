"""Linear layers in compressed rows compute what dense ones compute."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from attsvm import AttsvmError
from attsvm.models import GPT, ViT
from attsvm.optim import CSRLinear, prune, to_csr


def sparse(*layers: nn.Module, share: float = 0.95) -> tuple[nn.Sequential, nn.Sequential]:
    """A pruned model and a copy of it."""
    model = nn.Sequential(*layers)
    prune(model, share, scope="layer")
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_of_inputs_are_those_of_the_dense_layer(dtype: torch.dtype, bias: bool) -> None:
    model, dense = sparse(nn.Linear(40, 30, bias=bias, dtype=dtype))
    assert to_csr(model) == ["0"]
    assert torch.equal(model[0].weight, dense[0].weight)
    inputs = [torch.randn(*shape, 40, dtype=dtype) for shape in ((), (3,), (2, 5), (0,))]
    for x in (*inputs, torch.randn(40, 7, dtype=dtype).T):
        x.requires_grad_()
        found, expected = model(x), dense(x)
        torch.testing.assert_close(found, expected)
        assert found.is_contiguous()
        up = torch.randn_like(expected)
        grads = [torch.autograd.grad(y, x, up)[0] for y in (found, expected)]
        torch.testing.assert_close(grads[0], grads[1])
    assert not list(model.parameters())


def test_layers_with_too_few_zeros_stay_dense() -> None:
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(3)))
    for layer, zeros in zip(model, (94, 95, 100)):
        layer.weight.data.view(-1)[:zeros] = 0
    assert to_csr(model) == ["1", "2"]
    assert [type(layer) for layer in model] == [nn.Linear, CSRLinear, CSRLinear]
    assert "zeros=95.0%" in str(model[1])


def test_a_share_that_is_no_whole_number_of_weights_counts() -> None:
    model, _ = sparse(nn.Linear(7, 5))  # 33 of 35 are 94.3%
    assert to_csr(model) == ["0"]


def test_a_layer_in_two_places_stays_one() -> None:
    layer = nn.Linear(20, 20)
    model, dense = sparse(layer, nn.ReLU(), layer)
    assert to_csr(model) == ["0", "2"]
    assert model[0] is model[2]
    x = torch.randn(4, 20)
    torch.testing.assert_close(model(x), dense(x))


def test_it_is_copied_saved_and_moved_as_other_modules() -> None:
    model, dense = sparse(nn.Linear(20, 30))
    to_csr(model)
    x = torch.randn(4, 20)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
    other, _ = sparse(nn.Linear(20, 30))
    to_csr(other)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    torch.testing.assert_close(model.double()(x.double()), dense.double()(x.double()))


@pytest.mark.parametrize("grad", [True, False])
def test_torchs_encoder_takes_no_shortcut_past_its_layers(grad: bool) -> None:
    dense = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    prune(dense, 0.96, scope="layer")
    model = copy.deepcopy(dense)
    assert to_csr(model) == [f"layers.{k}.linear{i}" for k in range(2) for i in (1, 2)]
    calls = []
    for layer in model.modules():
        if isinstance(layer, CSRLinear):
            layer.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(3, 5, 16)
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(model(x), dense(x))
    assert len(calls) == 4


@pytest.mark.parametrize("kind", ["gpt", "vit"])
def test_models_that_read_weights_of_their_layers_work(kind: str) -> None:
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 16, "hidden": 16, "heads": 2}
    made: nn.Module = GPT(vocabulary=50, **sizes) if kind == "gpt" else ViT(size=8, **sizes)
    prune(made, 0.95, scope="layer")
    model = copy.deepcopy(made).eval()
    assert to_csr(model)
    x = torch.randint(50, (2, 6)) if kind == "gpt" else torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model(x), made.eval()(x))


@pytest.mark.parametrize("shape", [(4, 10), (40,), (0, 40)])
def test_inputs_of_another_width_are_refused_as_by_the_dense_layer(shape: tuple[int, ...]) -> None:
    model, dense = sparse(nn.Linear(20, 30))
    to_csr(model)
    for each in (dense, model):
        with pytest.raises(RuntimeError, match=r"size mismatch|cannot be multiplied|must match"):
            each(torch.ones(shape))


def test_autocast_is_left() -> None:
    model, dense = sparse(nn.Linear(20, 30), nn.Linear(30, 20))
    to_csr(model)
    x = torch.randn(4, 20)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(x.bfloat16())
    torch.testing.assert_close(found, dense(x.bfloat16().float()))


def test_what_cannot_be_replaced_is_said_and_nothing_is() -> None:
    masked, _ = sparse(nn.Linear(20, 20), nn.Linear(20, 20))
    torch_prune.identity(masked[1], "weight")
    half, _ = sparse(nn.Linear(20, 20), nn.Linear(20, 20).bfloat16())
    few, _ = sparse(nn.Linear(20, 20), share=0.5)
    cases = [
        (masked, 0.95, r"1 has a mask of torch.nn.utils.prune: call torch.nn.utils.prune.remove first"),
        (half, 0.95, r"needs float32 or float64 weights on a CPU, but 1 is torch.bfloat16 on cpu"),
        (few, 0.95, r"no nn.Linear inside the model has 95% zeros: the largest share is 50.0% \(0\)"),
        (nn.Linear(3, 3), 0.95, r"no nn.Linear inside the model has 95% zeros: none has a zero"),
        (few, 1.5, "least must be a share"),
        ("model", 0.95, "model must be a module"),
    ]
    for model, least, message in cases:
        with pytest.raises(AttsvmError, match=message):
            to_csr(model, least)
        assert not isinstance(model, nn.Module) or not any(isinstance(m, CSRLinear) for m in model.modules())
