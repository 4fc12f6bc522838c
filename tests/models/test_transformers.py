"""The transformers: fused and spelled out agree, padding is nothing, only what is read is computed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, gelu, layer_norm

from attsvm import AttsvmError
from attsvm.models import GPT, TextTransformer, ViT
from attsvm.models._attention import Places, attend_within


def text_model(layers: int = 2, **options) -> TextTransformer:
    torch.manual_seed(0)
    sizes = {"vocabulary": 50, "length": 12, "width": 12, "hidden": 20}
    return TextTransformer(layers=layers, **(sizes | options)).double().eval()


def image_model(**options) -> ViT:
    torch.manual_seed(0)
    sizes = {"size": 8, "patch": 4, "width": 12, "hidden": 16, "layers": 2, "heads": 3}
    return ViT(**(sizes | options)).double().eval()


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), layers=st.integers(1, 3), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_fused_and_spelled_out_text_agree(lengths: list[int], layers: int, seed: int) -> None:
    model = text_model(layers)
    tokens = torch.randint(50, (len(lengths), 12), generator=torch.Generator().manual_seed(seed))
    logits, maps = model.attention(tokens, torch.tensor(lengths))
    torch.testing.assert_close(model(tokens, torch.tensor(lengths)), logits)
    assert len(maps) == layers
    for weights in maps:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        for row, length in zip(weights, lengths):
            assert (row[..., length:] == 0).all()


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5), layers=st.integers(1, 3), spare=st.integers(0, 3))
@settings(deadline=None, max_examples=30)
def test_tokens_that_lie_one_behind_another_are_the_same(lengths: list[int], layers: int, spare: int) -> None:
    model, n = text_model(layers), torch.tensor(lengths)
    tokens = torch.randint(50, (len(lengths), 12), generator=torch.Generator().manual_seed(sum(lengths)))
    behind = torch.cat([row[:length] for row, length in zip(tokens, lengths)])
    places = Places.of(n, max(lengths) + spare, sum(lengths))
    torch.testing.assert_close(model(behind, places), model(tokens, n))
    assert places.sequence.tolist() == [i for i, length in enumerate(lengths) for _ in range(length)]
    assert places.position.tolist() == [t for length in lengths for t in range(length)]


@given(length=st.integers(1, 11), pad=st.integers(0, 5))
@settings(deadline=None, max_examples=20)
def test_padding_changes_no_logit(length: int, pad: int) -> None:
    model = text_model()
    tokens = torch.randint(50, (1, length), generator=torch.Generator().manual_seed(length))
    padded = torch.cat([tokens, torch.full((1, min(pad, 12 - length)), 7)], 1)
    alone = model(tokens, torch.tensor([length]))
    torch.testing.assert_close(model(padded, torch.tensor([length])), alone)


def test_gradients_of_both_forms_agree_and_reach_every_weight() -> None:
    model = text_model()
    tokens, lengths = torch.arange(24).view(2, 12), torch.tensor([12, 5])
    forms = (model(tokens, lengths), model.attention(tokens, lengths)[0])
    by_form = [torch.autograd.grad(logits[:, 1].sum(), list(model.parameters())) for logits in forms]
    for fused, plain in zip(*by_form):
        torch.testing.assert_close(fused, plain)
        assert fused.abs().max() > 0


def test_a_block_is_the_formula() -> None:
    model = text_model(1, dropout=0.5)
    tokens, lengths = torch.arange(12).view(1, 12), torch.tensor([12])
    block, x = model.blocks[0], model.words.weight[tokens[0]] + model.positions.weight
    W_q, W_k, W_v = block.qkv.weight.chunk(3)
    logits = (x @ W_q.T) @ (x @ W_k.T).T / 12**0.5
    x = layer_norm(x + logits.softmax(-1) @ x @ W_v.T @ block.out.weight.T, (12,))
    x = layer_norm(x + gelu(x @ block.expand.weight.T) @ block.contract.weight.T, (12,))
    torch.testing.assert_close(model(tokens, lengths)[0, 1], model.head.weight[0] @ x[0])


def test_two_classes_have_one_score_and_its_binary_cross_entropy() -> None:
    model = text_model()
    tokens, lengths, labels = torch.arange(24).view(2, 12), torch.tensor([12, 5]), torch.tensor([1, 0])
    logits = model(tokens, lengths)
    assert (logits[:, 0] == 0).all()
    torch.testing.assert_close(
        cross_entropy(logits, labels), binary_cross_entropy_with_logits(logits[:, 1], labels.double())
    )
    assert text_model(classes=3)(tokens, lengths).shape == (2, 3)


def test_dropout_is_there_in_training_alone() -> None:
    model = text_model(dropout=0.5).train()
    tokens, lengths = torch.arange(24).view(2, 12), torch.tensor([12, 5])
    torch.manual_seed(0)
    drawn = [model(tokens, lengths) for _ in range(2)]
    assert not torch.allclose(*drawn)
    still = text_model(dropout=0.0).train()
    torch.testing.assert_close(still(tokens, lengths), model.eval()(tokens, lengths))


def test_the_paper_s_sizes() -> None:
    with torch.device("meta"):
        text, image = TextTransformer(), ViT()
    assert sum(w.numel() for w in text.parameters()) == (
        (30522 + 512) * 384 + 3 * (4 * 384**2 + 2 * 384 * 1536 + 2 * 384) + 384
    )
    assert [text.blocks[0].heads, len(text.blocks), len(image.blocks), image.blocks[0].heads] == [3, 3, 6, 8]
    assert image.positions.shape == (1, 145, 512)
    assert not any("bias" in name for name, _ in text.named_parameters())


def test_fused_and_spelled_out_images_agree() -> None:
    model = image_model()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    logits, maps = model.attention(images)
    torch.testing.assert_close(model(images), logits)
    assert [tuple(m.shape) for m in maps] == [(3, 3, 5, 5)] * 2
    grads = [torch.autograd.grad(y.sum(), list(model.parameters())) for y in (model(images), logits)]
    for fused, plain in zip(*grads):
        torch.testing.assert_close(fused, plain)


def test_patches_are_squares_of_the_image() -> None:
    model = image_model()
    seen: list[torch.Tensor] = []
    model.embed.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    images = torch.arange(3 * 64, dtype=torch.float64).view(1, 3, 8, 8)
    model(images)
    corner = images[0, :, :4, 4:]  # the second patch of the first row
    torch.testing.assert_close(seen[0][0, 1].sort().values, corner.flatten().sort().values)


@pytest.mark.parametrize("make", [text_model, image_model])
def test_autocast_stays_close(make) -> None:
    model = make().float()
    text = isinstance(model, TextTransformer)
    inputs = (torch.arange(24).view(2, 12), torch.tensor([12, 5])) if text else (torch.randn(2, 3, 8, 8),)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*inputs)
    torch.testing.assert_close(low.float(), model(*inputs), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TextTransformer(width=10, heads=3), "width must be a multiple of heads, 3, but got 10"),
        (lambda: TextTransformer(layers=0), "layers must be a whole number at least 1"),
        (lambda: ViT(size=10, patch=4), "size must be a multiple of patch, 4, but got 10"),
        (lambda: ViT(width=10, heads=4), "width must be a multiple of heads"),
        (lambda: ViT(width="a"), "width must be a whole number at least 1, but got str 'a'"),  # type: ignore[arg-type]
        (lambda: ViT(hidden=0), "hidden must be a whole number"),
        (lambda: ViT(classes=0), "classes must be a whole number"),
        (lambda: ViT(channels=0), "channels must be a whole number"),
        (lambda: ViT(dropout=2), "dropout must be a number between 0 and 1"),
        (lambda: TextTransformer(dropout=-1), "dropout must be finite and at least 0"),
    ],
)
def test_wrong_sizes_are_refused(make, message: str) -> None:
    with pytest.raises(AttsvmError, match=message):
        make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("d", [64, 96, 128])
def test_the_cuda_kernel_agrees_with_padding(first: bool, d: int) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([5, 1, 33, 64, 17], device="cuda")
    places = Places.of(lengths, 64, 120)
    rows = 5 if first else 120
    exact = [torch.randn(n, 3, d, device="cuda").bfloat16().float().requires_grad_() for n in (rows, 120, 120)]
    rough = [x.detach().bfloat16().requires_grad_() for x in exact]
    outputs = [attend_within(*parts, places, first=first) for parts in (rough, exact)]
    torch.testing.assert_close(outputs[0].float(), outputs[1], rtol=0.02, atol=0.02)
    slope = torch.randn_like(outputs[1])
    grads = [torch.autograd.grad(y, parts, slope.to(y.dtype)) for y, parts in zip(outputs, (rough, exact))]
    for a, b in zip(*grads):
        torch.testing.assert_close(a.float(), b, rtol=0.05, atol=0.05)
    # Dropout keeps the mean: over draws of the weights with a value of 1 their standard deviation is at most 0.015.
    ones = torch.ones_like(rough[2])
    draws = [attend_within(rough[0], rough[1], ones, places, first=first, dropout=0.5).float() for _ in range(100)]
    assert (draws[0] - 1).abs().max() > 0.1
    assert abs(torch.stack(draws).mean() - 1) < 0.1


def test_gpt_attends_to_the_past_alone():
    torch.manual_seed(0)
    model = GPT(vocabulary=20, length=12, width=16, layers=2, heads=2).double()
    tokens = torch.randint(20, (3, 12))
    logits, maps = model.attention(tokens)
    torch.testing.assert_close(model(tokens), logits)
    for weights in maps:
        assert weights.shape == (3, 2, 12, 12)
        assert not weights.triu(1).any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 12).double())
    # A later token changes no earlier logit.
    other = tokens.clone()
    other[:, 7] = (other[:, 7] + 1) % 20
    changed = (model(other) - logits).abs().amax((0, 2))
    assert changed[:7].max() < 1e-14
    assert (changed[7:] > 1e-8).all()


def test_gpt_is_checked_and_its_head_is_the_embedding_or_its_own():
    model = GPT(vocabulary=20, length=12, width=16, layers=1, heads=2)
    tokens = torch.randint(20, (1, 5))
    torch.testing.assert_close(model(tokens), model.features(tokens) @ model.words.weight.T)
    apart = GPT(vocabulary=20, length=12, width=16, layers=1, heads=2, tied=False)
    assert apart.head is not None
    torch.testing.assert_close(apart(tokens), apart.features(tokens) @ apart.head.weight.T)
    torch.testing.assert_close(apart.attention(tokens)[0], apart(tokens))
    with pytest.raises(AttsvmError, match="at most 12 tokens"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(AttsvmError, match="multiple of heads"):
        GPT(width=10, heads=4)
    with pytest.raises(AttsvmError, match="start must be gpt2 or linear"):
        GPT(start="torch")


@pytest.mark.parametrize("lengths", [[0, 3], [3, 0], [7, 3]])
def test_lengths_are_checked(lengths):
    model = TextTransformer(vocabulary=100, length=16, width=32, hidden=64, layers=2).eval()
    for call in (model, model.attention):
        with pytest.raises(AttsvmError, match="lengths must be from 1 to 6"):
            call(torch.ones(2, 6, dtype=torch.long), torch.tensor(lengths))


def test_the_matrices_of_a_gpt_start_as_asked():
    torch.manual_seed(0)
    sizes = {"vocabulary": 200, "length": 12, "width": 64, "layers": 2, "heads": 2, "tied": False}
    for start, reads, writes in (("gpt2", 0.02, 0.01), ("linear", 1 / 64**0.5 / 3**0.5, 1 / 64**0.5 / 3**0.5)):
        model = GPT(**sizes, start=start)
        block = model.blocks[1]
        assert model.head is not None
        for weight, deviation in ((block.qkv.weight, reads), (block.out.weight, writes), (model.head.weight, reads)):
            assert weight.std().item() == pytest.approx(deviation, rel=0.05)
        assert model.words.weight.std().item() == pytest.approx(0.02, rel=0.05)
