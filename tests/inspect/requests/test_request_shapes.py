"""Whether an engine takes a request: shapes of every input in every step, against the profile."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support.make_settings import PADDED, engine
from trtdx.host import RealHost
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.requests.limits import engine_loads
from trtdx.inspect.requests.request_shapes import (
    SHAPE_COLUMNS,
    RequestChecker,
    shape_section,
    steps_of_request,
)
from trtdx.inspect.requests.requests import FIELD_NAMES, Request, parse_request, read_request_trace

BARE = PADDED | {"plugin.gpt_attention_plugin": False, "plugin.gemm_plugin": False}


def shapes(artifact, request: Request, *, chunked: bool = False) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shape of each input by step."""
    shapes_by_step: dict[str, dict[str, tuple[int, ...]]] = {}
    for fit in RequestChecker(artifact, chunked=chunked).input_fits(request):
        shapes_by_step.setdefault(fit.step, {})[fit.tensor] = fit.shape
    return shapes_by_step


def test_a_packed_engine_gets_all_prompts_in_a_row_and_then_a_token_for_each():
    step_shapes = shapes(engine(max_beam_width=2), Request(batch=4, input_len=100, output_len=50, beam=2))
    assert list(step_shapes) == ["context", "generation"]
    assert step_shapes["context"]["input_ids"] == (400,)
    assert step_shapes["context"]["sequence_length"] == (4,)
    assert step_shapes["generation"]["input_ids"] == (8,)
    assert step_shapes["generation"]["kv_cache_block_offsets"] == (1, 8, 2, 5)
    assert step_shapes["generation"]["cache_indirection"] == (4, 2, 150)


def test_a_padded_engine_gets_rows_as_long_as_the_longest_prompt():
    step_shapes = shapes(engine(**PADDED), Request(batch=4, input_len=100, output_len=50))
    assert step_shapes["context"]["input_ids"] == (4, 100)
    assert step_shapes["generation"]["input_ids"] == (4, 1)
    assert step_shapes["context"]["past_key_value_0"] == (4, 2, 8, 150, 128)


def test_without_attention_plugin_cache_and_mask_grow_step_by_step():
    step_shapes = shapes(engine(**BARE), Request(batch=4, input_len=100, output_len=50))
    assert list(step_shapes) == ["context", "generation, first step", "generation, last step"]
    assert [sizes["attention_mask"] for sizes in step_shapes.values()] == [(4, 100), (4, 101), (4, 149)]
    assert [sizes["past_key_value_0"][3] for sizes in step_shapes.values()] == [0, 100, 148]


def test_the_first_token_comes_from_the_prompt():
    assert list(shapes(engine(), Request(input_len=100, output_len=1))) == ["context"]
    assert list(shapes(engine(**BARE), Request(input_len=100, output_len=2))) == [
        "context",
        "generation, first step",
    ]


def test_with_chunked_context_a_long_prompt_is_several_steps():
    long = engine(max_seq_len=32768)
    step_shapes = shapes(long, Request(input_len=20000, output_len=10), chunked=True)
    assert [(step, sizes["input_ids"]) for step, sizes in step_shapes.items()] == [
        ("context, chunk 1 of 3", (8192,)),
        ("context, chunk 3 of 3", (3616,)),
        ("generation", (1,)),
    ]
    assert RequestChecker(long, chunked=True).accepts(Request(input_len=20000, output_len=10))
    assert not RequestChecker(long).accepts(Request(input_len=20000, output_len=10))


def test_draft_tokens_make_steps_longer():
    medusa = engine(max_draft_len=63, speculative_mode="MEDUSA")
    step_shapes = shapes(medusa, Request(batch=2, input_len=100, output_len=50))
    assert step_shapes["generation"]["input_ids"] == (128,)
    assert step_shapes["generation"]["spec_decoding_packed_mask"] == (128, 2)
    assert step_shapes["context"]["spec_decoding_generation_lengths"] == (0,)
    external = engine(max_draft_len=4, speculative_mode="DRAFT_TOKENS_EXTERNAL")
    step_shapes = shapes(external, Request(batch=2, input_len=100, output_len=50, draft_len=4))
    assert step_shapes["context"]["input_ids"] == (208,)
    assert step_shapes["generation"]["input_ids"] == (2,)


