"""The audit beside Flash attention, forced: logits are those of eager attention, and the model computes as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attsvm.auditing import audit
from attsvm.captures import Attended, capture
from attsvm.models import GPT

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def seen(model: Any, tokens: Tensor) -> tuple[list[Attended], Any]:
    found: list[Attended] = []
    with torch.no_grad(), capture(model, found.append):
        return found, model(tokens)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_logits_beside_flash_are_those_of_eager_attention(device: str, dtype: torch.dtype) -> None:
    """The library's GPT; eager attention is its `attention`, in float32 from the same queries and keys."""
    if (device, dtype) == ("cuda", torch.float32):
        pytest.skip("Flash attention on a GPU has no float32")
    torch.manual_seed(0)
    model = GPT(vocabulary=50, length=32, width=64, layers=2, heads=2).to(device, dtype).eval()
    with torch.no_grad():
        for block in model.blocks:
            torch.nn.init.normal_(block.qkv.weight, std=0.5)
    tokens = torch.randint(50, (3, 32), device=device)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        with torch.no_grad():
            plain = model(tokens)
        found, result = seen(model, tokens)
        audited = audit(model, None, tokens.tolist(), norms=["l2"])
        with torch.no_grad():
            after = model(tokens)
    assert torch.equal(plain, result)
    assert torch.equal(plain, after)
    _, maps = model.attention(tokens)
    rounding = torch.finfo(dtype).eps
    # The first layer has the same inputs in both; the second inherits what Flash and eager round differently.
    for attended, weights, times in zip(found, maps, (4, 64), strict=True):
        logits = attended.logits()
        size = float(logits.masked_fill(logits == -torch.inf, 0.0).abs().max())
        assert torch.allclose(logits.softmax(-1), weights.float(), atol=times * rounding * max(size, 1.0))
    confidence = found[0].logits().softmax(-1).amax(-1).mean((0, 2))
    for head in range(2):
        assert audited["blocks.0", head].measures["confidence"] == pytest.approx(float(confidence[head]), rel=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # transformers and torch, of each other
@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "flex_attention"])
@pytest.mark.parametrize("device", DEVICES)
def test_models_of_hugging_face_with_flash(device: str, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    if name == "flash_attention_2":
        pytest.importorskip("flash_attn")
    if name != "sdpa" and device == "cpu":
        pytest.skip("is for GPUs")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    config._attn_implementation = name
    model = transformers.LlamaModel(config).to(device, torch.bfloat16).eval()
    tokens = torch.randint(50, (2, 24), device=device)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
        plain = model(input_ids=tokens).last_hidden_state
        audited = audit(model, None, tokens.tolist(), norms=[], batch=2)
        after = model(input_ids=tokens).last_hidden_state
    assert torch.equal(plain, after)
    assert model.config._attn_implementation == name
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=tokens, output_attentions=True).attentions
    for layer, own in zip(audited.layers, weights, strict=True):
        for head in range(2):
            confidence = float(own[:, head].float().amax(-1).mean())
            assert audited[layer, head].measures["confidence"] == pytest.approx(confidence, rel=2e-2)
