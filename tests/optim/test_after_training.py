"""Reports, one-shot pruning and files of sparse models."""

import math

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from safetensors import safe_open
from torch import nn

from attsvm.errors import AttsvmError
from attsvm.models import GPT
from attsvm.optim import export, load_export, prune, sparsity_report


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=50, length=16, width=32, layers=2, heads=4)


def matrices(model: GPT) -> list[torch.Tensor]:
    return [getattr(block, name).weight for block in model.blocks for name in ("qkv", "out", "expand", "contract")]


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_the_smallest_entries_of_the_matrices_go(share, scope):
    model, before = gpt(), matrices(gpt())
    masks = prune(model, share, scope=scope)
    zeros = torch.cat([w.flatten() for w in matrices(model)]) == 0
    assert zeros.double().mean() == pytest.approx(share, abs=1e-3)
    assert len(masks) == 8
    assert (model.words.weight != 0).all()
    for w, old in zip(matrices(model), before):
        assert torch.equal(w[w != 0], old[w != 0])
        if scope == "layer":
            assert (w == 0).double().mean() == pytest.approx(share, abs=1e-3)
    if share:
        flat = torch.cat([w.flatten().abs() for w in before])
        if scope == "global":
            assert flat[zeros].max() <= flat[~zeros].min()


def test_inputs_weigh_the_entries_of_a_row():
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 3))
    x = torch.tensor([[40.0, 1.0, 1.0, 1.0]])
    prune(model, 0.5, inputs=[x, x])
    assert model[0].weight.tolist() == [[1.0, 0.0, 0.0, 4.0]] * 3  # 40, 2, 3, 4
    with pytest.raises(AttsvmError, match="at least one batch"):
        prune(model, 0.5, inputs=[])


def test_masks_of_torch_keep_zeros_in_a_further_training():
    model = gpt()
    prune(model, 0.8, keep_masks=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randint(50, (2, 16))).square().mean().backward()
    optimizer.step()
    used = [getattr(block, name) for block in model.blocks for name in ("qkv", "out", "expand", "contract")]
    model(torch.randint(50, (2, 16)))
    assert torch.cat([module.weight.flatten() for module in used]).eq(0).double().mean() == pytest.approx(0.8, abs=1e-3)
    assert torch_prune.is_pruned(model)


def test_the_report_sees_masks_and_asks_for_heads_that_are_there():
    model = gpt()
    prune(model, 0.75, keep_masks=True)
    found = sparsity_report(model, heads=4)
    assert found.zeros == pytest.approx(0.75, abs=1e-3)
    assert [row.name for row in found.rows if row.heads] == ["blocks.0.qkv.weight", "blocks.1.qkv.weight"]
    for row in found.rows:
        assert sum(row.heads) / max(len(row.heads), 1) == pytest.approx(row.zeros if row.heads else 0, abs=1e-5)
    for wrong, what in ((5, "no matrix has 5"), (0, "heads must be")):
        with pytest.raises(AttsvmError, match=what):
            sparsity_report(model, heads=wrong)


def test_a_tied_weight_is_masked_wherever_it_is():
    a, b = nn.Linear(6, 6), nn.Linear(6, 6)
    b.weight = a.weight
    masks = prune(nn.Sequential(a, b), 0.5, keep_masks=True)
    assert len(masks) == 1
    assert torch.equal(a.weight, b.weight)
    assert (b.weight == 0).double().mean() == 0.5


def test_inputs_weigh_masked_layers_and_modes_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model[1].eval()  # frozen, in a model that trains
    batches = [torch.randn(5, 6) for _ in range(4)]
    prune(model, 0.5, keep_masks=True)
    prune(model, 0.75, inputs=batches)
    assert [m.training for m in model] == [True, False, True]
    for layer, kept in ((model[0], 2), (model[2], 2)):  # of 6 and of 8 entries in a row
        assert ((layer.weight_orig != 0).sum(1) == kept).all()
    single = nn.Linear(4, 3)
    prune(single, 0.5, inputs=[torch.tensor([1.0, 10.0, 1.0, 10.0])])
    assert (single.weight[:, 1::2] != 0).sum() >= 3


