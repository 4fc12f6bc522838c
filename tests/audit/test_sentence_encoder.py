"""The example's converter, on a package of the same layout with random weights."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import AttsvmError

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit_sentence_encoder.py"
PREFIX = "module_apply_default/Encoder_en/KonaTransformer/Encode/"
RESERVED = [["�", 0], ["<s>", 0], ["</s>", 0], *([f"extra_{i}", 0] for i in range(3))]
PIECES = [*RESERVED, ["▁", -3.0], ["a", -2.0], ["b", -2.5], ["▁ab", -2.0], [":", None]]


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def write_package(folder: Path, model: Any) -> None:
    """Weights in TensorFlow's layout: kernels are (in, out), those of convolutions with two axes of length 1 before."""
    arrays: dict[str, np.ndarray] = {"module/Embeddings_en": model.words.weight}
    arrays[PREFIX + "TransformerStack/Layer_0/AddTimingSignal/TimingSignal/ExpandDims_1"] = model.frequencies[None]
    for number, layer in enumerate(model.layers):
        own, stack = (f"{PREFIX}{part}Layer_{number}/TransformerLayer/" for part in ("", "TransformerStack/"))
        for name, linear in (("qkv_transform_single", layer.qkv), ("output_transform_single", layer.out)):
            kernel = f"{own}MultiheadAttention/{name}/kernel/part_0".replace("module_apply_default", "module")
            arrays[kernel] = linear.weight.mT[None, None]
            arrays[f"{own}MultiheadAttention/{name}/bias/ConcatPartitions/concat"] = linear.bias
        for name, linear in (("conv1", layer.expand), ("conv2", layer.contract)):
            arrays[f"{stack}FFN/{name}/Tensordot/Reshape_1"] = linear.weight.mT
            arrays[f"{own}FFN/{name}/bias/ConcatPartitions/concat"] = linear.bias
        for name, norm in (("", layer.attention_norm), ("FFN/", layer.norm)):
            at = f"{own}{name}layer_prepostprocess/layer_norm/layer_norm_"
            arrays[f"{at}scale/ConcatPartitions/concat"] = norm.weight
            arrays[f"{at}bias/ConcatPartitions/concat"] = norm.bias
    dense = f"{PREFIX}Layer_0/TransformerLayer/dense/"
    arrays[f"{dense}kernel/ConcatPartitions/concat"] = model.layers[0].residual.weight.mT
    arrays[f"{dense}bias/ConcatPartitions/concat"] = model.layers[0].residual.bias
    arrays["module/Encoder_en/hidden_layers/tanh_layer_0/weights"] = model.head.weight.mT
    arrays["module/Encoder_en/hidden_layers/tanh_layer_0/bias"] = model.head.bias
    arrays = {name: np.ascontiguousarray(x.detach().numpy()) for name, x in arrays.items()}  # type: ignore[attr-defined]
    arrays[PREFIX + "Layer_0/TransformerLayer/MultiheadAttention/Const"] = np.array([4, 4, 4], np.int32)
    weights = [{"name": name, "shape": x.shape, "dtype": str(x.dtype)} for name, x in arrays.items()]
    data = b"".join(x.tobytes() for x in arrays.values())
    (folder / "one").write_bytes(data[:1001])  # shards are cut anywhere
    (folder / "two").write_bytes(data[1001:])
    manifest = [{"paths": ["one", "two"], "weights": weights}]
    (folder / "model.json").write_text(json.dumps({"weightsManifest": manifest}))
    (folder / "vocab.json").write_text(json.dumps(PIECES))


def test_the_package_is_read_as_it_was_written(example: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = example["SentenceEncoder"](len(PIECES), 16, 24, 40).eval()
    model.frequencies.uniform_()
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    write_package(tmp_path, model)
    again, tokenizer = example["load"](tmp_path)
    ids = torch.tensor([tokenizer.encode("ab a: b").ids])
    assert [PIECES[i][0] for i in ids[0]] == ["▁ab", "▁", "a", ":", "▁", "b"]
    with torch.no_grad():
        assert torch.equal(model(ids), again(ids))
        padded = torch.cat([ids, torch.zeros_like(ids)], 1)
        seen = torch.cat([torch.ones_like(ids), torch.zeros_like(ids)], 1)
        torch.testing.assert_close(again(padded, seen), model(ids))
    (tmp_path / "model.json").write_text(json.dumps({"weightsManifest": []}))
    with pytest.raises(AttsvmError, match="one array for Embeddings_en"):
        example["load"](tmp_path)
