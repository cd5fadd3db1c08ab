"""Requests and the engines or servers that are to take them: one cause gives one finding, with what would do."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.make_settings import PADDED, engine
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.engine import lengths, limits, shapes
from trtdx.inspect.agreements.server import limits as server_limits
from trtdx.inspect.facts.artifact import Artifact, Deployment, Fact
from trtdx.inspect.requests.request_shapes import RequestChecker
from trtdx.inspect.requests.requests import Request, parse_request, read_request_trace
from trtdx.knowledge.load import load_book

BOOK = load_book(RealHost())
FMHA = {"plugin__context_fmha": True, "plugin__use_paged_context_fmha": True}


def found(*artifacts: Artifact):
    return judge_findings(agreements_in(lengths, shapes, limits, server_limits), Deployment(artifacts), BOOK)


def asked(artifact: Artifact, text: str, *others: Artifact):
    return {each.code: each for each in found(artifact, parse_request(text), *others)}


def options(kind: str = "llm-args", **facts) -> Artifact:
    named = {name.replace("__", "."): value for name, value in facts.items()}
    return Artifact(kind, kind, {name: Fact(value, f"{kind}: {name}") for name, value in named.items()})


def test_a_request_that_fits_gives_nothing():
    assert asked(engine(**FMHA), "batch=8,input_len=900,output_len=100") == {}


def test_a_long_prompt_is_one_finding_whatever_it_breaks():
    (finding,) = asked(engine(**FMHA), "batch=8,input_len=9000,output_len=512,beam=1").values()
    assert finding.code == "DX270"
    assert finding.message.startswith("a prompt of 9000 tokens is longer than the 4095 tokens the engine takes")
    assert len(finding.evidence) > 3
    assert "--max_seq_len 9512 --max_num_tokens 9000" in finding.fixes[0].command
    assert "4095" in finding.fixes[1].text


def test_max_input_len_counts_only_where_prompts_are_padded_or_attention_is_not_fused():
    assert set(asked(engine(**FMHA), "input_len=2000,output_len=100")) == {"DX913"}
    assert "DX270" in asked(engine(**PADDED), "input_len=2000,output_len=100")
    assert "DX270" in asked(engine(plugin__context_fmha=False), "input_len=2000,output_len=100")
    assert "DX270" in asked(engine(version="0.10.0", **FMHA), "input_len=2000,output_len=100")


@pytest.mark.parametrize(
    ("paged", "server", "severity"),
    [
        (True, {}, "warning"),
        (True, {"runtime__chunked_context": False}, "error"),
        (False, {}, "error"),
        (True, {"runtime__chunked_context": True}, None),
    ],
)
def test_a_prompt_longer_than_a_step_depends_on_chunked_context(paged, server, severity):
    long = engine(max_seq_len=32768, **FMHA | {"plugin__use_paged_context_fmha": paged})
    finding = asked(long, "input_len=9000,output_len=100", options(**server)).get("DX270")
    assert (finding and finding.severity.value) == severity


def test_an_answer_that_is_too_long_is_cut_by_the_executor_and_refused_by_the_session():
    cut = asked(engine(**FMHA), "input_len=4000,output_len=200")["DX271"]
    assert cut.severity.value == "warning"
    assert "shortens the answer" in cut.message
    assert "at most 96 tokens" in cut.fixes[0].text
    refused = asked(engine(**PADDED), "input_len=1000,output_len=4000")["DX271"]
    assert refused.severity.value == "error"


def test_old_engines_are_told_by_their_own_flags():
    old = engine(version="0.9.0", max_seq_len=None, max_output_len=512)
    finding = asked(old, "input_len=1000,output_len=600")["DX271"]
    assert finding.fixes[1].command.endswith("--max_input_len 1024 --max_output_len 600")


@pytest.mark.parametrize("request_", ["input_len=2049,output_len=10", "input_len=10,output_len=10,beam=9,batch=90"])
def test_no_fix_takes_room_away(request_):
    old = engine(version="0.9.0", max_seq_len=None, max_input_len=2048, max_output_len=2048)
    for finding in asked(old, request_).values():
        for fix in finding.fixes:
            for flag, value in re.findall(r"--(max_\w+) (\d+)", fix.command or ""):
                assert int(value) >= (old.integer(flag) or 0)


OLD = {
    "version": None,
    "era": "before 0.8",
    "max_input_len": 2048,
    "max_output_len": 512,
    "max_seq_len": 2560,
}


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        ("input_len=2048,output_len=512", None, ""),
        ("input_len=2049,output_len=10", "DX270", "2048 tokens the engine takes (max_input_len)"),
        ("input_len=1000,output_len=600", "DX271", "more than max_output_len 512"),
        ("input_len=2000,output_len=600", "DX271", "ModelRunner and run.py refuse the request"),
    ],
)
def test_before_0_8_prompt_and_answer_have_a_limit_each(request_, code, words):
    findings = asked(engine(**OLD, build__name="llama"), request_)
    assert list(findings) == ([code] if code else [])
    for finding in findings.values():
        assert finding.severity.value == "error"
        assert words in finding.message
        assert "max_seq_len" not in (finding.fixes[0].command or "") + (finding.fixes[1].command or "")
        commands = [fix.command for fix in finding.fixes if fix.command]
        assert all(each.startswith("python3 examples/llama/build.py") for each in commands)
        assert not any("kv_cache_block_offsets" in each.where for each in finding.evidence)


def test_what_chunking_cannot_save_is_told_apart(tmp_path):
    long = engine(max_seq_len=8192, max_num_tokens=4096, max_input_len=8192, **FMHA)
    hard = asked(long, "input_len=9000,output_len=10")["DX270"]
    assert hard.severity.value == "error"
    assert "chunked context alone does not help" in hard.fixes[1].text
    soft = asked(long, "input_len=5000,output_len=10")["DX270"]
    assert soft.severity.value == "warning"
    assert "or serve with chunked context" in soft.fixes[1].text
    path = tmp_path / "trace.jsonl"
    lengths = [(100, 10)] * 5 + [(5000, 10)] * 2 + [(9000, 10)]
    path.write_text("".join(json.dumps({"isl": a, "osl": b}) + "\n" for a, b in lengths))
    findings = [each for each in found(long, read_request_trace(RealHost(), str(path))) if each.code == "DX270"]
    assert [each.severity.value for each in findings] == ["error", "warning"]
    assert "(1 of 8 requests)" in findings[0].message
    assert "(2 of 8 requests)" in findings[1].message


def test_the_runners_are_held_to_max_input_len_and_the_executor_is_not():
    finding = asked(engine(**FMHA), "input_len=1500,output_len=10")["DX913"]
    assert finding.severity.value == "note"
    assert "ModelRunnerCpp" in finding.message
    assert asked(engine(**FMHA), "input_len=1500,output_len=10", options("triton", runtime__backend="tensorrt")) == {}


def test_one_beam_is_one_beam():
    finding = asked(engine(**FMHA), "input_len=9,output_len=9,beam=2")["DX312"]
    assert finding.fixes[0].text.startswith("send at most 1 beam (")


def test_draft_tokens_are_added_by_the_builder_itself():
    target = engine(max_draft_len=4, speculative_mode="DRAFT_TOKENS_EXTERNAL", **FMHA)
    finding = asked(target, "input_len=1000,output_len=3095,draft_len=4")["DX271"]
    assert "adds max_draft_len to it by itself" in finding.fixes[1].text


def test_a_large_batch_is_queued_by_the_executor_and_refused_by_the_session():
    assert asked(engine(**FMHA), "batch=65,input_len=9,output_len=9")["DX274"].severity.value == "warning"
    assert asked(engine(**PADDED), "batch=65,input_len=9,output_len=9")["DX274"].severity.value == "error"


def test_prompts_that_do_not_share_a_step_are_a_note():
    finding = asked(engine(**FMHA), "batch=8,input_len=2000,output_len=9")["DX918"]
    assert finding.severity.value == "note"
    assert "takes 4 prompts at a time, 2 steps in all" in finding.message


def test_a_packed_engine_without_paged_cache_has_no_scheduler():
    session = engine(kv_cache_type="continuous", max_input_len=2000)
    assert asked(session, "batch=8,input_len=2000,output_len=9")["DX918"].severity.value == "error"


def test_each_request_gets_its_share_of_the_prompt_table():
    table = engine(max_batch_size=8, max_prompt_table=4608, **FMHA)
    assert asked(table, "input_len=700,output_len=9,prompt_table=576") == {}
    finding = asked(table, "input_len=700,output_len=9,prompt_table=577")["DX919"]
    assert "--max_prompt_embedding_table_size 4616" in finding.fixes[0].command
    assert "max_batch_size 7" in finding.fixes[1].text
    assert asked(table, "input_len=700,output_len=9,prompt_table=577", options(max_batch_size=7)) == {}


def test_the_rank_of_a_requests_adapter():
    host = engine(lora__max_rank=32, **FMHA)
    assert set(asked(host, "input_len=7,output_len=9,lora_rank=64")) == {"DX115"}
    assert asked(host, "input_len=7,output_len=9,lora_rank=32") == {}


def test_a_trace_gives_one_finding_for_each_cause_with_counts(tmp_path):
    path = tmp_path / "trace.jsonl"
    lengths = [(100, 10)] * 5 + [(5000, 10)] * 2 + [(6000, 10)] + [(3000, 2000)]
    path.write_text("".join(json.dumps({"isl": a, "osl": b}) + "\n" for a, b in lengths))
    by_code = {each.code: each for each in found(engine(**FMHA), read_request_trace(RealHost(), str(path)))}
    assert set(by_code) == {"DX270", "DX271"}
    assert "6000 tokens" in by_code["DX270"].message
    assert "(3 of 9 requests)" in by_code["DX270"].message
    assert by_code["DX270"].where.endswith("trace.jsonl:8")
    assert "(1 of 9 requests)" in by_code["DX271"].message


def test_the_pytorch_backend_has_the_limits_it_is_started_with():
    server = options(max_num_tokens=8192, max_seq_len=16384, max_beam_width=1, runtime__backend="pytorch")
    assert asked(server, "input_len=8192,output_len=100") == {}
    assert set(asked(server, "input_len=9000,output_len=100")) == {"DX272"}
    assert set(asked(server, "input_len=8000,output_len=9000")) == {"DX920"}
    assert set(asked(server, "input_len=80,output_len=90,beam=2")) == {"DX213"}


def test_a_servers_options_are_not_compared_where_an_engine_is_served():
    assert asked(engine(**FMHA), "input_len=900,output_len=100", options(max_num_tokens=100)) == {}


def test_a_build_command_is_no_server():
    built = options("command", max_num_tokens=100, runtime__command="trtllm-build")
    assert asked(built, "input_len=900,output_len=100") == {}


def test_the_tensorrt_backend_is_no_pytorch_server():
    assert asked(options(max_num_tokens=100, runtime__backend="tensorrt"), "input_len=900,output_len=9") == {}


@pytest.mark.parametrize("wrong", [{"architecture": "MambaForCausalLM"}, {"max_batch_size": None}])
def test_an_engine_whose_limits_are_not_known_is_passed_over(wrong):
    assert asked(engine(**FMHA, **wrong), "batch=9999,input_len=99999,output_len=100") == {}


SIZES = st.tuples(st.integers(1, 100), st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 5))
SOME = st.sampled_from(
    [
        engine(**FMHA),
        engine(**FMHA, max_beam_width=4, max_batch_size=16),
        engine(**PADDED),
        engine(**PADDED, plugin__gemm_plugin=False, max_beam_width=2),
        engine(version="0.16.0", max_num_tokens=2048, plugin__context_fmha=True),
        engine(version="0.9.0", max_seq_len=None, max_output_len=512),
    ]
)


def words(sizes) -> str:
    return Request(*sizes).words


@given(SOME, SIZES)
def test_a_request_inside_all_limits_gives_nothing(artifact, sizes):
    s = RequestChecker(artifact).settings
    beam, prompt = min(sizes[3], s.max_beam_width), min(sizes[1], s.max_input_len, s.max_num_tokens)
    batch = max(1, min(sizes[0], s.max_batch_size, s.max_num_tokens // max(prompt, beam)))
    answer = min(sizes[2], s.max_seq_len - prompt)
    assert asked(artifact, words((batch, prompt, answer, beam))) == {}


@pytest.mark.heavy
@given(SOME, SIZES)
def test_what_no_finding_speaks_of_fits(artifact, sizes):
    if not asked(artifact, words(sizes)):
        assert RequestChecker(artifact).accepts(Request(*sizes))


@pytest.mark.heavy
@given(SOME, SIZES, SIZES)
def test_a_larger_request_is_never_fine_where_a_smaller_one_is_not(artifact, sizes, more):
    larger = tuple(a + b for a, b in zip(sizes, more, strict=True))
    assert asked(artifact, words(larger)) or not asked(artifact, words(sizes))


FACTS = {
    "--max_seq_len": "max_seq_len", "--max_input_len": "max_input_len", "--max_num_tokens": "max_num_tokens",
    "--max_batch_size": "max_batch_size", "--max_beam_width": "max_beam_width", "--max_output_len": "max_output_len",
}  # fmt: skip


@pytest.mark.heavy
@given(SOME, SIZES)
def test_an_engine_rebuilt_with_the_flags_takes_the_request(artifact, sizes):
    findings = asked(artifact, words(sizes))
    facts = dict(artifact.facts)
    for finding in findings.values():
        for fix in finding.fixes:
            for flag, value in re.findall(r"(--\w+) (\d+)", fix.command or ""):
                name = FACTS.get(flag, flag.lstrip("-"))
                known = facts[name].value if name in facts else 0
                facts[name] = Fact(max(known, int(value)), name)
    rebuilt = Artifact("engine", "rebuilt", facts)
    left = asked(rebuilt, words(sizes))
    # a batch that takes several steps is no fault, and a bound that was raised may leave room for more
    assert set(left) <= {"DX918"}


@pytest.mark.parametrize(
    ("positions", "text"), [(8192, "input_len=9000,output_len=1"), (8192, "input_len=4000,output_len=5000")]
)
def test_no_engine_is_advised_that_is_longer_than_the_models_positions(positions, text):
    (finding,) = asked(engine(**FMHA, max_positions=positions), text).values()
    assert [fix.command for fix in finding.fixes] == [None]
    (finding,) = asked(engine(**FMHA, max_positions=131072), text).values()
    assert any("--max_seq_len" in (fix.command or "") for fix in finding.fixes)
