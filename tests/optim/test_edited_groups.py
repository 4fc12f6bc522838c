"""Options of a group that change between two steps, and p for which θ underflows."""

import copy
import warnings

import pytest
import torch
from small_task import fit, make_all, network, same
from torch import nn

from attsvm import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent


@make_all
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exponents", [(1.1, 1.5), (1.1, 3), (1.1, 2), (2, 1.1), (1.5, 2, 1.1)])
def test_a_new_p_goes_on_from_the_weights(make, foreach, dtype, exponents):
    model = network(dtype)
    optimizer = make(model.parameters(), p=exponents[0], foreach=foreach, lr=1e-3)
    fit(model, optimizer, range(3))
    for p in exponents[1:]:
        for group in optimizer.param_groups:
            group["p"] = p
        before, (other, fresh) = copy.deepcopy(model), copy.deepcopy((model, optimizer))
        fresh.resync()
        fit(model, optimizer, range(3, 4))
        fit(other, fresh, range(3, 4))
        assert same(model, other)
        for a, b in zip(model.parameters(), before.parameters()):
            assert (a - b).abs().max() < 0.1
        assert all(
            (optimizer.state[param].get("mirror") is None) == (p == 2 and dtype == torch.float32)
            for param in model.parameters()
        )


def test_p_may_follow_a_schedule():
    model = network()
    optimizer = MirrorAdam(model.parameters(), p=3, lr=1e-3)
    for k in range(20):
        optimizer.param_groups[0]["p"] = 3 - k / 15
        fit(model, optimizer, range(k, k + 1))
    assert all(param.abs().max() < 1 for param in model.parameters())
    assert len(optimizer._versions) <= 2  # nothing is kept of what an old p left


def test_a_new_p_of_a_parameter_that_is_at_rest_is_noticed_later():
    w = nn.Parameter(torch.full((3,), 0.02))
    optimizer = MirrorAdam([w], lr=0.0, p=1.1)
    w.grad = torch.ones(3)
    optimizer.step()
    for p in (1.5, 1.1):  # there and back; lr = 0 writes no weight
        optimizer.param_groups[0]["p"] = p
        optimizer.step()
        torch.testing.assert_close(optimizer.state[w]["mirror"], torch.full((3,), 0.02 ** (p - 1)))


@pytest.mark.filterwarnings("ignore")
@make_all
def test_compiled_steps_notice_a_new_p(make):
    model, eager = network(), network()
    optimizer, reference = (make(m.parameters(), p=1.5, lr=torch.tensor(1e-3)) for m in (model, eager))
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend="eager")  # what is noticed does not depend on the code made
    for k, p in enumerate((1.5, 1.5, 3, 3)):
        for m, o, advance in ((model, optimizer, step), (eager, reference, reference.step)):
            o.param_groups[0]["p"] = p
            m.zero_grad()
            m(torch.full((2, 8), float(k))).square().sum().backward()
            advance()
    for a, b in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1.0, 0.5, "1.1", None])
@make_all
def test_a_wrong_new_p_is_refused(make, p):
    model = network()
    optimizer = make(model.parameters())
    fit(model, optimizer, range(1))
    before = copy.deepcopy(model)
    optimizer.param_groups[0]["p"] = p
    with pytest.raises(AttsvmError, match="p must be a number with 1 < p < inf"):
        fit(model, optimizer, range(1, 2))
    assert same(model, before)


def test_a_wrong_new_normalize_is_refused():
    model = network()
    optimizer = MirrorDescent(model.parameters())
    fit(model, optimizer, range(1))
    optimizer.param_groups[0]["normalize"] = "matrix"
    with pytest.raises(AttsvmError, match="normalize must be None"):
        fit(model, optimizer, range(1, 2))


@make_all
def test_weights_that_a_large_p_sets_to_0_are_reported(make):
    torch.manual_seed(0)
    w = nn.Parameter(0.02 * torch.randn(1000))
    w.grad = torch.ones(1000)
    with pytest.warns(UserWarning, match=r"of 1000 weights .* p = 30, and the step sets them to 0: choose a smaller p"):
        make([w], p=30).step()
    v = nn.Parameter(torch.tensor([0.1, 0.0, -0.2, 1e-7]))  # what is 0 or hardly more goes without a word
    v.grad = torch.zeros(4)
    optimizer = make([v], p=10, lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    optimizer.param_groups[0]["p"] = 80
    with pytest.warns(UserWarning, match="2 of 4 weights"):
        optimizer.step()
