"""timm's own vision transformers; without timm, `test_captures.py` has attention as timm writes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attsvm
from attsvm.captures import capture

timm = pytest.importorskip("timm")

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalised": {"qk_norm": True},
    "registers": {"reg_tokens": 4},
    "without bias": {"qkv_bias": False},
    "attention pool": {"global_pool": "map"},
}
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def built(kind: str, fused: bool) -> Any:
    torch.manual_seed(0)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=4, num_classes=3, **KINDS[kind]
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    return model.eval()


def captured(model: Any, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    found: dict[str, Tensor] = {}
    with torch.no_grad(), capture(model, lambda attended: found.update({attended.name: attended.logits()})):
        return found, model(x)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_eager_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[Tensor] = []
    softmax = Tensor.softmax

    def look(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        expected.append(x.detach())
        return softmax(x, *args, **kwargs)

    fused, eager = built(kind, True), built(kind, False)
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(Tensor, "softmax", look)
        eager(IMAGES)
    assert len(expected) == (3 if kind == "attention pool" else 2)
    for model in (fused, eager):
        found, result = captured(model, IMAGES)
        with torch.no_grad():
            assert torch.equal(result, model(IMAGES))
        for logits, own in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(logits, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_counts_all_tokens(kind: str) -> None:
    """16 patches and the class token, with 4 registers if there are some; normalised heads have no one W."""
    model = built(kind, True)
    found = attsvm.audit(model, None, [IMAGES], norms=["l2"], selects=0.0)
    head = found["blocks.0.attn", 1]
    assert head.queries == 2 * (21 if kind == "registers" else 17)
    assert head.one_W == (kind != "normalised")
    logits = captured(model, IMAGES)[0]["blocks.0.attn"][:, 1]
    assert head.measures["confidence"] == pytest.approx(float(logits.softmax(-1).amax(-1).mean()), rel=1e-4)
    attention, x = model.blocks[0].attn, torch.randn(2, 5, 16)
    data, W = attsvm.TokenData.from_attention(attention, x, head=1, space="head" if kind == "normalised" else "tokens")
    own = next(iter(captured(attention, x)[0].values()))[:, 1]
    torch.testing.assert_close(data.logits(W)[0].float(), own, rtol=1e-4, atol=1e-4)
