"""Planted mistakes are named, with the share they explain; healthy modules give nothing."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.model_zoo import CASES, HEALTHY, A, L, M
from support.planted_faults import ROWS, as_it_is, decoder, output, seen_at, suspect_of, weight
from trtdx.capture.store.format import CaptureHeader
from trtdx.compare.attribute import choose_cause, explanation_degree, find_causes
from trtdx.compare.attribute.module_bench import ModuleBench
from trtdx.compare.attribute.run import FAMILIES
from trtdx.compare.sides.side import SideSpec
from trtdx.knowledge.violation import Violation, finding_from

torch = sys.modules["torch"]
# bfloat16 leaves less of a mistake; one case of each kind shows that it is still enough.
LOW = {
    "pairs side by side", "base, inside attention", "linear scaling", "scale of the wrong width", "tokens see later ones",
    "another window", "key heads tiled", "norm without weight", "one not added", "gelu for silu", "gate and up exchanged",
    "shards of inputs exchanged", "sum of one rank", "bias lost", "weight of another layer", "embedding not scaled",
    "residual lost", "scale wrong", "cache in fp8", "weights of experts not normalised", "shared expert lost",
}  # fmt: skip


@functools.cache
def model(kind):
    return decoder(kind)


def told(case, dtype):
    torch.manual_seed(3)
    reference = decoder(case.kind, **case.settings) if case.settings else model(case.kind)
    return find_causes(suspect_of(reference, case.path, case.plant, dtype=dtype, **case.more))


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.name}")
def test_a_planted_mistake_is_named(case):
    found = told(case, "float32")
    assert (found[0].code, explanation_degree(found)) == (case.code, "explained"), found[:3]
    assert case.says in " ".join(found[0].values.values())
    assert choose_cause(found) is found[0]


@pytest.mark.heavy
@pytest.mark.parametrize("case", [case for case in CASES if case.name in LOW], ids=lambda case: case.name)
def test_a_planted_mistake_is_named_in_bfloat16(case):
    found = told(case, "bfloat16")
    assert (found[0].code, explanation_degree(found)) == (case.code, "explained"), found[:3]


@pytest.mark.parametrize(("kind", "path", "more"), HEALTHY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_healthy_module_gives_no_explanation(kind, path, more, dtype):
    assert find_causes(suspect_of(model(kind), path, dtype=dtype, **more)) == []


def test_every_code_that_is_told_has_its_page_in_its_words(book):
    for case in CASES:
        page = book.get(case.code)
        assert page.front.found is not None
        assert page.front.verify.endswith(("trtdx compare REF CAND", "trtdx compare CAND CAND"))


def test_the_finding_says_what_was_found(book):
    case = next(case for case in CASES if case.name == "base, inside attention")
    found = choose_cause(told(case, "float32"))
    finding = finding_from(book.get(found.code), Violation((), found.values))
    assert finding.message == "model.layers.1.self_attn turns with base 1e+06, the reference with 10000"


def test_the_runner_up_is_told():
    found = told(CASES[0], "float32")
    assert found[0].values["runner_up"] == found[1].code
    assert found[1].share < found[0].share


def test_what_nothing_explains_is_unexplained():
    plant = output(f"{M}.up_proj", lambda x, y: y + torch.sin(37 * y) * y.roll(5, -1))
    found = find_causes(suspect_of(model("llama"), f"{M}.up_proj", plant))
    assert explanation_degree(found) == "unexplained"
    assert choose_cause(found, f"{M}.up_proj").code == "DX946"


def test_two_mistakes_that_are_the_same_here_are_both_told():
    swapped = weight(f"{A}.k_proj", lambda held, _: held.roll(8, 0))  # two heads: as good as two shards
    found = find_causes(suspect_of(model("llama"), f"{A}.k_proj", swapped))
    assert {found[0].code, found[1].code} == {"DX973", "DX983"}
    assert found[0].values["alike"] == found[1].code


def test_a_layer_is_explained_by_what_is_wrong_inside_it():
    """Captures may be so coarse that the innermost module that is known is a layer."""
    case = next(case for case in CASES if case.name == "scale of the wrong width")
    assert find_causes(suspect_of(model("llama"), L, case.plant))[0].code == "DX967"


def test_errors_from_before_do_not_matter():
    """The candidate's own inputs are taken, so that what went wrong earlier explains nothing here."""
    earlier = output("model.layers.0", lambda x, y: 1.2 * y)
    assert find_causes(suspect_of(model("llama"), A, earlier)) == []


def test_tensors_inside_the_module_can_be_all_that_is_known():
    case = next(case for case in CASES if case.name == "key heads tiled")
    whole = suspect_of(model("llama"), A, case.plant, inner=(f"{A}.o_proj:in",))
    inside = {name: each for name, each in whole.candidate_outputs.items() if "o_proj" in name}
    assert find_causes(whole._replace(candidate_outputs=inside))[0].code == "DX972"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["residual lost", "residual twice", "gate and up exchanged", "relu in a mixture"])
def test_all_that_passes_inside_may_be_known(name):
    """What the parts give is right then, and only what is done with it is wrong."""
    case = next(case for case in CASES if case.name == name)
    inner = tuple(each for each in seen_at(model(case.kind), case.path, ROWS, 0)[2] if each.startswith(f"{case.path}."))
    found = find_causes(suspect_of(model(case.kind), case.path, case.plant, inner=inner))
    assert (found[0].code, explanation_degree(found)) == (case.code, "explained")


def test_of_a_later_step_the_whole_cache_may_be_given():
    """A comparison hands over what is in the cache, whether the module takes any of it or not."""
    case = next(case for case in CASES if case.name == "position off by one")
    suspect = suspect_of(model("llama"), case.path, case.plant)
    later = suspect_of(model("llama"), A, step=1)
    cache = {name: each for name, each in later.reference_inputs.items() if name.startswith("past.")}
    assert cache
    given = suspect._replace(reference_inputs={**suspect.reference_inputs, **cache}, candidate_inputs=cache)
    assert find_causes(given)[0].code == "DX965"


