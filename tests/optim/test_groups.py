"""Which parameter goes into which group."""

import copy
import io
import re

import pytest
import torch
import torch.nn.utils.prune as prune
from small_task import make_all
from torch import nn

from attsvm.errors import AttsvmError
from attsvm.optim import MirrorAdam, MirrorDescent, describe_groups, param_groups


def kinds_of(model: nn.Module, **options) -> dict[str, str]:
    """Kind of every parameter by name; every trainable parameter is in exactly one group."""
    groups = param_groups(model, **options)
    grouped = [param for group in groups for param in group["params"]]
    assert len(grouped) == len({id(param) for param in grouped})
    assert {id(param) for param in grouped} == {id(param) for param in model.parameters() if param.requires_grad}
    return {name: group["name"] for group in groups for name in group["param_names"]}


def names(kinds: dict[str, str], kind: str) -> set[str]:
    """Names in a group, numbers as *."""
    return {re.sub(r"\d+", "*", name) for name, value in kinds.items() if value == kind}


class Attention(nn.Module):
    """Projections under given names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(4, 4))


def test_torch_transformer():
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True)
    kinds = kinds_of(model)
    attention = {f"encoder.layers.{i}.self_attn.in_proj_weight" for i in range(2)}
    attention |= {f"decoder.layers.{i}.{a}.in_proj_weight" for i in range(2) for a in ("self_attn", "multihead_attn")}
    assert {name for name, kind in kinds.items() if kind == "attention"} == attention
    shapes = {name: param.ndim for name, param in model.named_parameters()}
    assert all((kinds[name] == "vectors") == (ndim == 1) for name, ndim in shapes.items())


def test_multihead_attention_with_other_widths_and_added_keys():
    kinds = kinds_of(nn.MultiheadAttention(8, 2, kdim=4, vdim=6, add_bias_kv=True))
    assert names(kinds, "attention") == {"q_proj_weight", "k_proj_weight", "v_proj_weight"}
    assert names(kinds, "matrices") == {"out_proj.weight"}
    assert {"bias_k", "bias_v", "in_proj_bias", "out_proj.bias"} == names(kinds, "vectors")


ATTENTION = (
    "q k v query key value qkv kv q_proj k_proj v_proj qkv_proj kv_proj query_key_value c_attn q_attn Wqkv Wq W_k w_v "
    "to_q to_kv to_qkv q_lin query_proj linear_k W_pack query_global q_a_proj kv_b_proj kv_a_proj_with_mqa "
    "in_proj"
)
OTHERS = "o o_proj out_proj out_lin c_proj dense wo wi fc1 gate_proj lm_head v_head value_head keys_mlp"


@pytest.mark.parametrize("name", ATTENTION.split())
def test_linear_layers_by_name(name):
    model = nn.ModuleDict({"self_attn": Attention(name)})
    assert kinds_of(model) == {f"self_attn.{name}.weight": "attention", f"self_attn.{name}.bias": "vectors"}


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_linear_layers(name):
    assert kinds_of(nn.ModuleDict({"self_attn": Attention(name)}))[f"self_attn.{name}.weight"] == "matrices"


def test_in_proj_outside_attention_is_another_matrix():
    assert kinds_of(nn.ModuleDict({"mixer": Attention("in_proj")}))["mixer.in_proj.weight"] == "matrices"


def nested(path: str, layer: nn.Module | None = None) -> nn.Module:
    """A module with a linear layer at the path."""
    first, _, rest = path.partition(".")
    return nn.ModuleDict({first: nested(rest, layer) if rest else layer or nn.Linear(4, 4, bias=False)})


@pytest.mark.parametrize(
    "path",
    [
        "attention.self.pos_key_proj",  # DeBERTa
        "attention.self.pos_query_proj",
        "attention.self.pos_proj",
        "linear_attn.in_proj_qkvz",  # Qwen3-Next
        "attention.self_attention.query_key",  # Reformer
        "self_attn.linears.0",  # the Annotated Transformer
        "self_attn.linears.2",
        "transformer.h.attn.attn",  # LitGPT
        "blocks.attention.qkv.linear",  # LeViT
        "layers.module.queries_keys_values.linear",  # the same in transformers
        "layers.0.keys_values.linear",
        "qkv.linear",
        "blocks.attn.query.proj",  # MobileNetV4
        "time_mix.attention.key",  # RWKV
        "attention.attention.projection_query",  # CvT
        "self_attention.project_v",  # CPM-Ant
        "attention.self.layout_key",  # LiLT
        "attention.self.w2e_query",  # LUKE
        "attention.qkv_proj.convolution",  # MobileViT v2
        "layers.0.attn.att_proj",  # Bark
        "self_attn.linear_pos",  # Conformers
        "self_attn.relative_k_proj",
        "attn.q.ln.linear",  # LeViT in timm
        "transformer_blocks.0.attn.add_q_proj",  # Flux, Stable Diffusion 3
        "stages.0.attn.qkv.c",
        "transformer.h.attn.attn.base_layer",  # under LoRA
    ],
)
def test_attention_under_other_names(path):
    assert kinds_of(nested(path)) == {f"{path}.weight": "attention"}


LONE = ["value", "critic.v", "policy.k", "self_attn.linears.3", "head.attn", "body.proj", "pos_proj"]
LONE += ["body.att_proj", "body.linear_pos", "body.projection_value", "body.convolution"]
LONE += ["attn_block.attn.proj", "attention.attn.conv", "attention.c"]  # outputs


@pytest.mark.parametrize("path", LONE)
def test_a_lone_name_is_no_attention(path):
    assert kinds_of(nested(path)) == {f"{path}.weight": "matrices"}


def test_feed_forward_keys_and_values_are_no_attention():
    model = nn.ModuleDict({"feed_forward": Attention("key", "value", "receptance"), "attention": Attention("key")})
    kinds = kinds_of(model)
    assert names(kinds, "attention") == {"attention.key.weight"}
    assert names(kinds, "matrices") == {f"feed_forward.{n}.weight" for n in ("key", "value", "receptance")}


def test_siblings_make_an_attention():
    assert names(kinds_of(nn.ModuleDict({"mixer": Attention("q", "k", "v", "o")})), "attention") == {
        f"mixer.{n}.weight" for n in "qkv"
    }
    for beside in ((), ("post_proj",)):  # Funnel
        funnel = kinds_of(Attention("q_head", "k_head", "v_head", *beside))
        assert names(funnel, "attention") == {f"{n}_head.weight" for n in "qkv"}
    critic = Attention("q_head", "v_head")
    assert not names(kinds_of(nn.ModuleDict({"attention": critic})), "attention")


def test_what_is_no_matrix_whatever_its_shape():
    class MyRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 4))

    class RelativePosEmbed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.height = nn.Parameter(torch.ones(2, 4))

    model = nn.ModuleDict({"norm": MyRMSNorm(), "mixer": nn.Module(), "rel_attn": nn.Module()})
    for name in ("A_log", "latents", "pe", "mixing", "rel_pos_h", "emb_rel_k", "clip_scale", "upscaled", "compose"):
        model["mixer"].register_parameter(name, nn.Parameter(torch.ones(4, 4)))
    for name in ("q", "r", "o"):  # XLNet
        model["rel_attn"].register_parameter(name, nn.Parameter(torch.ones(4, 2, 2)))
    model["pos"] = RelativePosEmbed()
    model["position_embeddings"] = nn.ParameterDict()  # Reformer
    model["position_embeddings"]["weights"] = nn.ParameterList([torch.ones(4, 1, 4), torch.ones(1, 4, 4)])
    plain = nn.Parameter(torch.ones(4, 4))
    plain._no_weight_decay = True
    model["mixer"].register_parameter("states", plain)
    assert kinds_of(model) == {
        **dict.fromkeys(("norm.scale", "mixer.A_log", "mixer.states", "mixer.clip_scale"), "vectors"),
        **dict.fromkeys((f"mixer.{name}" for name in ("latents", "pe", "rel_pos_h", "emb_rel_k")), "embeddings"),
        "pos.height": "embeddings",
        **dict.fromkeys((f"position_embeddings.weights.{k}" for k in range(2)), "embeddings"),
        **dict.fromkeys(("mixer.mixing", "mixer.upscaled", "mixer.compose", "rel_attn.o"), "matrices"),
        **dict.fromkeys(("rel_attn.q", "rel_attn.r"), "attention"),
    }


def test_lora_trains_at_the_defaults():
    adapter = nn.ModuleDict({"lora_A": nn.Linear(4, 2, bias=False), "lora_B": nn.Linear(2, 4, bias=False)})
    nn.init.zeros_(adapter["lora_B"].weight)
    model = nn.ModuleDict({"layer": adapter})
    assert kinds_of(model)["layer.lora_B.weight"] == "vectors"  # and without a warning
    optimizer = MirrorAdam(param_groups(model), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        x = torch.randn(8, 4)
        (adapter["lora_B"](adapter["lora_A"](x)) - x).square().mean().backward()
        optimizer.step()
    assert (adapter["lora_B"].weight.abs() > 1e-3).all()


def test_bare_parameters():
    model = nn.Module()
    shapes = {"K": (4, 4), "Q": (4, 4), "W_v": (4, 4), "W": (4, 4), "cls_token": (1, 1, 4), "scale": (), "v": (4,)}
    for name, shape in (shapes | {"pos_embedding": (1, 5, 4), "relative_bias_table": (9, 2)}).items():
        setattr(model, name, nn.Parameter(torch.ones(shape)))
    assert kinds_of(model) == {
        **dict.fromkeys(("K", "Q", "W_v"), "attention"),
        "W": "matrices",
        "pos_embedding": "embeddings",
        **dict.fromkeys(("cls_token", "scale", "v", "relative_bias_table"), "vectors"),
    }


def test_modules_by_type():
    model = nn.ModuleDict(
        {
            "value": nn.Embedding(5, 4),  # an embedding, whatever its name
            "conv": nn.Conv2d(3, 4, 2),
            "norm": nn.LayerNorm([2, 4]),
            "one": nn.Linear(4, 1),
        }
    )
    assert kinds_of(model) == {
        "value.weight": "embeddings",
        "conv.weight": "matrices",
        "conv.bias": "vectors",
        "norm.weight": "vectors",
        "norm.bias": "vectors",
        "one.weight": "matrices",
        "one.bias": "vectors",
    }


def test_tied_frozen_and_parametrised_weights():
    model = nn.ModuleDict({"head": nn.Linear(4, 9, bias=False), "words": nn.Embedding(9, 4), "attn": Attention("q")})
    model["head"].weight = model["words"].weight
    model["attn"].q.bias.requires_grad_(False)
    torch.nn.utils.parametrizations.spectral_norm(model["attn"].q)
    assert kinds_of(model) == {
        "head.weight": "embeddings",
        "attn.q.parametrizations.weight.original": "attention",
    }


def test_exceptions_hold_for_every_name_of_a_tied_weight():
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False)})
    model["head"].weight = model["words"].weight
    for pattern, kind in (("words", "vectors"), ("head", "matrices"), ("head", "attention")):
        assert kinds_of(model, kinds={pattern: kind}) == {"words.weight": kind}


def test_normalised_and_pruned_weights_are_told_apart_as_plain_ones():
    model = nn.ModuleDict({"mix": nn.Linear(4, 4, False), "attn": Attention("q"), "words": nn.Embedding(9, 4)})
    model["head"] = nn.Linear(4, 1, bias=False)
    torch.nn.utils.parametrizations.weight_norm(model["mix"])
    torch.nn.utils.parametrizations.spectral_norm(model["words"])
    for pruned in (model["attn"].q, model["head"]):
        prune.random_unstructured(pruned, "weight", amount=1)
    assert kinds_of(model) == {
        "mix.parametrizations.weight.original0": "vectors",
        "mix.parametrizations.weight.original1": "matrices",
        "attn.q.weight_orig": "attention",
        "attn.q.bias": "vectors",
        "words.parametrizations.weight.original": "embeddings",
        "head.weight_orig": "matrices",
    }


def test_what_has_no_shape_yet_and_misspelled_groups_are_refused():
    with pytest.raises(AttsvmError, match=r"1\.weight has no shape yet"):
        param_groups(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)))
    with pytest.raises(AttsvmError, match="but got embedding"):
        param_groups(nn.Linear(2, 2), embedding={"p": 1.5})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"p": "1.1"}, "p must be a number"),
        ({"p": 1.0}, "p must be a number"),
        ({"matrices": {"p": None}}, "p must be a number"),
        ({"matrices": 1.5}, "matrices must be a dict of options"),
        ({"matrices": {"pp": 1.5}}, "pp is no option"),
        ({"lrr": 1e-3}, "lrr is no option"),
        ({"kinds": "lora_"}, "kinds must be a dict"),
        ({"kinds": {"(": "vectors"}}, "is no regular expression"),
        ({"kinds": {3: "vectors"}}, "is no regular expression"),
        ({"kinds": {"lora_": "vectors"}}, "'lora_' occurs in the name of no parameter"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options, what):
    with pytest.raises(AttsvmError, match=what):
        param_groups(nn.Linear(2, 2), **options)


def test_wrong_models_and_groups_are_refused():
    model = nn.Linear(2, 2)
    for wrong in (model.parameters(), [model], None):
        with pytest.raises(AttsvmError, match=r"must be a torch.nn.Module"):
            param_groups(wrong)
    for wrong in (model, 3, list(model.parameters()), [{"p": 2}]):
        with pytest.raises(AttsvmError, match="must be parameter groups or an optimizer"):
            describe_groups(wrong)


def test_options_of_every_optimizer_and_patterns_of_frozen_parameters_are_taken():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2).requires_grad_(False)})
    options = {
        "momentum": 0.9,
        "betas": (0.9, 0.99),
        "normalize": None,
        "dampening": 0,
        "amsgrad": False,
        "fused": None,
    }
    assert all(options.items() <= group.items() for group in param_groups(model, kinds={"b": "vectors"}, **options))


@make_all
def test_a_trainer_may_add_parameters_without_names(make):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = make(param_groups(model))
    optimizer.add_param_group({"params": other.parameters(), "lr": 1e-4})
    fresh = make([*param_groups(model), {"params": [other.weight, other.bias]}])
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[-1]["lr"] == 1e-4
    describe_groups(fresh.param_groups, io.StringIO())
    with pytest.raises(TypeError, match="ordered"):
        optimizer.add_param_group({"params": {nn.Parameter(torch.ones(1))}})


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager"), copy.deepcopy])
def test_wrapped_models_have_the_same_groups(wrap):
    model = nn.TransformerEncoderLayer(8, 2, 16)
    expected = [[param.shape for param in group["params"]] for group in param_groups(model)]
    assert [[param.shape for param in group["params"]] for group in param_groups(wrap(model))] == expected


def test_options():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    groups = param_groups(
        model, 1.2, lr=0.1, weight_decay=0.3, matrices={"p": 1.5}, vectors={"lr": 0.2}, attention={"weight_decay": 0}
    )
    chosen = {group["name"]: (group["p"], group["lr"], group["weight_decay"]) for group in groups}
    assert chosen == {"attention": (1.2, 0.1, 0), "matrices": (1.5, 0.1, 0.3), "vectors": (2.0, 0.2, 0.0)}


def test_kinds_are_exceptions():
    model = nn.ModuleDict({"lora_A": nn.Linear(4, 2), "mixer": Attention("mix")})
    kinds = kinds_of(model, kinds={"lora_": "vectors", r"mix\.weight$": "attention", "mix": "matrices"})
    assert kinds == {
        "lora_A.weight": "vectors",
        "lora_A.bias": "vectors",
        "mixer.mix.weight": "attention",
        "mixer.mix.bias": "matrices",
    }
    with pytest.raises(AttsvmError, match=r"kinds\['mix'\] must be one of attention"):
        param_groups(model, kinds={"mix": "heads"})


def test_a_matrix_that_starts_at_0_is_named():
    model = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(2, 4)})
    nn.init.zeros_(model["b"].weight)
    with pytest.warns(UserWarning, match=r"all entries of b.weight are 0 and hardly move"):
        param_groups(model)
    deep = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(2, 2), "zero": nn.Linear(2, 2)}) for _ in range(12))
    for layer in deep:
        nn.init.zeros_(layer["zero"].weight)
    with pytest.warns(UserWarning, match="are 0 and hardly move") as caught:
        param_groups(deep)
    message = str(caught[0].message)
    assert len(message) < 200
    kinds = eval(message.split("kinds=")[1].removesuffix("."))  # the advice works as it stands
    assert names(kinds_of(deep, kinds=kinds), "matrices") == {"*.up.weight"}
    row = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(row[1].weight)
    with pytest.warns(UserWarning, match="are 0 and hardly move") as caught:
        param_groups(row)
    kinds = eval(str(caught[0].message).split("kinds=")[1].removesuffix("."))
    assert kinds_of(row, kinds=kinds)["0.weight"] == "matrices"  # it does not start at 0
    param_groups(model, p=1.5)
    param_groups(model, kinds={r"b\.weight$": "vectors"})
    with torch.device("meta"):
        param_groups(nn.Linear(4, 2))


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(AttsvmError, match="no trainable parameter"):
        param_groups(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("make", [MirrorAdam, MirrorDescent, torch.optim.AdamW, torch.optim.SGD])
def test_one_optimizer_serves_all_groups(make):
    model = nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = make(param_groups(model), lr=1e-3)
    model(torch.randn(3, 2, 8)).square().mean().backward()
    optimizer.step()
    saved = optimizer.state_dict()
    assert [group["name"] for group in saved["param_groups"]] == ["attention", "matrices", "vectors"]
    make(param_groups(model), lr=1e-3).load_state_dict(saved)


def test_groups_with_p_2_follow_adamw_and_sgd():
    for make, reference in [(MirrorAdam, torch.optim.AdamW), (MirrorDescent, torch.optim.SGD)]:
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0).double()
        twin = copy.deepcopy(model)
        ours = make(param_groups(model, p=1.1), lr=0.01)
        theirs = reference([g for g in param_groups(twin) if g["name"] == "vectors"], lr=0.01)
        for _ in range(5):
            # The twin's vectors take the same gradients: those of the mirrored model.
            ours.zero_grad()
            model(torch.randn(3, 2, 8, dtype=torch.float64)).pow(3).mean().backward()
            for a, b in zip(model.parameters(), twin.parameters()):
                b.grad = a.grad.clone()
            ours.step()
            theirs.step()
        for a, b in zip(model.parameters(), twin.parameters()):
            if a.ndim == 1:
                torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)
            else:
                assert not torch.allclose(a, b)


def test_description():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False)
    out = io.StringIO()
    describe_groups(param_groups(model, lr=1e-3), file=out)
    lines = out.getvalue().splitlines()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["attention", "1.1", "0.001", "-", "3", "576"],
        ["matrices", "1.1", "0.001", "-", "9", "960"],
        ["vectors", "2.0", "0.001", "0.0", "24", "264"],
    ]
    assert lines[0] == "name       p    lr     weight_decay  tensors  parameters  what"
    assert lines[1] == "attention  1.1  0.001  -                   3         576  layers.[0-2].self_attn.in_proj_weight"
    assert lines[2].endswith("layers.[0-2].self_attn.out_proj.weight, ….linear[1-2].weight")
    assert lines[3].endswith(  # all patterns
        "layers.[0-2].self_attn.in_proj_bias, ….out_proj.bias, ….linear[1-2].bias, ….norm[1-2].weight, ….bias"
    )


def test_description_rounds_learning_rates():
    out = io.StringIO()
    describe_groups(param_groups(nn.Linear(2, 2, bias=False), lr=0.0033849302), file=out)
    assert out.getvalue().splitlines()[1].split()[2] == "0.003385"


def test_description_of_an_optimizer(capsys):
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=torch.tensor(0.5))
    for groups in (optimizer, optimizer.param_groups, iter(optimizer.param_groups)):
        describe_groups(groups)
        assert capsys.readouterr().out.splitlines()[1].split() == ["0", "-", "0.5", "0", "2", "8"]


# The last part of the names of query, key and value matrices.
HUGGING_FACE = {
    "Bert": {"query", "key", "value"},
    "Roberta": {"query", "key", "value"},
    "DistilBert": {"q_lin", "k_lin", "v_lin"},
    "GPT2": {"c_attn"},
    "Llama": {"q_proj", "k_proj", "v_proj"},
    "ViT": {"q_proj", "k_proj", "v_proj"},
    "T5": {"q", "k", "v"},
}


def hugging_face(family: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes = {
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0},
        "Llama": {**common, "num_key_value_heads": 1},
        "T5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        "ViT": {**common, "image_size": 8, "patch_size": 4},
    }.get(family, common)
    if family != "ViT":
        sizes["vocab_size"] = 50
    heads = {
        "GPT2": "LMHeadModel",
        "Llama": "ForCausalLM",
        "T5": "ForConditionalGeneration",
        "ViT": "ForImageClassification",
    }
    config = getattr(transformers, f"{family}Config")(**sizes)
    return getattr(transformers, family + heads.get(family, "ForMaskedLM"))(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", HUGGING_FACE)
def test_hugging_face_models(family):
    model = hugging_face(family)
    kinds = kinds_of(model)
    last = {name.split(".")[-2] for name, kind in kinds.items() if kind == "attention"}
    assert last == HUGGING_FACE[family] or (family == "ViT" and last == {"query", "key", "value"})  # transformers 4
    blocks = {"T5": 3}.get(family, 1)  # decoder layers have two attentions
    assert sum(kind == "attention" for kind in kinds.values()) == 2 * blocks * (1 if family == "GPT2" else 3)
    parameters = dict(model.named_parameters())
    assert all(parameters[name].ndim >= 2 for name, kind in kinds.items() if kind in ("attention", "matrices"))
    assert all(parameters[name].ndim == 1 or "token" in name for name, kind in kinds.items() if kind == "vectors")
    # Embeddings are the tables that are looked up, the head tied to one of them included.
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    embeddings = {name for name, kind in kinds.items() if kind == "embeddings"}
    assert tables <= {id(parameters[name]) for name in embeddings}
    assert all(id(parameters[name]) in tables or name.endswith("position_embeddings") for name in embeddings)