def test_a_report_of_nothing():
    assert sparsity_report(nn.ModuleList([nn.Linear(3, 3, bias=False)])).zeros == 0
    empty = nn.Module()
    empty.register_parameter("weight", nn.Parameter(torch.ones(4, 0)))
    assert sparsity_report(empty).zeros == 0
    empty.weight = nn.Parameter(torch.zeros(2, 2))
    assert sparsity_report(empty).rows == (("weight", (2, 2), 1.0, 0.0, 0.0, ()),)


def test_the_report_counts_zeros_spread_and_cost():
    model = gpt()
    with torch.no_grad():
        model.blocks[0].qkv.weight.view(3, 4, 8, 32)[:, 2] = 0
        model.blocks[1].out.weight.fill_(1.0)
    report = sparsity_report(model, heads=4, further=0.25)
    rows = {row.name: row for row in report.rows}
    assert rows["blocks.0.qkv.weight"].heads == (0, 0, 1, 0)
    assert rows["blocks.0.qkv.weight"].zeros == 0.25
    assert rows["blocks.1.out.weight"].gini == pytest.approx(0, abs=1e-12)
    assert rows["blocks.1.out.weight"].cut == pytest.approx(0.5)  # a quarter of equal entries
    flat = torch.cat([w.flatten() for w in matrices(model)])
    assert report.zeros == (flat == 0).double().mean()
    # Gini by its definition, the mean difference of pairs over twice the mean.
    x = model.blocks[0].out.weight.detach().abs().flatten().double()
    gini = (x[:, None] - x[None]).abs().mean() / (2 * x.mean())
    assert rows["blocks.0.out.weight"].gini == pytest.approx(gini.item())
    assert "all: " in str(report)


