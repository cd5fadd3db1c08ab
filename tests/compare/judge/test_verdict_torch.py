"""Mistakes below the noise that has gathered are found where they are made; healthy runs are left alone."""

from __future__ import annotations

import pytest

from support.paths import TINY

pytest.importorskip("torch")
pytest.importorskip("transformers")


from support.verdict_pairs import ALONE, QUESTION, mistaken, pairs_of, runs_of, save_llama, side, wrong
from trtdx.compare.judge.quantised_modules import QuantisationScheme, QuantisedModules
from trtdx.compare.judge.verdict import judge_pairs
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.sides.side import ComparisonQuestion, SideSpec

LAYER = "model.layers.1"
TWO_STEPS = ComparisonQuestion(prompts=QUESTION.prompts, new_tokens=2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return side(SideSpec("hf", str(save_llama(folder / "model")), ALONE), folder / "reference")


@pytest.fixture
def against(reference, tmp_path):
    """Judge a candidate that is the reference with a mistake in it, or without."""

    def judged(mistake=lambda model: None, dtype="bfloat16", *, only_local=True, attention="eager", quantised=None):
        spec = SideSpec("hf", reference.spec.path, {"dtype": dtype, "attention": attention} | ALONE)
        candidate = mistaken(spec, tmp_path / "candidate", mistake, forced=reference.step_tokens())
        runs = runs_of(reference, candidate, tmp_path / "runs")
        runs._quantised = quantised
        return judge_pairs(pairs_of(reference, candidate), reference, candidate, runs=runs, only_local=only_local)

    return judged


def layer(model):
    return model.model.layers[1]


def norm_epsilon(model):
    layer(model).post_attention_layernorm.variance_epsilon = 3e-2


def attention_scale(model):
    layer(model).self_attn.scaling *= 1.1


def swapped_heads(model):
    weight, size = layer(model).self_attn.k_proj.weight, layer(model).self_attn.head_dim
    weight[: 2 * size] = weight[: 2 * size].roll(size, 0)


def dropped_channel(model):
    layer(model).mlp.down_proj.weight[:, 5] = 0


def int8(module):
    step = module.weight.abs().max() / 127
    module.weight.copy_((module.weight / step).round() * step)


def quantised_mlp(model):
    for name in ("gate_proj", "up_proj", "down_proj"):
        int8(getattr(layer(model).mlp, name))


def one_token(model):
    def hook(_, __, output):
        output = output.clone()
        output[:1, 7:8] *= 1.02
        return output

    layer(model).mlp.register_forward_hook(hook, prepend=True)


def summed_by_ranks(model):
    for each in model.model.layers:
        for module in (each.self_attn.o_proj, each.mlp.down_proj):
            half = module.weight.shape[1] // 2

            def forward(given, weight=module.weight, half=half):
                return given[..., :half] @ weight[:, :half].t() + given[..., half:] @ weight[:, half:].t()

            module.forward = forward


def plain_activation(model):
    import torch

    for each in model.model.layers:
        each.mlp.act_fn.forward = lambda given: given * torch.sigmoid(given)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mistake", "tensor"),
    [
        (norm_epsilon, f"{LAYER}.post_attention_layernorm:out"),
        (attention_scale, f"{LAYER}.self_attn.o_proj:in"),
        (swapped_heads, f"{LAYER}.self_attn.k_proj:out"),
        (dropped_channel, f"{LAYER}.mlp.down_proj:out"),
        (quantised_mlp, f"{LAYER}.mlp.gate_proj:out"),
        (one_token, f"{LAYER}.mlp:out"),
    ],
)
def test_a_small_mistake_is_found_where_it_is_made(against, mistake, tensor):
    found = wrong(against(mistake))
    assert found[0].pair.name == tensor
    assert found[0].basis == "local replay in float64"
    assert {each.pair.name.rpartition(".")[0] for each in found} <= {tensor.rpartition(".")[0]}
    assert mistake is not one_token or found[0].tokens == (7,)


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_another_type_and_attention_kernel_are_healthy(against, dtype):
    judged = against(dtype=dtype, only_local=False)
    assert {each.verdict for each in judged} == {PairVerdict.SAME, PairVerdict.NOISE}


@pytest.mark.heavy
@pytest.mark.parametrize("healthy", [summed_by_ranks, plain_activation])
def test_rounding_at_other_places_is_healthy(against, healthy):
    assert not wrong(against(healthy))


@pytest.mark.heavy
def test_what_follows_is_poisoned_and_the_operations_themselves_are_not_blamed(against):
    judged = against(swapped_heads, "float32", only_local=False)
    assert {each.pair.name for each in wrong(judged)} == {f"{LAYER}.self_attn.k_proj:out"}
    poisoned = {each.pair.name for each in judged if each.verdict is PairVerdict.POISONED}
    assert {"present.1.key:new", f"{LAYER}.self_attn.o_proj:in", "lm_head:out"} <= poisoned
    assert not any(name.startswith("model.layers.0.") for name in poisoned)


@pytest.mark.heavy
def test_a_quantiser_that_is_known_of_is_precision(against):
    """An MLP in int8 is a mistake in a bfloat16 model, and none in a model that says so."""
    said = QuantisedModules(
        {f"model.layers.1.mlp.{name}_proj": QuantisationScheme(8, True) for name in ("gate", "up", "down")}
    )
    assert not wrong(against(quantised_mlp, quantised=said))


@pytest.mark.heavy
def test_a_wrong_scale_is_found_in_a_quantised_model(against):
    def scaled(model):
        quantised_mlp(model)
        layer(model).mlp.up_proj.weight.mul_(1.2)

    said = QuantisedModules(
        {f"model.layers.1.mlp.{name}_proj": QuantisationScheme(8, True) for name in ("gate", "up", "down")}
    )
    assert wrong(against(scaled, quantised=said))[0].pair.name == f"{LAYER}.mlp.up_proj:out"


@pytest.mark.heavy
def test_batch_shape_and_padding_are_healthy(reference, tmp_path):
    longer = tuple(range(1, 21))
    question = ComparisonQuestion(prompts=(*QUESTION.prompts, longer), new_tokens=QUESTION.new_tokens)
    forced = [[*tokens, 5] for tokens in reference.step_tokens()]
    spec = SideSpec("hf", reference.spec.path, {"dtype": "bfloat16"} | ALONE)
    candidate = side(spec, tmp_path / "candidate", question=question, forced=forced)
    runs = runs_of(reference, candidate, tmp_path / "runs")
    pairs = pairs_of(reference, candidate)
    assert len(pairs) > 100
    assert not wrong(judge_pairs(pairs, reference, candidate, runs=runs))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["onnx", "trt"])
def test_three_engines_are_silent_on_one_model(tmp_path, kind):
    pytest.importorskip("onnxruntime")
    if kind == "trt":
        pytest.importorskip("tensorrt_rtx")
    ours = side(SideSpec("hf", str(TINY / "model"), ALONE), tmp_path / "hf", question=TWO_STEPS)
    theirs = side(
        SideSpec(kind, str(TINY / "model.onnx")),
        tmp_path / kind,
        question=TWO_STEPS,
        forced=ours.step_tokens(),
    )
    pairs = pairs_of(ours, theirs)
    judged = judge_pairs(pairs, ours, theirs, runs=runs_of(ours, theirs, tmp_path / "runs", question=TWO_STEPS))
    assert {each.verdict for each in judged} <= {PairVerdict.SAME, PairVerdict.NOISE}
