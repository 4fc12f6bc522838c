"""What is captured is what networks compute: their own eager logits, whatever rotates, normalises or biases them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attsvm
from attsvm.captures import Attended, affine, capture
from attsvm.models import GPT, TextTransformer, ViT

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = {key: SIZES[key] for key in list(SIZES)[:4]} | {"image_size": 8, "patch_size": 4}
IDS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(0))
SEEN = torch.ones_like(IDS).index_put((torch.tensor([1, 1]), torch.tensor([7, 8])), torch.tensor(0))
TEXT = {"input_ids": IDS, "attention_mask": SEEN}
PIXELS = {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))}
BOTH = TEXT | {"decoder_input_ids": IDS, "decoder_attention_mask": SEEN}
SOUND = {"input_features": torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(2)), "decoder_input_ids": IDS}

DEBERTA = SIZES | {
    "relative_attention": True,
    "position_buckets": 4,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
    "position_biased_input": False,
}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 40, **SPECIAL}
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
CLIP = {"text_config": SIZES | SPECIAL | {"projection_dim": 8}, "vision_config": IMAGES | {"projection_dim": 8}}
WHISPER = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in
           (("layers", 2), ("attention_heads", 4), ("ffn_dim", 24))} | {
    "d_model": 16, "vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20,
    "decoder_start_token_id": 1, **SPECIAL}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], dict[str, Tensor], int]] = {
    "Bert": (SIZES, TEXT, 2),
    "Roberta": (SIZES | {"pad_token_id": 1}, TEXT, 2),
    "DebertaV2": (DEBERTA, TEXT, 2),
    "GPT2": (GPT2, TEXT, 2),
    "Llama": (GROUPED, TEXT, 2),
    "Mistral": (GROUPED | {"sliding_window": 4}, TEXT, 2),
    "Qwen2": (GROUPED, TEXT, 2),
    "Qwen3": (GROUPED | {"head_dim": 4}, TEXT, 2),  # normalises queries and keys
    "Gemma": (GROUPED | {"head_dim": 4}, TEXT, 2),
    "T5": (T5, BOTH, 6),
    "Bloom": ({"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": 50}, TEXT, 2),  # ALiBi, fused by heads
    "XLNet": ({"d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24, "vocab_size": 50}, TEXT, 2),  # by einsum
    "ViT": (IMAGES, PIXELS, 2),
    "CLIP": (CLIP, TEXT | PIXELS, 4),
    "Whisper": (WHISPER, SOUND, 6),
}


def built(name: str, attention: str | None = None) -> tuple[nn.Module, dict[str, Tensor]]:
    """A network with weights so large that attention differs between tokens."""
    sizes, inputs, _ = MODELS[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn_like(weight) * 0.5)
            elif weight.ndim == 1:
                weight.add_(0.1 * torch.randn_like(weight))
    if attention is not None and name != "XLNet":
        model.set_attn_implementation(attention)
    return model, inputs


@contextmanager
def eager_logits() -> Iterator[list[Tensor]]:
    """What any softmax over (batch, heads, queries, keys) is given."""
    found: list[Tensor] = []
    softmax = F.softmax

    def look(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.ndim == 4:
            found.append(x.detach())
        return softmax(x, *args, **kwargs)

    F.softmax = nn.functional.softmax = look
    try:
        yield found
    finally:
        F.softmax = nn.functional.softmax = softmax


def captured(run: Callable[[], Any], model: nn.Module) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    with torch.no_grad(), capture(model, lambda attended: found.append((attended.name, attended.logits()))):
        run()
    return found


def assert_same(logits: Tensor, expected: Tensor) -> None:
    """Equal where tokens are seen; hidden ones are −inf here and very low there. Padding that sees nothing is left."""
    hidden = expected <= torch.finfo(expected.dtype).min / 2
    some = ~hidden.all(-1) & logits.isfinite().any(-1)
    assert bool(some[0].all())
    assert torch.equal(hidden[some], logits[some] == -torch.inf)
    torch.testing.assert_close(logits[some][~hidden[some]], expected[some][~hidden[some]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # in DeBERTa
def test_logits_are_those_of_the_eager_model(name: str) -> None:
    """In float64: in float32 the eager and the fused model differ by more than 1e-5 themselves, on some machines."""
    fused, eager = (built(name, attention)[0].double() for attention in (None, "eager"))
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in MODELS[name][1].items()}
    with torch.no_grad(), eager_logits() as expected:
        eager(**inputs)
    assert len(expected) == MODELS[name][2]
    for model in (fused, eager):
        found = captured(lambda model=model: model(**inputs), model)
        assert len({name for name, _ in found}) == len(expected)
        for (_, logits), own in zip(found, expected, strict=True):
            assert_same(logits, own)


def test_a_captured_forward_pass_is_the_same() -> None:
    model, inputs = built("Llama")
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
        with capture(model, lambda attended: None):
            seen = model(**inputs).last_hidden_state
        assert torch.equal(plain, seen)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", ["GPT", "TextTransformer", "ViT"])
def test_own_models(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "ViT":
        model: Any = ViT(size=8, patch=4, width=16, hidden=16, layers=2, heads=4).eval()
        inputs: tuple[Tensor, ...] = (PIXELS["pixel_values"],)
    elif kind == "GPT":
        model = GPT(vocabulary=50, length=16, width=16, layers=2, heads=4).eval()
        inputs = (IDS,)
    else:
        model = TextTransformer(vocabulary=50, length=16, width=16, hidden=16, layers=2).eval()
        inputs = (IDS, SEEN.sum(1))
    with torch.no_grad():
        _, maps = model.attention(*inputs)
    for run in (model.attention, model):
        found = captured(lambda run=run: run(*inputs), model)
        assert [name for name, _ in found] == ["blocks.0", "blocks.1"]
        for (_, logits), weights in zip(found, maps):
            queries = logits.shape[2]  # of the last layer, forward computes the first query alone
            torch.testing.assert_close(logits.softmax(-1), weights[:, :, :queries], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_torch_multi_head_attention(need_weights: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    hide = torch.zeros(2, 7, dtype=torch.bool).index_put((torch.tensor(1), torch.tensor(6)), torch.tensor(True))
    given = (x, y, y) if batch_first else tuple(part.transpose(0, 1) for part in (x, y, y))
    with torch.no_grad():
        _, weights = module(*given, key_padding_mask=hide, average_attn_weights=False)
        found = captured(lambda: module(*given, key_padding_mask=hide, need_weights=need_weights), module)
    assert len(found) == 1
    torch.testing.assert_close(found[0][1].softmax(-1), weights, rtol=1e-5, atol=1e-6)


def test_fast_path_of_an_encoder_layer_is_seen() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    assert [name for name, _ in captured(lambda: layer(torch.randn(2, 5, 16)), layer)] == ["self_attn"]


class TimmAttention(nn.Module):
    """Attention as timm's vision transformers write it, with normalised queries and keys."""

    def __init__(self, dim: int, heads: int, norm: bool, fused: bool) -> None:
        super().__init__()
        self.num_heads, self.scale, self.fused_attn = heads, (dim // heads) ** -0.5, fused
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = nn.LayerNorm(dim // heads) if norm else nn.Identity()
        self.k_norm = nn.LayerNorm(dim // heads) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1) @ v
        return x.transpose(1, 2).reshape(B, N, C)


@pytest.mark.parametrize("fused", [False, True])
def test_weights_of_a_head_in_the_space_of_tokens(fused: bool) -> None:
    torch.manual_seed(0)
    module, x = TimmAttention(15, 3, norm=False, fused=fused), torch.randn(2, 5, 15)
    data, W = attsvm.TokenData.from_attention(module, x, head=2)
    expected = captured(lambda: module(x), module)[0][1][:, 2]
    torch.testing.assert_close(data.logits(W)[0].float(), expected, rtol=1e-4, atol=1e-5)
    rows = torch.cat([module.qkv.weight, module.qkv.bias[:, None]], 1).detach().double()
    torch.testing.assert_close(W, rows[15 + 10 : 30].mT @ rows[10:15] / 5**0.5, rtol=1e-4, atol=1e-5)


def test_normalised_queries_have_weights_in_the_space_of_the_head_alone() -> None:
    torch.manual_seed(0)
    module, x = TimmAttention(16, 4, norm=True, fused=True), torch.randn(2, 5, 16)
    with pytest.raises(attsvm.AttsvmError, match='take space="head"'):
        attsvm.TokenData.from_attention(module, x)
    data, W = attsvm.TokenData.from_attention(module, x, head=1, space="head")
    expected = captured(lambda: module(x), module)[0][1][:, 1]
    torch.testing.assert_close(data.logits(W)[0].float(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "GPT2", "torch"])
def test_from_attention_reads_every_convention(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    if name == "torch":
        module, inputs = nn.MultiheadAttention(16, 4, batch_first=True), {}
        run: Callable[[], Any] = lambda: module(x, x, x)  # noqa: E731
    else:
        model, _ = built(name)
        module = next(m for m in model.modules() if type(m).__name__ in ("BertSelfAttention", "GPT2Attention"))
        inputs = {}
        run = lambda: module(x)  # noqa: E731
    data, W = attsvm.TokenData.from_attention(module, x, head=3, **inputs)
    expected = captured(run, module)[0][1][:, 3]
    torch.testing.assert_close(data.logits(W)[0].float(), expected, rtol=1e-4, atol=1e-4)


def test_rotated_maps_meet_at_distance_zero() -> None:
    """A_kᵀ A_q at one token is W_kᵀ W_q, since both are rotated alike."""
    model, inputs = built("Llama")
    found: list[Attended] = []
    with torch.enable_grad(), capture(model, found.append, differentiable=True):
        model(**inputs)
    A_q, _, A_k, _ = affine(found[1], token=3)
    attention = model.layers[1].self_attn
    for head in range(4):
        W_q = attention.q_proj.weight[4 * head : 4 * head + 4]
        W_k = attention.k_proj.weight[4 * (head // 2) : 4 * (head // 2) + 4]
        torch.testing.assert_close(A_k[head].mT @ A_q[head], (W_k.mT @ W_q).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "alike"), [("Bert", True), ("GPT2", True), ("Llama", False), ("Qwen3", False)])
def test_whether_one_W_makes_the_logits_of_all_tokens(name: str, alike: bool) -> None:
    found = attsvm.audit(built(name)[0], None, [IDS[0].tolist()], norms=["l2"], selects=0.0)
    for head in found.heads:
        assert head.one_W == alike
        assert ("tokens" in head.problems) == alike


def test_a_kernel_that_is_not_seen_is_left_for_one_that_is() -> None:
    """The audit of a model with Flash attention runs beside it, and gives it back."""

    def unseen(*_: Any, **__: Any) -> None:
        raise AssertionError("this kernel has no numbers to show")

    transformers.AttentionInterface.register("own_flex", unseen)
    expected = attsvm.audit(built("Llama")[0], None, [IDS[0].tolist()], norms=[])
    model, _ = built("Llama")
    model.config._attn_implementation = "own_flex"
    found = attsvm.audit(model, None, [IDS[0].tolist()], norms=[])
    assert model.config._attn_implementation == "own_flex"
    assert [head.measures for head in found.heads] == [head.measures for head in expected.heads]


def test_texts_are_cut_to_the_positions_that_a_model_has() -> None:
    """RoBERTa counts its positions from behind that of the padding: of 40 it has 38 for tokens."""
    model, _ = built("Roberta")
    found = attsvm.audit(model, None, [[5] * 60], norms=[])
    assert found.tokens == 38
    with pytest.raises(attsvm.AttsvmError, match=r"length must be a whole number in 2\.\.38"):
        attsvm.audit(model, None, [[5] * 60], norms=[], length=39)
    with pytest.raises(attsvm.AttsvmError, match="cannot read these tokens"):
        attsvm.audit(model, None, [[50]], norms=[])
    with pytest.raises(attsvm.AttsvmError, match="pad on the right"):
        attsvm.audit(model, None, [{"input_ids": IDS, "attention_mask": SEEN.flip(1)}], norms=[])


def test_what_from_attention_refuses() -> None:
    x = torch.randn(2, 5, 16)
    with pytest.raises(attsvm.AttsvmError, match="one softmax attention, but 0 were seen"):
        attsvm.TokenData.from_attention(nn.Linear(16, 16), x)
    with pytest.raises(attsvm.AttsvmError, match="shape \\(n, T, d\\)"):
        attsvm.TokenData.from_attention(nn.Linear(16, 16), x[0])
    module = nn.MultiheadAttention(16, 4, batch_first=True)
    with pytest.raises(attsvm.AttsvmError, match="a bias"):
        attsvm.TokenData.from_attention(module, x, attn_mask=torch.randn(5, 5))
    with pytest.raises(attsvm.AttsvmError, match="head"):
        attsvm.TokenData.from_attention(module, x, head=4)


def test_from_attention_inside_inference_mode() -> None:
    module, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    data, W = attsvm.TokenData.from_attention(module, x)
    with torch.inference_mode():
        inside, W_inside = attsvm.TokenData.from_attention(module, x.clone())
    assert torch.equal(inside.X, data.X)
    assert torch.equal(W_inside, W)
