"""Constants from the user's own logs: learnt, kept, used; and bad logs refused with a reason."""

from __future__ import annotations

import msgspec
import pytest

from support.make_setups import LLAMA_8B, make_setup
from trtdx.errors import InputError
from trtdx.host import RealHost, RecordedHost
from trtdx.knowledge.load import load_book
from trtdx.memory.ledger.calibration import (
    CalibrationConstants,
    CalibrationFactor,
    constants_path,
    load_constants,
    store_constants,
)
from trtdx.memory.logs.calibrate import calibrate_factors, with_log_settings
from trtdx.memory.logs.read import read_memory_log
from trtdx.memory.logs.report import report_calibration, report_log_memory
from trtdx.memory.nouns import GIB, Component, Figure, MemoryLedger, RankLedger, Setup, sum_figures

BOOK = load_book(RealHost())
TOTAL = 79.50


def log_of(
    *, weights: float = 14.96, activation: float = 1.5, outside: float = 1.4, per_token: int = 131072, tail: str = ""
) -> str:  # fmt: skip
    """Return the log of a start of the PyTorch backend whose numbers add up."""
    inside, temporary = weights + 0.1, 1.0
    peak = inside + activation + outside + temporary
    budget = (TOTAL - peak + temporary) * 0.9
    tokens = int(budget * GIB // per_token) // 32 * 32
    return f"""\
[TRT-LLM] [I] max_seq_len=4096, max_num_requests=256, max_num_tokens=8192
[TRT-LLM] [I] Use {weights:.2f} GB for model weights.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.00 GiB for max tokens in paged KV cache (8192).
[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: {inside:.2f} GiB
[TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: {activation:.2f} GiB
[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: {outside + temporary:.2f} GiB
[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): {peak:.2f} GiB, available KV cache memory when calculating max tokens: {budget:.2f} GiB, fraction is set 0.9, kv size per token is {per_token}. device total memory {TOTAL:.2f} GiB, temporary kv cache memory during profiling 1.00 GiB
[TRT-LLM] [I] Estimated max memory in KV cache : {budget:.2f} GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated {budget:.2f} GiB for max tokens in paged KV cache ({tokens}).
{tail}"""


def read(text: str, name: str = "serve.log"):
    return read_memory_log(RecordedHost({name: text.encode()}), name)


def simple_plan(setup: Setup, constants: CalibrationConstants | None = None) -> MemoryLedger:
    """A stand-in for the planner with round numbers: 1 GiB of activation for 8192 tokens, 1 GiB of context."""
    parts = [
        Component("cuda_context", Figure.with_tolerance(1 * GIB, 0.5)),
        Component("activation", Figure.with_tolerance(setup.limits.max_num_tokens / 8192 * GIB, 0.4)),
    ]
    parts = [constants.apply_factor(setup, each) for each in parts] if constants else parts
    rank = RankLedger(
        rank=0,
        components=tuple(parts),
        kv_bytes_per_token=Figure.exact(131072),
        kv_tokens=Figure.exact(0),
        total_bytes=sum_figures(each.bytes for each in parts),
    )
    return MemoryLedger(setup=setup, ranks=(rank,))


def learnt_from(*texts: str, known: CalibrationConstants | None = None):
    logs = [(read(text, f"{number}.log"), make_setup()) for number, text in enumerate(texts)]
    return calibrate_factors(logs, simple_plan, known)


def test_a_factor_is_what_was_measured_over_what_was_planned():
    result = learnt_from(log_of())
    constants = result.constants.entries
    assert constants["pytorch/llama/activation_factor"].value == 1.5
    assert constants["pytorch/llama/outside_factor"].value == pytest.approx(1.4, abs=0.01)
    assert constants["pytorch/llama/activation_factor"].lines == ("0.log:5",)


def test_more_logs_make_narrower_bands_that_hold_them_all():
    texts = [log_of(activation=each) for each in (1.45, 1.5, 1.55, 1.5, 1.49)]
    one = learnt_from(texts[1]).constants.entries["pytorch/llama/activation_factor"]
    many = learnt_from(*texts).constants.entries["pytorch/llama/activation_factor"]
    assert many.logs == 5
    assert many.low < 1.45
    assert many.high > 1.55
    assert many.value == 1.5
    same = learnt_from(*[texts[1]] * 5).constants.entries["pytorch/llama/activation_factor"]
    assert same.high - same.low < one.high - one.low


def test_the_plan_with_constants_tells_what_was_measured_in_a_narrower_band():
    constants = learnt_from(log_of()).constants
    setup = make_setup()
    before, after = simple_plan(setup).ranks[0], simple_plan(setup, constants).ranks[0]
    activation = after.find_component("activation").bytes
    assert activation.value == 1.5 * GIB
    assert activation.source.startswith("measured")
    formula = before.find_component("activation").bytes
    assert (activation.high - activation.low) / activation.value < (formula.high - formula.low) / formula.value
    assert activation.low <= activation.value <= activation.high


def test_a_factor_scales_with_the_set_up():
    constants = learnt_from(log_of()).constants
    double = make_setup(limits={"max_num_tokens": 16384})
    assert simple_plan(double, constants).ranks[0].component_bytes("activation") == 3 * GIB


def test_another_family_or_backend_is_left_alone():
    constants = learnt_from(log_of()).constants
    other = make_setup(msgspec.structs.replace(LLAMA_8B, model_type="qwen2"))
    engine = make_setup(backend="tensorrt")
    for setup in (other, engine):
        assert simple_plan(setup, constants).ranks[0].component_bytes("activation") == 1 * GIB


def test_what_was_compiled_or_measured_is_not_scaled():
    constants = learnt_from(log_of()).constants
    compiled = Component("activation", Figure.exact(GIB, "compiled: TensorRT builder"))
    assert constants.apply_factor(make_setup(), compiled) is compiled


def test_what_the_log_prints_rules_over_the_set_up():
    setup = with_log_settings(make_setup(limits={"max_num_tokens": 1024}), read(log_of()))
    assert (setup.limits.max_num_tokens, setup.limits.max_batch_size) == (8192, 256)
    assert setup.running.free_fraction == 0.9
    assert setup.device.total_bytes == round(TOTAL * GIB)


FAILED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.80 GiB. GPU 0 has a total capacity of 79.50 GiB of which 3.10 GiB is free."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (log_of(tail=FAILED), "ran out of memory"),
        ("\n".join(log_of().splitlines()[:4]), "ends before the memory profile"),
        (log_of() + log_of(activation=3.5), "two servers in one log"),
        (log_of().replace("profiling: 1.50 GiB", "profiling: 9.50 GiB"), "its parts sum up to"),
        (log_of().replace("fraction is set 0.9", "fraction is set 0.5"), "by its own numbers"),
        (log_of(per_token=65536), "one token of its KV cache takes 65536 bytes, by the plan 131072"),
        ("all is well\n", "states no activation"),
        ("[TensorRT-LLM][INFO] Loaded engine size: 7200 MiB\n", "ends before the execution context"),
        (
            "[TensorRT-LLM][INFO] Loaded engine size: 7200 MiB\n"
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.50 MiB for execution context memory.\n"
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 2.00 GiB for max tokens in paged KV cache (16384).\n"
            "[TensorRT-LLM][INFO] Loaded engine size: 7200 MiB\n",
            "two servers in one log",
        ),
    ],
)
def test_a_log_that_would_teach_wrong_constants_is_refused_with_the_reason(text, reason):
    result = learnt_from(text)
    assert result.learnt == ()
    assert reason in result.refused[0].reason


