"""Attention heads that are pruned as a whole: their part of queries, keys and values."""

import pytest
import torch
from torch import nn

from attsvm.errors import AttsvmError
from attsvm.optim import GradualPruning, MirrorAdam, param_groups


@pytest.mark.parametrize("packed", [True, False])
def test_heads_go_as_a_whole(packed):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, kdim=None if packed else 16, vdim=None if packed else 16)
    if not packed:
        model = nn.ModuleDict({name: nn.Linear(16, 16) for name in ("q_proj", "k_proj", "v_proj", "out")})
    optimizer = MirrorAdam(param_groups(model))
    pruning = GradualPruning(optimizer, 0.5, 10, start=0.1, end=0.5, every=1, structure="head", heads=4)
    for _ in range(10):
        for param in model.parameters():
            param.grad = torch.randn_like(param)
        optimizer.step()
        pruning.step()
    matrices = [model.in_proj_weight] if packed else [model[n].weight for n in ("q_proj", "k_proj", "v_proj")]
    gone = torch.cat([m.view(-1, 4, 4, 16) for m in matrices]).eq(0).all((2, 3))
    assert (gone == gone[:1]).all()  # the same heads of queries, keys and values
    assert gone[0].sum() == 2
    out = model.out_proj.weight if packed else model["out"].weight
    assert (out != 0).all()


def pruned_heads(model, **options):
    optimizer = MirrorAdam(param_groups(model))
    return GradualPruning(optimizer, 0.5, 10, initial=0.5, start=0, structure="head", heads=4, **options)


def test_heads_of_layers_of_any_size_are_compared_by_their_entries():
    wide, narrow = (nn.MultiheadAttention(width, 4) for width in (32, 16))
    with torch.no_grad():
        wide.in_proj_weight.fill_(0.5)
        narrow.in_proj_weight.fill_(1.0)
    pruned_heads(nn.ModuleList([wide, narrow]))  # 0.5 of all entries: of the wide layer's, which are four fifths
    assert (wide.in_proj_weight == 0).any()
    assert (narrow.in_proj_weight != 0).all()


def test_heads_of_gpt2_are_columns():
    torch.manual_seed(0)
    model = nn.ModuleDict({"attn": nn.ModuleDict({"c_attn": nn.Linear(48, 16, bias=False), "conv": nn.Linear(4, 4)})})
    pruned_heads(model)
    gone = model["attn"]["c_attn"].weight.view(16, 3, 4, 4).eq(0)
    assert (gone == gone[:1, :1, :, :1]).all()  # all inputs, of queries, keys and values, all entries of a head
    assert gone[0, 0, :, 0].sum() == 2
    assert (model["attn"]["conv"].weight != 0).all()  # its name has a v, but it has no heads


@pytest.mark.parametrize(
    ("matrices", "what"),
    [
        ({"q_proj": (16, 8), "k_proj": (8, 8)}, "as many heads of keys and values as of queries"),
        ({"query_key_value": (24, 8)}, "cannot tell 4 heads of attn.query_key_value.weight"),
        ({"q_proj": (6, 8), "k_proj": (6, 8)}, "cannot tell 4 heads of attn.q_proj.weight"),
        ({"other": (8, 8)}, "no query, key or value matrix"),
    ],
)
def test_heads_that_cannot_be_told_are_refused(matrices, what):
    layers = {name: nn.Linear(columns, rows) for name, (rows, columns) in matrices.items()}
    with pytest.raises(AttsvmError, match=what):
        pruned_heads(nn.ModuleDict({"attn": nn.ModuleDict(layers)}))
