"""What is pruned as one, and how much of it."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from attsvm.errors import AttsvmError
from attsvm.optim import GradualPruning, MirrorMuon, from_torch
from attsvm.optim._heads import heads_of


def cut(weights: list[torch.Tensor], share: float, names: list[str] | None = None, **options) -> list[torch.Tensor]:
    """The weights after one cut."""
    params = [nn.Parameter(weight.clone()) for weight in weights]
    named = list(zip(names, params)) if names else params
    GradualPruning(SGD(params, lr=0.1), share, 10, start=0.0, end=0.0, params=named, **options)
    return [param.detach() for param in params]


@pytest.mark.parametrize("shape", [(8, 30), (8, 30, 1), (8, 5, 6)])
def test_rows_of_any_length_count_by_their_entries(shape) -> None:
    generator = torch.Generator().manual_seed(0)
    narrow, wide = 0.01 * torch.rand(8, 2, generator=generator), torch.rand(8, 30, generator=generator)
    wide *= torch.arange(1.0, 9.0)[:, None]
    found = cut([narrow, wide.view(shape)], 0.5, structure="row")
    assert not found[0].any()
    assert (
        found[1].flatten(1).any(1).tolist() == [False] * 3 + [True] * 5
    )  # 16 + 90 of 128 entries: a fourth row is too much


@pytest.mark.parametrize("wanted", [1, 2, 7, 16, 18])
def test_entries_of_two_of_four_go_one_by_one(wanted) -> None:
    weight = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    param = nn.Parameter(weight.clone())
    optimizer = SGD([param], lr=0.0)
    pruning = GradualPruning(optimizer, 0.5, 10, params=[param], structure="2:4", start=0.0, end=1.0)
    pruning._prune(wanted / 36)
    smaller = weight.abs().unflatten(1, (-1, 4)).sort(-1).values[..., :2].flatten().sort().values
    assert param.detach().eq(0).sum() == wanted
    assert torch.equal(weight[param == 0].abs().sort().values, smaller[:wanted])


def test_changes_are_fifty_steps_apart_or_a_tenth_of_the_way() -> None:
    param = nn.Parameter(torch.randn(4, 4))
    for steps, every in ((10000, 50), (1000, 50), (200, 11), (10, 1)):
        assert GradualPruning(SGD([param], lr=0.1), 0.5, steps, params=[param]).every == every


@pytest.mark.parametrize("regrow", [0.0, 0.3])
def test_the_last_change_is_at_the_end_whatever_steps_are_between_changes(regrow) -> None:
    param = nn.Parameter(torch.randn(10, 10))
    optimizer = SGD([param], lr=0.01)
    pruning = GradualPruning(optimizer, 0.83, 20, start=0.1, end=0.8, every=5, regrow=regrow, params=[param])
    zeros = []
    for _ in range(20):
        param.grad = torch.randn(10, 10)
        optimizer.step()
        pruning.step()
        zeros.append(int((~pruning.masks().get(param, torch.ones(1, dtype=torch.bool))).sum()))
    assert zeros[14] == round(100 * pruning.scheduled(12)) < 83
    assert zeros[15:] == [83] * 5


def test_pruning_ends_with_the_training_and_one_newton_schulz_step_is_a_step() -> None:
    param = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(AttsvmError, match="start and end must be shares of the training"):
        GradualPruning(SGD([param], lr=0.1), 0.5, 10, end=1.5, params=[param])
    assert MirrorMuon([param], ns_steps=1).param_groups[0]["ns_steps"] == 1
    model = nn.Linear(4, 4)
    assert from_torch(SGD(model.parameters(), lr=0.1), model).param_groups[0]["p"] == 1.1


@pytest.mark.parametrize(
    ("name", "shape", "parts", "across"),
    [
        ("attn.to_kv.weight", (16, 8), 2, False),
        ("attn.qk.weight", (8, 16), 2, True),
        ("attn.to_qkv.weight", (24, 8), 3, False),
        ("attn.c_attn.weight", (8, 24), 3, True),
        ("attn.in_proj_weight", (24, 8), 3, False),
        ("attn.q_proj.base_layer.weight", (8, 8), 1, False),
        ("attn.q_proj_weight", (8, 24), 1, False),
        ("attn.add_k_proj.weight", (8, 8), 1, False),
    ],
)
def test_where_heads_lie(name, shape, parts, across) -> None:
    weight = torch.arange(float(shape[0] * shape[1])).view(shape)
    found = heads_of(name, weight, 4)
    assert found is not None
    assert (found.parts, found.across, found.outputs) == (parts, across, 8)
    rows = weight.t() if across else weight
    for head in range(4):
        mine = torch.cat([rows[8 * part + 2 * head : 8 * part + 2 * head + 2] for part in range(parts)])
        assert torch.equal(found.blocks()[:, head].flatten().sort().values, mine.flatten().sort().values)
        marks = found.spread(torch.arange(4) == head)
        assert torch.equal(weight[marks].sort().values, mine.flatten().sort().values)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("attn.to_kv.weight", (24, 8)),
        ("attn.to_qkv.weight", (16, 8)),
        ("attn.q_proj.weight", (6, 8)),
        ("attn.q_proj.weight", (8, 8, 1)),
        ("attn.out_proj.weight", (8, 8)),
        ("attn.query_key_value.weight", (24, 8)),
    ],
)
def test_where_heads_cannot_be_told(name, shape) -> None:
    assert heads_of(name, torch.zeros(shape), 4) is None