def test_a_bad_log_does_not_spoil_the_good_ones():
    result = learnt_from(log_of(), log_of(tail=FAILED))
    assert len(result.refused) == 1
    assert result.constants.entries["pytorch/llama/activation_factor"].logs == 1


def test_the_same_profile_printed_twice_is_one_server():
    twice = log_of() + "Peak memory: 18.96 GiB, KV cache: 55.39 GiB (fraction=0.9)\n"
    assert learnt_from(twice).refused == ()


def test_constants_are_kept_in_the_users_folder_and_read_back():
    host = RecordedHost({}, environment={"XDG_CONFIG_HOME": "/home/me/conf"})
    assert load_constants(host) == CalibrationConstants()
    constants = learnt_from(log_of()).constants
    assert store_constants(host, constants) == "/home/me/conf/trtdx/memory-constants.json"
    assert load_constants(host) == constants
    assert constants_path(RecordedHost({}, environment={"HOME": "/home/me"})).startswith("/home/me/.config/trtdx/")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"not json", "does not hold constants"),
        (b'{"version": 99, "entries": {}}', "version 99"),
        (b'{"entries": {"a": {"value": -1, "low": -2, "high": 0, "logs": 1}}}', "not a positive number"),
    ],
)
def test_a_damaged_file_of_constants_is_named_with_the_way_out(data, reason):
    host = RecordedHost({"/c/trtdx/memory-constants.json": data}, environment={"XDG_CONFIG_HOME": "/c"})
    with pytest.raises(InputError, match=reason) as caught:
        load_constants(host)
    assert "rm /c/trtdx" in caught.value.fix