def test_infinite_numbers_of_float16_are_an_overflow():
    large = weight(f"{M}.up_proj", lambda held, _: held * 3e5)
    reference = decoder("llama")
    with large(reference):
        found = find_causes(suspect_of(reference, f"{M}.up_proj", as_it_is, dtype="float16"))
    assert (found[0].code, explanation_degree(found)) == ("DX997", "explained")


def test_the_reference_is_left_as_it_was():
    reference = model("llama")
    before = {name: each.clone() for name, each in reference.state_dict().items()}
    find_causes(suspect_of(reference, A, CASES[0].plant))
    assert all(torch.equal(each, before[name]) for name, each in reference.state_dict().items())
    assert reference.config._attn_implementation == "eager"
    assert not any(each._forward_hooks for each in reference.modules())


@pytest.mark.parametrize("path", [A, M, L, f"{A}.q_proj", "model.rotary_emb", "model.embed_tokens"])
def test_every_family_can_be_tried_on_every_kind_of_module(path):
    suspect = suspect_of(model("llama"), path, output(path, lambda x, y: y * y.abs() + 0.3))
    with torch.no_grad():
        bench = ModuleBench(suspect, suspect.engine)
        tried = [idea for family in FAMILIES.values() for idea in family(bench)]
    assert tried
    assert all(np.isfinite(bench.explained_share(idea.outputs)) for idea in tried if idea.share is None)


def test_a_mask_that_differs_itself_is_named_by_what_it_hides():
    """A wrong mask is the first wrong tensor, before any module has computed with it."""
    size = len(ROWS[0])
    behind = np.arange(size)[:, None] - np.arange(size)[None]
    low = np.finfo(np.float32).min
    own, found = (
        np.where(seen, 0, low)[None, None].astype("f4") for seen in (behind >= 0, (behind >= 0) & (behind < 5))
    )
    whole = suspect_of(model("llama"), A)
    told_window = find_causes(whole._replace(masks={f"{A}:in.attention_mask": (own, found)}))
    assert (told_window[0].code, told_window[0].values["found"]) == ("DX971", "5")
    strict = np.where((behind > 0) | (behind + np.arange(size)[None] == 0), 0, low)[None, None].astype("f4")
    assert find_causes(whole._replace(masks={f"{A}:in.attention_mask": (own, strict)}))[0].code == "DX935"
    assert find_causes(whole._replace(masks={f"{A}:in.attention_mask": (own, own)})) == []


def test_numbers_too_small_for_their_type_are_named_though_the_reference_has_them_too():
    small = decoder("llama")
    with torch.no_grad():
        for name in ("gate_proj", "up_proj"):
            small.get_submodule(f"{M}.{name}").weight.mul_(5e-4)
    found = find_causes(suspect_of(small, M, dtype="float16", inner=(f"{M}.down_proj:in",)))
    assert found[0].code == "DX998"


@pytest.mark.parametrize("span", [0.02, 0.2])
def test_numbers_that_are_each_multiplied_by_their_own_were_made_by_chance(span):
    torch.manual_seed(5)
    plant = output(f"{M}.up_proj", lambda x, y: y * (1 + span * (2 * torch.rand_like(y) - 1)))
    found = find_causes(suspect_of(model("llama"), f"{M}.up_proj", plant))
    assert choose_cause(found).code == "DX959"


def test_dropout_is_seen_in_the_weights_of_attention_of_one_run():
    """A capture cannot be run again, but what was dropped can be solved for."""
    case = next(case for case in CASES if case.name == "dropout on")
    torch.manual_seed(3)
    reference = decoder("llama", **case.settings)
    found = find_causes(suspect_of(reference, A, case.plant, inner=(f"{A}.o_proj:in",)))
    assert (found[0].code, found[0].values["rate"]) == ("DX958", "0.3")


class Ranks:
    """A mock: a candidate's side of two ranks, of which only the hashes of one tensor are asked."""

    def __init__(self, *hashes):
        self.capture, self.spec, self.header = self, SideSpec("capture", ""), CaptureHeader()
        self.ranks = range(len(hashes))
        self._hashes = hashes

    def records(self, *, step, rank):
        from types import SimpleNamespace

        held = SimpleNamespace(hash=self._hashes[rank])
        return [SimpleNamespace(name=f"{M}.down_proj:out", statistics=held)]


@pytest.mark.parametrize(("hashes", "code"), [(("a", "b"), "DX985"), (("a", "a"), "DX984")])
def test_a_sum_that_was_not_taken_leaves_each_rank_its_own(hashes, code):
    lost = weight(f"{M}.down_proj", lambda held, _: torch.cat((held[:, :24], 0 * held[:, 24:]), 1))
    suspect = suspect_of(model("llama"), f"{M}.down_proj", lost)
    assert find_causes(suspect._replace(candidate=Ranks(*hashes)))[0].code == code


def test_a_healthy_tensor_does_not_drown_the_wrong_one():
    """In bfloat16 many healthy tensors of a module have more noise together than a small mistake in one of them."""
    inner = tuple(f"{A}.{part}:{port}" for part in ("q_proj", "k_proj", "v_proj", "o_proj") for port in ("in", "out"))
    plant = output(f"{A}.o_proj", lambda x, y: 1.03 * y)
    bench = ModuleBench(suspect := suspect_of(model("llama"), A, plant, dtype="bfloat16", inner=inner), suspect.engine)
    assert set(bench.wrong_targets) == {f"{A}:out", f"{A}.o_proj:out"}