def test_the_encoders_input_is_there_only_in_the_first_step():
    decoder = engine(architecture="DecoderModel", max_input_len=1, max_encoder_input_len=1024)
    step_shapes = shapes(decoder, Request(batch=2, input_len=1, output_len=50, encoder_input_len=300))
    assert step_shapes["context"]["encoder_output"] == (600, 4096)
    assert step_shapes["generation"]["encoder_output"] == (0, 4096)
    assert step_shapes["context"]["encoder_max_input_length"] == (300,)


def test_the_profile_is_chosen_by_phase_or_by_tokens():
    split = RequestChecker(engine(**PADDED, plugin__gemm_plugin=False))
    assert [
        fit.profile
        for fit in split.input_fits(Request(batch=2, input_len=9, output_len=5))
        if fit.tensor == "input_ids"
    ] == [0, 1]
    cut = RequestChecker(engine(multiple_profiles=True))
    assert [
        fit.profile
        for fit in cut.input_fits(Request(batch=2, input_len=200, output_len=5))
        if fit.tensor == "input_ids"
    ] == [3, 0]


def test_a_misfit_names_axis_meaning_bounds_and_flag():
    section = shape_section(engine(), [parse_request("input_len=9000,output_len=100")])
    assert section.columns == SHAPE_COLUMNS
    assert section.title == "Shapes of input_len=9000,output_len=100 in engine"
    rows = {(row[0], row[2]): row for row in section.rows}
    row = rows["context", "input_ids"]
    assert row[3:6] == ("(9000)", "(1) to (8192)", False)
    assert row[6] == (
        "axis 0 (tokens of one step, all requests packed) is 9000, allowed 1 to 8192, set by --max_num_tokens"
    )
    assert rows["generation", "input_ids"][5] is True
    assert "C++ executor" in section.note


def test_the_flag_is_the_one_of_the_engines_kind_and_release():
    def words(artifact, text):
        return " ".join(row[6] for row in shape_section(artifact, [parse_request(text)]).rows)

    split = engine(kv_cache_type="continuous", plugin__gemm_plugin=False)
    assert "set by --max_batch_size and --max_input_len" in words(split, "batch=64,input_len=1025")
    old = engine(version="0.9.0", max_seq_len=None, max_output_len=1000)
    assert "set by --max_input_len and --max_output_len" in words(old, "input_len=1000,output_len=2000")


def test_inputs_of_many_layers_are_one_row():
    rows = shape_section(engine(**PADDED), [parse_request("input_len=10,output_len=2")]).rows
    assert [row[2] for row in rows if row[0] == "context" and "past" in row[2]] == [
        "past_key_value_0 to 31",
        "host_past_key_value_lengths",
    ]


def test_an_engine_whose_inputs_are_not_known_says_so():
    section = shape_section(engine(architecture="MambaForCausalLM"), [parse_request("input_len=10")])
    assert section.rows == ()
    assert section.note.startswith("not checked: MambaForCausalLM")


def test_of_a_trace_the_worst_request_is_shown(tmp_path):
    path = tmp_path / "trace.jsonl"
    lengths = [*range(100, 200), 9001, 9002, 9000]
    path.write_text("".join(json.dumps({"input_len": n, "output_len": 9}) + "\n" for n in lengths))
    section = shape_section(engine(), [read_request_trace(RealHost(), str(path))])
    assert section.title.startswith("Shapes of input_len=9002,output_len=9 in")
    assert "3 of 103 requests do not fit as asked; the worst is shown" in section.note


def test_profiles_that_were_read_count_before_derived_ones():
    known = engine()
    from trtdx.formats.tensorrt.nouns import OptimizationProfile, ShapeRange

    read = type(known)(
        "engine",
        "e",
        known.facts,
        profiles=(OptimizationProfile(0, (ShapeRange("input_ids", (1,), (8,), (50,)),), "read from a log"),),
    )
    assert not RequestChecker(read).accepts(Request(input_len=51))
    assert RequestChecker(read).accepts(Request(input_len=50, output_len=9))


def buildable(changes):
    """Return an engine; packed inputs and a paged cache need the attention plugin."""
    without = {"plugin__remove_input_padding": False, "kv_cache_type": "continuous"}
    return engine(**(changes | ({} if changes["plugin__gpt_attention_plugin"] else without)))