def test_a_constant_of_any_family_serves_where_none_is_of_its_own():
    any_family = CalibrationFactor(value=2.0, low=1.9, high=2.1, logs=2)
    constants = CalibrationConstants(entries={"pytorch/*/activation_factor": any_family})
    assert constants.find_factor(make_setup(), "activation_factor") == any_family
    assert constants.find_factor(make_setup(backend="tensorrt"), "activation_factor") is None


def test_the_report_shows_what_changed_from_which_lines_and_is_kept_for_the_next_plan():
    files = {"a.log": log_of().encode(), "b.log": log_of(tail=FAILED).encode()}
    host = RecordedHost(files, environment={"XDG_CONFIG_HOME": "/c"})
    found = report_calibration(host, ["a.log", "b.log"], make_setup(), book=BOOK)
    section = found.report.sections[0]
    assert section.key == "memory-constants"
    assert ("pytorch", "llama", "activation_factor") in [row[:3] for row in section.rows]
    assert "/c/trtdx/memory-constants.json" in section.note
    assert [each.code for each in found.report.findings] == ["DX883"]
    assert "b.log was not used: the run ran out of memory" in found.report.findings[0].message
    again = report_calibration(host, ["a.log"], make_setup(), book=BOOK)
    assert again.report.sections[0].rows[0][3] is not None  # what it was before
    assert load_constants(host).entries


def test_the_real_plan_with_calibrated_constants_gives_what_the_log_measured():
    from trtdx.memory.ledger.plan import plan_memory

    setup = make_setup()
    log = read(log_of())
    constants = calibrate_factors([(log, setup)], plan_memory).constants
    component = plan_memory(with_log_settings(setup, log), constants).ranks[0].find_component("activation")
    assert component.bytes.value == pytest.approx(1.5 * GIB, rel=0.01)


def test_a_log_with_a_model_is_completed_by_the_plan_and_one_of_another_model_is_told():
    files = {"a.log": log_of().encode(), "b.log": log_of(per_token=65536).encode()}
    whole = report_log_memory(RecordedHost(files), ["a.log"], make_setup(), book=BOOK)
    assert whole.report.findings == ()
    sources = {each.name: each.bytes.source.split(":")[0] for each in whole.ranks[0].components}
    assert sources["weights"] == sources["kv_pool"] == "measured"
    assert "planned" in whole.report.sections[0].columns
    other = report_log_memory(RecordedHost(files), ["b.log"], make_setup(), book=BOOK)
    assert [each.code for each in other.report.findings] == ["DX882"]
