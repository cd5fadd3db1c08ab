"""More planted mistakes: what configs and weights state outright, and mistakes of whole families of models."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.model_zoo import A, L, M, residual_layer
from support.planted_faults import (
    ROWS,
    at,
    decoder,
    eager,
    function,
    output,
    patched,
    seen_at,
    suspect_of,
    weight,
)
from trtdx.compare.attribute import explanation_degree, find_causes, run
from trtdx.compare.attribute.effort import Effort, parse_effort
from trtdx.compare.attribute.files.weight_changes import classify_weight_change
from trtdx.compare.attribute.mistakes.config_settings import SettingDifference
from trtdx.compare.run import ComparisonPlan, compare
from trtdx.compare.sides.side import ComparisonQuestion
from trtdx.errors import InputError
from trtdx.host import RealHost

torch = sys.modules["torch"]
QUESTION = ComparisonQuestion(prompts=((5, 17, 42, 9, 8, 7, 23, 31, 64, 2),), new_tokens=2)


def softmax_over(axis):
    def wrap(_):
        def attention(module, q, k, v, mask, scaling=None, **more):
            groups = module.num_key_value_groups
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            weights = torch.softmax(q @ k.transpose(2, 3) * scaling + mask, axis)
            return (weights @ v).transpose(1, 2).contiguous(), weights

        return attention

    return function("eager_attention_forward", wrap)


def result(change):
    """Change what attention gives, [batch, tokens, heads, width]."""

    def wrap(own):
        def attention(*args, **more):
            made, weights = own(*args, **more)
            return change(made), weights

        return attention

    return function("eager_attention_forward", wrap)


def turned_back(which):
    def wrap(own):
        def turn(q, k, cos, sin, *more, **named):
            right, other = own(q, k, cos, sin, *more, **named), own(q, k, cos, -sin, *more, **named)
            return (other[0], other[1] if which == "both" else right[1])

        return turn

    return function("apply_rotary_pos_emb", wrap)


def _swapped_halves(x):
    return x.roll(x.shape[-1] // 2, -1)


without_minus = function(
    "apply_rotary_pos_emb",
    lambda _: (
        lambda q, k, cos, sin, *more, **named: tuple(
            each * cos[:, None] + _swapped_halves(each) * sin[:, None] for each in (q, k)
        )
    ),
)


def first_hidden(module, q, k, v, mask, scaling):
    changed = mask.clone()
    changed[..., 1:, 0] = torch.finfo(mask.dtype).min
    return q, k, v, changed, scaling


def blind(module, q, k, v, mask, scaling):
    changed = mask.clone()
    size = mask.shape[-1]
    changed[..., range(1, size), range(1, size)] = torch.finfo(mask.dtype).min
    return q, k, v, changed, scaling


def from_layer_input(model):
    held = []
    plant = residual_layer(lambda x, _, made: (held.append(x), x + made)[1], lambda y, _, made: held.pop() + made)
    return plant(model)


@contextmanager
def normed_sum(model):
    """The norm after attention is given the sum with the residual."""
    layer = model.get_submodule(L)

    def forward(hidden_states, **more):
        made, _ = layer.self_attn(hidden_states=hidden_states, **more)
        hidden = layer.post_attention_layernorm(hidden_states + made)
        return hidden + layer.post_feedforward_layernorm(layer.mlp(hidden))

    with patched(layer, forward=forward):
        yield


@contextmanager
def next_expert(model):
    gate = model.get_submodule(f"{M}.gate")
    own = gate.forward
    with patched(gate, forward=lambda *given: (*(made := own(*given))[:-1], (made[-1] + 1) % 4)):
        yield


@contextmanager
def worst_experts(model):
    gate = model.get_submodule(f"{M}.gate")

    def forward(x):
        logits = torch.nn.functional.linear(x, gate.weight)
        held, chosen = logits.softmax(-1).topk(2, largest=False)
        return logits, held, chosen

    with patched(gate, forward=forward):
        yield


CASES = {
    "softmax over queries": ("DX926", "llama", A, softmax_over(-2), "the queries"),
    "softmax over heads": ("DX926", "llama", A, softmax_over(1), "the heads"),
    "heads merged without a transpose": (
        "DX973", "llama", A,
        result(lambda made: made.transpose(1, 2).contiguous().reshape(made.shape)), "without changing heads",
    ),
    "heads merged number by number": (
        "DX973", "llama", A,
        result(lambda made: made.transpose(2, 3).contiguous().reshape(made.shape)), "number by number",
    ),
    "rotary turned backwards": ("DX961", "llama", A, turned_back("both"), "backwards"),
    "rotary without its minus": ("DX961", "llama", A, without_minus, "without the minus"),
    "queries alone turned backwards": ("DX961", "llama", A, turned_back("queries"), "backwards (queries)"),
    "the first token hidden": ("DX935", "llama", A, eager(first_hidden), "first token"),
    "no token sees itself, in a window": ("DX935", "mistral", A, eager(blind), "sees itself"),
    "residual of the layer's input": ("DX927", "llama", L, from_layer_input, "input of the whole layer"),
    "rows of gate and up in turn": (
        "DX981", "llama", f"{M}.gate_proj",
        weight(f"{M}.gate_proj", lambda held, model: torch.stack(
            (held, model.get_submodule(f"{M}.up_proj").weight), 1).flatten(0, 1)[: len(held)]), "interleaved",
    ),
    "weights held at a limit": (
        "DX929", "llama", f"{M}.down_proj", weight(f"{M}.down_proj", lambda held, _: held.clamp(-0.3, 0.3)), "0.3",
    ),
    "a weight that is zero": (
        "DX933", "llama", f"{A}.v_proj", weight(f"{A}.v_proj", lambda held, _: 0 * held), "zero everywhere",
    ),
    "halves of a fused weight": (
        "DX981", "phi3", f"{M}.gate_up_proj", weight(f"{M}.gate_up_proj", lambda held, _: held.roll(len(held) // 2, 0)), "exchanged",
    ),
    "rows of a fused weight in turn": (
        "DX981", "phi3", f"{M}.gate_up_proj",
        weight(f"{M}.gate_up_proj", lambda held, _: torch.stack(held.chunk(2), 1).flatten(0, 1)), "interleaved",
    ),
    "a norm of the sum": ("DX996", "olmo2", L, normed_sum, "applied to the sum"),
    "another slope of the activation": ("DX980", "gpt_oss", f"{M}.experts", at(f"{M}.experts", lambda _: {"alpha": 1.0}), "alpha 1"),
    "the expert after the one that was chosen": ("DX955", "mixtral", f"{M}.gate", next_expert, "the expert after"),
    "the worst experts": ("DX955", "qwen2_moe", f"{M}.gate", worst_experts, "the worst experts"),
    "a shared expert that gives nothing": (
        "DX957", "qwen2_moe", f"{M}.shared_expert", output(f"{M}.shared_expert", lambda _, made: 0 * made), M,
    ),
    "embeddings times another number in the model itself": (
        "DX991", "granite", "model", at("model", lambda _: {"embedding_multiplier": 1.0}), "1",
    ),
    "heads of a model with sinks in another order": (
        "DX973", "gpt_oss", A, result(lambda made: made[:, :, [0, 2, 1, 3]]), "heads of the result",
    ),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_named(name):
    code, kind, path, plant, says = CASES[name]
    inner = ("model.layers.0:in",) if path == "model" else ()
    found = find_causes(suspect_of(decoder(kind), path, plant, inner=inner))
    assert (found[0].code, explanation_degree(found)) == (code, "explained"), found[:3]
    assert says in " ".join(found[0].values.values())


@pytest.mark.heavy
@pytest.mark.parametrize("held", [30.0, float("inf")])
def test_a_constant_far_from_all_inputs_is_no_zero_point(held):
    path = f"{M}.shared_expert_gate"
    plant = output(path, lambda _, made: torch.full_like(made, held))
    found = find_causes(suspect_of(decoder("qwen2_moe"), path, plant))
    assert "DX950" not in [each.code for each in found if each.share > 0.5]


@pytest.mark.heavy
def test_rows_of_a_router_in_another_order_are_experts_in_another_order(book, tmp_path):
    reference = decoder("qwen2_moe")
    folder = saved(reference, tmp_path / "reference")
    with torch.no_grad():
        gate = reference.get_submodule(f"{M}.gate").weight
        gate.copy_(gate[[1, 0, 2, 3]])
    (finding,) = compared(book, folder, saved(reference, tmp_path / "candidate")).findings
    assert finding.code == "DX956"
    assert finding.message.endswith("its experts stand in the order 1 0 2 3")


def test_sinks_that_are_left_out_are_named():
    @contextmanager
    def without(model):
        module = model.get_submodule(A)
        with torch.no_grad():
            module.sinks.fill_(-1e4)
        yield

    reference = decoder("gpt_oss")
    with torch.no_grad():
        reference.get_submodule(A).sinks.fill_(1.5)
    assert find_causes(suspect_of(reference, A, without))[0].code == "DX934"


@pytest.mark.parametrize(("found", "says"), [(1.0, "times 1 instead of 0.4"), (0.22, "times 0.22 instead of 0.4")])
def test_another_multiplier_of_residual_branches_is_named_without_a_config(found, says):
    @contextmanager
    def plant(model):
        with patched(model.get_submodule(L), residual_multiplier=found):
            yield

    told = find_causes(suspect_of(decoder("granite"), L, plant))
    assert (told[0].code, told[0].values["what"]) == ("DX928", f"what its parts give is added {says}")


def test_keys_and_values_of_another_layer_are_named():
    model = decoder("llama")
    other = seen_at(model, "model.layers.0.self_attn", ROWS, 1)[0]
    before = {name: torch.from_numpy(each) for name, each in other.items() if name.startswith("past.")}

    def swapped(module, q, k, v, mask, scaling):
        if q.shape[2] > 1 or module.layer_idx != 1:
            return q, k, v, mask, scaling
        old = before["past.0.key"].shape[-2]
        k = torch.cat((before["past.0.key"].to(k.dtype), k[..., old:, :]), -2)
        v = torch.cat((before["past.0.value"].to(v.dtype), v[..., old:, :]), -2)
        return q, k, v, mask, scaling

    suspect = suspect_of(model, A, eager(swapped), step=1)
    cache = {name: each for name, each in other.items() if name.startswith("past.")}
    found = find_causes(suspect._replace(candidate_inputs={**suspect.candidate_inputs, **cache}))
    assert found[0].code == "DX954"
    assert "of layer 0" in found[0].values["what"]


def saved(model, folder):
    model.save_pretrained(folder)
    return folder


def compared(book, reference, candidate):
    plan = ComparisonPlan(reference=f"hf:{reference}", candidate=f"hf:{candidate}", question=QUESTION)
    return compare(RealHost(), plan, book)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "settings", "code", "says"),
    [
        ("granite", {"residual_multiplier": 0.22}, "DX928", "residual_multiplier is 0.22 instead of 0.4"),
        ("granite", {"logits_scaling": 8.0}, "DX928", "logits_scaling is 8 instead of 4"),
        ("granite", {"embedding_multiplier": 12.0}, "DX991", "12"),
        ("llama", {"hidden_act": "gelu"}, "DX980", "gelu"),
    ],
)
def test_a_setting_that_the_configs_state_differently_is_the_cause(book, tmp_path, kind, settings, code, says):
    reference = saved(decoder(kind), tmp_path / "reference")
    candidate = saved(decoder(kind), tmp_path / "candidate")
    config = json.loads((candidate / "config.json").read_text())
    (candidate / "config.json").write_text(json.dumps(config | settings))
    (finding,) = compared(book, reference, candidate).findings
    assert finding.code == code
    assert says in finding.message
    assert "rotary" not in finding.where.tensor, "which only looks at the type of what enters"


def test_a_rotary_setting_says_what_differs_in_it():
    setting = SettingDifference(
        "rope_parameters",
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "default", "rope_theta": 5e5},
    )
    assert (setting.code, setting.values["expected"], setting.values["found"]) == ("DX962", "10000", "500000")


@pytest.mark.heavy
def test_a_tolerated_step_does_not_hide_a_mistake_further_on(book, tmp_path):
    """Weights rounded to bfloat16 in the first layer are a warning, heads in another order in the last an error."""
    reference = decoder("llama")
    folder = saved(reference, tmp_path / "reference")
    with torch.no_grad():
        first = reference.get_submodule("model.layers.0.mlp.up_proj").weight
        first.copy_(first.bfloat16().float())
        last = reference.get_submodule("model.layers.2.self_attn.o_proj").weight
        last.copy_(last.T.clone())
    report = compared(book, folder, saved(reference, tmp_path / "candidate"))
    assert [each.code for each in report.findings] == ["DX982", "DX999"]
    assert report.findings[0].where.tensor == "model.layers.2.self_attn.o_proj:out"


@pytest.mark.heavy
def test_a_tolerated_step_alone_stays_a_warning(book, tmp_path):
    """That the logits are off because of it is no second mistake."""
    reference = decoder("llama")
    folder = saved(reference, tmp_path / "reference")
    with torch.no_grad():
        first = reference.get_submodule("model.layers.0.mlp.up_proj").weight
        first.copy_(first.bfloat16().float())
    report = compared(book, folder, saved(reference, tmp_path / "candidate"))
    assert [(each.code, each.severity.value) for each in report.findings] == [("DX999", "warning")]


@pytest.mark.parametrize("wanted", [2.0, 12.0, 90.0])
def test_a_number_is_looked_for_beyond_the_ends_of_the_grid_too(wanted):
    from types import SimpleNamespace

    from trtdx.compare.attribute.scalar_fit import fit_scalar

    bench = SimpleNamespace(residual=4.0, noise=0.0, squared_error=lambda value: math.log(value / wanted) ** 2)
    assert fit_scalar(bench, [5.0, 10.0, 20.0], lambda value: value)[0] == pytest.approx(wanted, rel=0.01)


@pytest.mark.heavy
def test_a_residual_of_an_earlier_layer_is_named():
    import trtdx

    reference, candidate = decoder("llama"), decoder("llama")
    layer, held = candidate.get_submodule(L), []
    candidate.model.layers[0].register_forward_pre_hook(lambda _, given: held.append(given[0]))

    def forward(hidden_states, **more):
        hidden = held[-1] + layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **more)[0]
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    with patched(layer, forward=forward):
        (finding,) = trtdx.compare(reference, candidate, tokens=list(QUESTION.prompts[0])).findings
    assert finding.code == "DX927"
    assert finding.message.endswith("what self_attn gives is added to what entered model.layers.0")


def test_a_part_inside_a_module_is_named_where_it_is_what_is_wrong():
    plant = weight(f"{A}.o_proj", lambda held, _: held.T)
    found = find_causes(suspect_of(decoder("llama"), A, plant))
    assert (found[0].code, found[0].values["module"]) == ("DX982", f"{A}.o_proj")


@pytest.mark.heavy
def test_a_weight_that_is_not_finite_is_an_error(book, tmp_path):
    reference = decoder("llama")
    folder = saved(reference, tmp_path / "reference")
    with torch.no_grad():
        reference.get_submodule(f"{M}.down_proj").weight[3, 5] = float("nan")
    (finding,) = compared(book, folder, saved(reference, tmp_path / "candidate")).findings
    assert (finding.code, finding.severity.value) == ("DX717", "error")


@pytest.mark.heavy
def test_a_bias_that_is_infinite_is_an_error_and_breaks_no_idea(book, tmp_path):
    reference = decoder("qwen2")
    folder = saved(reference, tmp_path / "reference")
    with torch.no_grad():
        reference.get_submodule(f"{A}.k_proj").bias[3] = float("inf")
    (finding,) = compared(book, folder, saved(reference, tmp_path / "candidate")).findings
    assert (finding.code, finding.where.tensor) == ("DX717", f"{A}.k_proj:out")


@pytest.mark.heavy
def test_numbers_that_no_cause_explains_and_are_not_finite_are_told_as_that():
    import trtdx

    reference, candidate = decoder("llama"), decoder("llama")
    inner = candidate.get_submodule(f"{M}.down_proj")
    own = inner.forward

    def forward(x):
        made = own(x).clone()
        made[..., 3] = float("nan") if x.shape[1] == 1 else made[..., 3]
        return made

    with patched(inner, forward=forward):
        (finding,) = trtdx.compare(reference, candidate, tokens=list(QUESTION.prompts[0]), new_tokens=2).findings
    assert (finding.code, finding.where.tensor, finding.where.step) == ("DX960", f"{M}.down_proj:out", 1)
    assert "1 NaN of 32 elements at step 1" in finding.message


def test_a_model_that_is_not_finite_on_both_sides_is_an_error(book, tmp_path):
    reference = decoder("llama")
    with torch.no_grad():
        reference.get_submodule(f"{M}.down_proj").weight[3, 5] = float("nan")
    folder = saved(reference, tmp_path / "reference")
    report = compared(book, folder, folder)
    assert [each.code for each in report.findings] == ["DX960"]
    assert "down_proj:out" in report.summary.text


def changed(change):
    own = torch.randn((6, 8), generator=torch.Generator().manual_seed(1))
    return classify_weight_change("weight", own, change(own.clone()))


def test_what_was_done_to_a_weight_is_read_from_it():
    factors = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.7, 1.1, 0.9, 1.4])
    assert changed(lambda own: own.clamp(-0.4, 0.4)).code == "DX929"
    assert changed(lambda own: own * factors).code == "DX930"
    assert changed(lambda own: own.reshape(2, 3, 8).transpose(0, 1).reshape(6, 8)).code == "DX981"
    assert changed(lambda own: 0 * own).code == "DX933"
    assert changed(lambda own: own + torch.randn(own.shape)) is None
    assert changed(lambda own: own) is None


def test_another_weight_of_a_norm_is_not_called_half_smoothed():
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.7, 1.1, 0.9, 1.4])
    for other in (torch.ones(8), weight + 1, weight.flip(0)):  # lost, one added, of another channel each
        assert classify_weight_change("weight", weight, other) is None
        assert classify_weight_change("weight", weight[:, None], other[:, None]) is None


def test_zero_weights_of_a_norm_that_adds_one_are_left_to_the_norms_own_causes():
    assert classify_weight_change("weight", torch.rand(8), torch.zeros(8), plus=1.0) is None
    assert classify_weight_change("weight", torch.rand(8), torch.zeros(8)).code == "DX933"


def test_a_stated_interleaving_is_named_as_the_rotary_layout():
    setting = SettingDifference("rope_interleave", True, False)
    assert setting.code == "DX961"
    assert (setting.values["expected"], setting.values["found"]) == ("interleaved", "in halves")


def test_a_mistake_inside_an_idea_is_told_and_ends_that_family_alone(monkeypatch):
    def broken(bench):
        raise KeyError("no such thing")
        yield

    monkeypatch.setattr(run, "STRICT", False)
    monkeypatch.setitem(run.FAMILIES, "rotary", broken)
    untried: list[str] = []
    found = find_causes(suspect_of(decoder("llama"), f"{A}.v_proj", CASES["a weight that is zero"][3]), untried=untried)
    assert found[0].code == "DX933"
    assert untried == ["rotary: KeyError: 'no such thing'"]


def test_the_tests_themselves_fail_on_such_a_mistake(monkeypatch):
    def broken(bench):
        raise KeyError("no such thing")
        yield

    monkeypatch.setitem(run.FAMILIES, "rotary", broken)
    with pytest.raises(KeyError):
        find_causes(suspect_of(decoder("llama"), f"{A}.v_proj", CASES["a weight that is zero"][3]))


def test_when_the_time_is_over_what_was_left_out_is_told():
    untried: list[str] = []
    plant = CASES["softmax over heads"][3]
    find_causes(suspect_of(decoder("llama"), A, plant), effort=Effort(-1.0), untried=untried)
    assert "the time was over" in untried[0]


@pytest.mark.parametrize(("text", "seconds"), [("quick", 10.0), ("normal", 60.0), ("25", 25.0), ("5s", 5.0)])
def test_an_effort_is_a_word_or_seconds(text, seconds):
    assert parse_effort(text).seconds == seconds


@pytest.mark.parametrize("text", ["soon", "-3", "0", "nan"])
def test_another_effort_is_refused(text):
    with pytest.raises(InputError):
        parse_effort(text)


@pytest.mark.heavy
def test_one_tolerated_mistake_that_several_tensors_show_is_one_finding():
    """A layer hands on its result and its attention weights: both are off because of one softmax."""
    import trtdx
    from trtdx.testing.tiny_models import replace_attention

    reference, candidate = decoder("llama"), decoder("llama")

    def attend(eager, module, query, key, value, mask, scaling, **more):
        key, value = (states.repeat_interleave(2, 1) for states in (key, value))
        weights = torch.softmax((query @ key.transpose(2, 3) * scaling + mask).bfloat16(), -1).float()
        return (weights @ value).transpose(1, 2), weights

    replace_attention(candidate.model.layers[1].self_attn, attend)
    (finding,) = trtdx.compare(reference, candidate, tokens=list(QUESTION.prompts[0])).findings
    assert finding.code == "DX974"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_a_live_model_without_a_second_kind_of_attention_is_compared_all_the_same(kind):
    import trtdx

    reference, candidate = decoder(kind), decoder(kind)
    with torch.no_grad():
        candidate.get_submodule(f"{A}.q_proj").weight.mul_(1.5)
    assert trtdx.compare(reference, candidate, tokens=list(QUESTION.prompts[0])).findings[0].code == "DX948"


def test_weights_whose_zero_point_was_left_out_are_told_by_their_offset():
    assert changed(lambda own: own + 0.2).code == "DX950"
    assert changed(lambda own: own + torch.linspace(0.1, 0.4, 6)[:, None]).code == "DX950"
    assert changed(lambda own: own + 0.2 * torch.randn(own.shape)) is None