class Conv1D(nn.Module):
    """As in GPT-2: inputs × outputs."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))


def test_heads_are_counted_where_they_lie():
    linear = nn.Linear(8, 16, bias=False)  # four heads of four: more outputs than inputs, and not packed
    keys = nn.Linear(8, 8, bias=False)  # two heads, shared by the queries
    model = nn.ModuleDict({"attn": nn.ModuleDict({"c_attn": Conv1D(8, 24)})})
    model["shared"] = nn.ModuleDict({"q_proj": linear, "k_proj": keys})
    model["mixed"] = nn.ModuleDict({"query_key_value": nn.Linear(8, 24, bias=False)})
    with torch.no_grad():
        model["attn"]["c_attn"].weight.view(8, 3, 4, 2)[:, :, 1] = 0
        linear.weight[8:12] = 0
    rows = {row.name: row.heads for row in sparsity_report(model, heads=4).rows}
    assert rows == {
        "attn.c_attn.weight": (0, 1, 0, 0),
        "shared.q_proj.weight": (0, 0, 1, 0),
        "shared.k_proj.weight": (),
        "mixed.query_key_value.weight": (),  # its heads may alternate
    }


def test_columns_of_the_report_stay_below_each_other():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[0].weight)
    lines = str(sparsity_report(model)).splitlines()[:3]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("content", [None, b"", b"x" * 100])
def test_what_is_no_export_is_named(tmp_path, content):
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AttsvmError, match=r"model\.safetensors cannot be read as weights that export wrote: \S"):
        load_export(path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_hold_every_weight(tmp_path, compressed, dtype):
    model = gpt().to(dtype)
    prune(model, 0.95)
    size = export(model, tmp_path / "model.safetensors", compressed=compressed)
    found = load_export(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:  # by "pt" transformers knows a plain file
        assert file.metadata()["format"] == ("attsvm bitmap 1" if compressed else "pt")
    state = model.state_dict()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == dtype for name, value in state.items())
    dense = sum(value.numel() * value.element_size() for value in state.values())
    pruned = sum(w.numel() for w in matrices(model))
    if compressed:  # a bit for each entry, and the entries that are left
        assert size < dense - pruned * dtype.itemsize * 0.95 + pruned / 8 + 4000
    else:
        assert size >= dense


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.complex64],
    ids=str,
)
def test_files_hold_every_bit_of_any_dtype_shape_and_layout(tmp_path, compressed, dtype):
    generator = torch.Generator().manual_seed(0)
    model = nn.Module()
    shapes = {"matrix": (16, 24), "kernel": (3, 5, 7), "image": (4, 3, 2, 2), "odd": (3, 3), "row": (0, 4), "one": ()}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.1)
        least = 2.0**-127 if dtype == torch.float8_e8m0fnu else 0.0  # its smallest number, of no bits
        setattr(model, name, nn.Parameter((value.abs() + (value == 0) * least).to(dtype)))
    model.matrix = nn.Parameter(model.matrix.detach().t())
    model.image = nn.Parameter(model.image.detach().contiguous(memory_format=torch.channels_last))
    model.tied = model.matrix
    model.register_buffer("count", torch.tensor([[0, 3]]))
    state = model.state_dict()
    assert export(model, tmp_path / "model", compressed=compressed) == (tmp_path / "model").stat().st_size
    found = load_export(tmp_path / "model")
    assert found.keys() == state.keys()
    assert (b"kernel.bits" in (tmp_path / "model").read_bytes()) == (compressed and not dtype.is_complex)
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert bytes_of(found[name]) == bytes_of(value)


def bytes_of(value: torch.Tensor) -> list[int]:
    return value.detach().contiguous().view(-1).view(torch.uint8).tolist()


def test_a_bitmap_that_does_not_fit_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    model = nn.Linear(8, 8, bias=False)
    prune(model, 0.9)
    export(model, tmp_path / "model", compressed=True)
    parts = load_file(tmp_path / "model")
    meta = {"format": "attsvm bitmap 1", "weight": "8,8"}
    for values, shape in ((parts["weight.values"][:1], "8,8"), (parts["weight.values"], "8,9"), (None, "8,8")):
        kept = {"weight.bits": parts["weight.bits"], **({} if values is None else {"weight.values": values})}
        save_file(kept, tmp_path / "damaged", metadata={**meta, "weight": shape})
        with pytest.raises(AttsvmError, match=r"damaged cannot be read as weights that export wrote: \S") as caught:
            load_export(tmp_path / "damaged")
        assert "\n" not in str(caught.value)


def test_weights_without_plain_values_are_refused(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    codes = nn.Linear(8, 8)
    codes.weight = nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False)
    small = nn.Linear(8, 8).to(torch.float8_e4m3fn)
    empty = nn.Linear(8, 8, device="meta")
    sparse = nn.Module()
    sparse.register_parameter("weight", nn.Parameter(torch.eye(4).to_sparse()))
    exact = nn.Linear(8, 8, dtype=torch.complex128)

    def write(model: nn.Module) -> int:
        return export(model, tmp_path / "model", compressed=True)

    for call, model, what in (
        (lambda model: prune(model, 0.5), codes, "before quantising"),
        (sparsity_report, codes, "before quantising"),
        (lambda model: prune(model, 0.5), small, "before quantising"),
        (lambda model: prune(model, 0.5), empty, "meta device"),
        (sparsity_report, empty, "meta device"),
        (write, empty, "meta device"),
        (write, Extra(4, 4), "_extra_state must be a tensor"),
        (write, sparse, r"weight is torch\.sparse_coo"),
        (write, nn.LazyLinear(4), "weight has no shape yet"),
        (lambda model: prune(model, 0.5, inputs=5), exact, "inputs must be batches"),
        (write, exact, r"tensors of torch\.complex128"),
    ):
        with pytest.raises(AttsvmError, match=what):
            call(model)
    assert not list(tmp_path.iterdir())
    assert sparsity_report(small).zeros < 0.1
    assert write(codes) > 64


def test_parametrized_weights_are_reported_as_they_are_used():
    for wrap, share in ((nn.utils.parametrizations.weight_norm, 0.5), (nn.utils.parametrizations.spectral_norm, 0.5)):
        model = nn.Sequential(wrap(nn.Linear(8, 8)))
        prune(model, share)
        assert sparsity_report(model).zeros == (model[0].weight == 0).double().mean() == share
    model = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    with pytest.warns(UserWarning, match=r"original has zeros, but what is made of it has none there: remove"):
        prune(model, 0.5)
    assert sparsity_report(model).zeros == (model.weight == 0).double().mean() < 0.1


@pytest.mark.parametrize("inputs", [None, [torch.linspace(-3, 3, 40).view(5, 8).sin()]], ids=["by size", "by inputs"])
def test_parametrized_weights_are_cut_as_they_are_used(inputs):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.utils.parametrizations.spectral_norm(nn.Linear(n, 12)) for n in (8, 12))).eval()
    with torch.no_grad():
        model[0].parametrizations.weight.original.mul_(100)  # which its norm takes out again
    plain = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 12))
    for layer, like in zip(plain, model):
        layer.load_state_dict({"weight": like.weight, "bias": like.bias})
    masks = zip(prune(model, 0.5, inputs=inputs).values(), prune(plain, 0.5, inputs=inputs).values())
    assert all(torch.equal(*pair) for pair in masks)


def test_nan_is_not_reported_as_0():
    model = nn.Linear(4, 4)
    model.weight.data[0, 0] = torch.nan
    row = sparsity_report(model).rows[0]
    assert math.isnan(row.gini)
    assert math.isnan(row.cut)


def test_complex_weights_go_by_their_size():
    model = nn.Linear(2, 2, bias=False, dtype=torch.complex64)
    model.weight.data = torch.tensor([[3j, 1.0], [2.0, 0.5 + 0.5j]])
    prune(model, 0.5)
    assert (model.weight == torch.tensor([[3j, 0], [2.0, 0]])).all()
    assert sparsity_report(model).rows[0].gini == pytest.approx(0.55)


def test_masked_weights_are_written_as_they_are_used(tmp_path):
    model = gpt()
    prune(model, 0.5, keep_masks=True)
    export(model, tmp_path / "model.safetensors")
    plain = gpt()
    plain.load_state_dict(load_export(tmp_path / "model.safetensors"))
    tokens = torch.randint(50, (2, 16))
    torch.testing.assert_close(plain(tokens), model(tokens))


@pytest.mark.parametrize("options", [{"sparsity": 1.0}, {"sparsity": "x"}, {"sparsity": 0.5, "scope": "row"}])
def test_options_are_checked(options):
    with pytest.raises(AttsvmError, match="must be"):
        prune(gpt(), **options)


def test_what_has_no_meaning_is_refused(tmp_path):
    for call in (lambda m: prune(m, 0.5), sparsity_report, lambda m: export(m, tmp_path / "model.safetensors")):
        for wrong in ([1], {}):
            with pytest.raises(AttsvmError, match=r"model must be a torch.nn.Module, but got a"):
                call(wrong)
    with pytest.raises(AttsvmError, match="must have a matrix"):
        prune(nn.LayerNorm(4), 0.5)
    with pytest.raises(AttsvmError, match="scope is for cuts by size"):
        prune(gpt(), 0.5, inputs=[torch.zeros(1, 4, dtype=torch.long)], scope="layer")
    for further in (2, -0.5, "a", None):
        with pytest.raises(AttsvmError, match="further must be a share, from 0 to 1, but got"):
            sparsity_report(gpt(), further=further)


def test_masks_of_torch_count_as_zeros():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 6)), torch.randn(5, 12)
    x[:, 3:6] = 0  # inputs that are silent
    for share, asked in ((0.5, {"inputs": [x]}), (0.5, {}), (0.5, {"inputs": [x]}), (0.75, {}), (0.25, {})):
        masks = prune(model, share, keep_masks=True, **asked)
        assert masks.keys() == {"0.weight", "1.weight"}
        assert sparsity_report(model).zeros == max(share, 0.75 * (share == 0.25))
        assert all(torch.equal(mask, model[i].weight != 0) for i, mask in enumerate(masks.values()))


def test_a_layer_may_be_called_by_name():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(input=x)

    model = Named()
    prune(model, 0.5, inputs=[torch.tensor([[100.0, 0.0, 100.0, 0.0]])])
    assert (model.layer.weight != 0).tolist() == [[True, False] * 2] * 3


def test_a_matrix_of_no_linear_layer_loses_its_smallest_entries():
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.weight = nn.Parameter(torch.arange(1.0, 13.0).reshape(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) @ self.weight

    model = Product()
    masks = prune(model, 0.25, inputs=[torch.ones(2, 4)])
    assert masks["weight"].sum(1).tolist() == [0, 3, 3, 3]
    assert (masks["first.weight"].sum(1) == 3).all()