ENGINES = st.fixed_dictionaries(
    {
        "version": st.sampled_from(["0.9.0", "0.12.0", "0.16.0", "1.2.1"]),
        "max_batch_size": st.integers(1, 64),
        "max_beam_width": st.integers(1, 4),
        "max_input_len": st.integers(1, 2000),
        "max_seq_len": st.integers(2001, 6000),
        "max_num_tokens": st.integers(256, 8192),
        "opt_num_tokens": st.just(None),
        "tokens_per_block": st.sampled_from([16, 32, 64, 128]),
        "num_layers": st.just(2),
        "kv_cache_type": st.sampled_from(["paged", "continuous"]),
        "multiple_profiles": st.booleans(),
        "plugin__remove_input_padding": st.booleans(),
        "plugin__gpt_attention_plugin": st.sampled_from([False, "auto"]),
        "plugin__gemm_plugin": st.sampled_from([False, "auto"]),
    }
).map(buildable)
SIZES = st.tuples(st.integers(1, 80), st.integers(1, 7000), st.integers(1, 7000), st.integers(1, 6))


def within(artifact, batch: int, prompt: int, answer: int, beam: int) -> Request:
    """Return the largest request that is no larger than the numbers and than any limit of the engine."""
    s = RequestChecker(artifact).settings
    beam, prompt = min(beam, s.max_beam_width), min(prompt, s.max_input_len)
    batch = min(batch, s.max_batch_size)
    if s.is_packed and not (s.splits_phases and s.since(0, 10)):
        prompt = min(prompt, s.max_num_tokens)
        batch = max(1, min(batch, s.max_num_tokens // max(prompt, beam)))
    return Request(batch, prompt, max(1, min(answer, s.max_seq_len - prompt)), beam)


@given(ENGINES, SIZES)
def test_a_request_inside_all_limits_fits(artifact, sizes):
    request = within(artifact, *sizes)
    checker = RequestChecker(artifact)
    assert checker.misfitting_inputs(request) == []
    assert checker.accepts(request)


@given(ENGINES, SIZES, SIZES)
def test_a_larger_request_never_fits_where_a_smaller_one_does_not(artifact, sizes, more):
    small = Request(*sizes)
    large = Request(*(a + b for a, b in zip(sizes, more, strict=True)))
    checker = RequestChecker(artifact)
    assert not (checker.accepts(large) and not checker.accepts(small))


@given(ENGINES, SIZES, SIZES)
def test_enlarging_a_request_never_removes_a_misfit(artifact, sizes, more):
    assume(not artifact.get("multiple_profiles"))  # a larger step may be served by another profile
    small = Request(*sizes)
    large = Request(*(a + b for a, b in zip(sizes, more, strict=True)))
    checker = RequestChecker(artifact)

    def wrong(request):
        return {(fit.step, fit.tensor, axis) for fit in checker.misfitting_inputs(request) for axis in fit.misfit_axes}

    assert {each for each in wrong(small) if each[0] in _steps(checker, large)} <= wrong(large)


def _steps(checker, request):
    return {step.name for step in steps_of_request(checker.settings, request)}


@given(ENGINES, SIZES)
def test_the_quick_answer_is_the_long_one(artifact, sizes):
    checker = RequestChecker(artifact)
    assert checker.accepts(Request(*sizes)) == (not checker.misfitting_inputs(Request(*sizes)))


@pytest.mark.parametrize("key", FIELD_NAMES)
def test_every_part_of_a_request_reaches_the_engine(key):
    (taker,) = engine_loads(Deployment((engine(), parse_request(f"{key}=7"))))
    assert getattr(taker.requests[0], key) == 7


NUMBERS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([64, 2**31, 2**40, -(2**70)]))
LIMITS = ("max_batch_size", "max_beam_width", "max_input_len", "max_seq_len", "max_num_tokens", "opt_num_tokens",
          "max_draft_len", "max_prompt_table", "tokens_per_block", "num_layers", "num_heads", "hidden_size", "tp_size",
          "pp_size", "head_size", "max_encoder_input_len", "plugin__tokens_per_block")  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(LIMITS), NUMBERS),
    st.sampled_from(["1.2.1", "0.9.0", "nonsense", "", None]),
    st.sampled_from(["LlamaForCausalLM", "DecoderModel", "EncoderModel", "EagleForCausalLM", ""]),
    st.booleans(),
)
def test_no_engine_is_too_odd(changes, version, architecture, packed):
    odd = engine(**changes, version=version, architecture=architecture, plugin__remove_input_padding=packed)
    section = shape_section(odd, [parse_request("batch=2,input_len=5,output_len=3,prompt_table=4,encoder_input_len=9")])
    assert section.rows or section.note
