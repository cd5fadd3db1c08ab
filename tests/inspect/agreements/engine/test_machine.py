"""Engines on disk against machines: each violation is found, each agreement is silent."""

from __future__ import annotations

import json
import os

import pytest

from support.make_engine import make_checkpoint, make_engine, plan_bytes
from support.make_hf import make_hf_model
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.agreements.engine import conflicts, plans
from trtdx.inspect.agreements.engine import machine as machine_agreements
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.machine import machine_from_flags
from trtdx.inspect.readers import read_artifact
from trtdx.model import Severity

HOST = RealHost()


@pytest.fixture
def found(book):
    """Read paths and return what the machine's agreements find."""

    def ask(*paths, runtime="", gpu="", gpus=0):
        artifacts = [read_artifact(HOST, str(path)) for path in paths]
        machine = machine_from_flags(runtime=runtime, gpu=gpu, gpus=gpus)
        return judge_findings(
            agreements_in(machine_agreements, plans, conflicts),
            Deployment((*artifacts, *([machine] if machine else []))),
            book,
        )

    return ask


def codes(findings):
    return [finding.code for finding in findings]


@pytest.mark.parametrize(
    "version", ["0.8.0", "0.9.0", "0.10.0", "0.12.0", "0.16.0", "0.19.0", "1.0.0", "1.1.0", "1.2.1"]
)
def test_an_engine_on_the_machine_it_was_built_for_is_fine(tmp_path, found, version):
    paths = (
        make_checkpoint(tmp_path / "checkpoint", version, tp_size=2),
        make_engine(tmp_path / "engine", version, tp_size=2),
    )
    assert found(*paths, runtime=version, gpu="L40S", gpus=2) == []


def test_an_engine_by_itself_is_fine(tmp_path, found):
    assert found(make_engine(tmp_path, "0.7.1")) == []


def test_another_tensorrt_is_told_once_and_not_also_as_another_release(tmp_path, found):
    findings = found(make_engine(tmp_path, "0.8.0"), runtime="1.2.1", gpu="L40S")
    assert codes(findings) == ["DX200"]
    assert "9.2.0.5" in findings[0].message
    assert "10.14.1.48" in findings[0].message
    assert "TensorRT-LLM 1.2.0, 1.2.1" in findings[0].fixes[0].text


def test_another_release_with_the_same_tensorrt_is_an_error_as_the_verdict_is_yes(tmp_path, found):
    findings = found(make_engine(tmp_path, "0.13.0"), runtime="0.14.0", gpu="L40S")
    assert codes(findings) == ["DX207"]
    assert findings[0].severity is Severity.ERROR


def test_an_engine_before_0_8_on_its_own_release_is_fine(tmp_path, found):
    assert found(make_engine(tmp_path, "0.7.1"), runtime="0.7.1", gpu="L40S") == []


def test_an_engine_before_0_8_elsewhere_is_built_by_its_script(tmp_path, found):
    (finding,) = found(make_engine(tmp_path, "0.7.1"), runtime="0.6.1", gpu="L40S")
    assert finding.code == "DX207"
    assert "a TensorRT-LLM before 0.8 (0.7.1 by its keys and plans)" in finding.message
    assert finding.fixes[0].command.startswith("python3 examples/llama/build.py --model_dir MODEL_DIR")
    (finding,) = found(tmp_path, runtime="0.8.0", gpu="L40S")
    assert finding.fixes[0].command.startswith("trtllm-build")


def test_a_rebuild_repeats_what_was_chosen(tmp_path, found):
    engine = make_engine(tmp_path / "my engine", "0.13.0", max_batch_size=16, max_seq_len=4096, gemm_plugin="auto")
    command = found(engine, runtime="0.14.0", gpu="L40S")[0].fixes[0].command
    assert command.startswith("trtllm-build --checkpoint_dir CHECKPOINT_DIR --output_dir '")
    assert "my engine.new'" in command
    assert "--max_batch_size 16" in command
    assert "--max_seq_len 4096" in command
    assert "--gemm_plugin auto" in command


def test_plans_of_two_kinds_of_gpu(tmp_path, found):
    make_engine(tmp_path, tp_size=2, sm=90)
    (tmp_path / "rank1.engine").write_bytes(plan_bytes("10.14.1.48", sm=80))
    for gpu in ("", "H100", "A100", "L40S"):
        (finding,) = found(tmp_path, gpu=gpu)
        assert finding.code == "DX909"
        assert "rank0.engine for 9.0, rank1.engine for 8.0" in finding.message


@pytest.mark.parametrize(("ranks", "verb"), [(3, "rank3.engine is"), (2, "rank2.engine, rank3.engine are")])
def test_missing_plans_are_counted(tmp_path, found, ranks, verb):
    (finding,) = found(make_engine(tmp_path, tp_size=4, ranks=ranks))
    assert finding.code == "DX205"
    assert finding.message.startswith(f"{verb} not in the directory of an engine for 4 ranks")


def test_a_gpu_named_by_its_number_is_not_named_twice(tmp_path, found):
    (finding,) = found(make_engine(tmp_path, sm=90), gpu="8.9")
    assert finding.message.endswith("but the GPU that is to run them has 8.9")


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"use_fp8_context_fmha": True}, "DX911"),
        ({"use_fp8_context_fmha": True, "quantization": {"quant_algo": "FP8"}}, None),
        ({"use_fp8_context_fmha": True, "quantization": {"quant_algo": "FP8"}, "sm": 80}, "DX911"),
        ({"architecture": "MedusaForCausalLM", "max_draft_len": 0}, "DX910"),
        ({"architecture": "MedusaForCausalLM", "max_draft_len": 63}, None),
        ({"kv_cache_type": "continuous"}, "DX912"),
        ({"kv_cache_type": "continuous", "paged_kv_cache": False}, None),
    ],
)
def test_settings_that_cannot_hold_together(tmp_path, found, settings, code):
    assert codes(found(make_engine(tmp_path, "0.16.0", **settings))) == ([code] if code else [])


def test_a_patch_release_is_a_note(tmp_path, found):
    findings = found(make_engine(tmp_path, "1.2.0"), runtime="1.2.1", gpu="L40S")
    assert [(each.code, each.severity) for each in findings] == [("DX207", Severity.NOTE)]


def test_keys_a_later_runtime_demands_are_named(tmp_path, found):
    engine = make_engine(tmp_path, "0.8.0", tensorrt="9.3.0.1")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["build_config"]["plugin_config"]["context_fmha"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    findings = [each for each in found(engine, runtime="0.9.0", gpu="L40S") if each.code == "DX207"]
    assert findings[0].severity is Severity.ERROR
    assert findings[0].message.endswith("lacks build_config.lora_config"), "0.9 does not ask for context_fmha yet"


def test_a_key_that_was_cut_out_is_found_without_a_machine(tmp_path, found):
    make_engine(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["build_config"]["plugin_config"]["paged_kv_cache"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    findings = found(tmp_path)
    assert codes(findings) == ["DX908"]
    assert "build_config.plugin_config.paged_kv_cache" in findings[0].message


@pytest.mark.parametrize("runtime", ["1.3.0rc21", "1.3.0rc25", "1.3.0"])
def test_a_release_without_engines_is_the_only_finding(tmp_path, found, runtime):
    engine = make_engine(tmp_path, "0.12.0", quantization={"quant_algo": "FP8"}, sm=90)
    findings = found(engine, runtime=runtime, gpu="A100")
    assert codes(findings) == ["DX247"]
    assert findings[0].fixes[1].command.startswith("pip install tensorrt_llm==0.12.0")


def test_the_gpu_it_was_built_on_is_read_from_the_plan(tmp_path, found):
    findings = found(make_engine(tmp_path, sm=90), runtime="1.2.1", gpu="NVIDIA L40S")
    assert codes(findings) == ["DX201"]
    assert findings[0].message == "the plans were built on compute capability 9.0, but NVIDIA L40S has 8.9"


@pytest.mark.parametrize(
    ("algo", "gpu", "code"),
    [
        ("FP8", "A100", "DX102"),
        ("FP8", "L40S", None),
        ("W4A8_AWQ", "A10", "DX102"),
        ("NVFP4", "H100", "DX325"),
        ("NVFP4", "RTX 5090", None),
        ("W4A16_AWQ", "A100", None),
        ("W4A16_AWQ", "B200", "DX325"),
        ("W8A8_SQ_PER_CHANNEL", "B200", "DX325"),
        ("W8A8_SQ_PER_CHANNEL", "H100", None),
        ("MIXED_PRECISION", "A100", None),
    ],
)
def test_a_checkpoint_is_built_where_its_precision_is_computed(tmp_path, found, algo, gpu, code):
    checkpoint = make_checkpoint(tmp_path, quantization={"quant_algo": algo})
    assert codes(found(checkpoint, gpu=gpu)) == ([code] if code else [])


def test_the_layers_of_mixed_precision_count(tmp_path, found):
    layers = {
        "transformer.layers.0.mlp.fc": {"quant_algo": "W4A16_AWQ"},
        "transformer.layers.1.mlp.fc": {"quant_algo": "FP8"},
    }
    checkpoint = make_checkpoint(tmp_path, quantization={"quant_algo": "MIXED_PRECISION"}, layers=layers)
    assert codes(found(checkpoint, gpu="A100")) == ["DX102"]


def test_checkpoint_and_engine_of_one_model_give_one_finding(tmp_path, found):
    quantization = {"quant_algo": "FP8"}
    checkpoint = make_checkpoint(tmp_path / "checkpoint", quantization=quantization)
    engine = make_engine(tmp_path / "engine", quantization=quantization, sm=80)
    assert codes(found(checkpoint, engine, gpu="A100")) == ["DX102"]


def test_a_model_on_the_pytorch_backend_is_held_to_its_own_list(tmp_path, found):
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    model = make_hf_model(tmp_path, quantization_config=blocks)
    assert codes(found(model, runtime="1.2.1", gpu="H100")) == []
    assert codes(found(model, runtime="0.21.0", gpu="L40S")) == []  # 0.21 brought the kernels for Ada
    findings = found(model, runtime="0.20.0", gpu="L40S")
    assert [(each.code, each.severity) for each in findings] == [("DX102", Severity.WARNING)]


def test_bfloat16_before_ampere(tmp_path, found):
    assert codes(found(make_engine(tmp_path / "bf16", "0.12.0", sm=75), runtime="0.12.0", gpu="T4")) == ["DX158"]
    engine = make_engine(tmp_path / "fp16", "0.12.0", dtype="float16", sm=75)
    assert codes(found(engine, runtime="0.12.0", gpu="T4")) == []


def test_a_gpu_without_kernels_is_the_root_of_the_rest(tmp_path, found):
    engine = make_engine(tmp_path, quantization={"quant_algo": "FP8"})
    findings = found(engine, runtime="1.2.1", gpu="V100")
    assert codes(findings) == ["DX060"]
    assert "before 0.16.0" in findings[0].fixes[0].text


@pytest.mark.parametrize(("gpus", "code"), [(1, "DX467"), (2, "DX467"), (4, None), (8, None)])
def test_a_gpu_for_each_rank(tmp_path, found, gpus, code):
    assert codes(found(make_engine(tmp_path, tp_size=2, pp_size=2), gpus=gpus)) == ([code] if code else [])


def test_ranks_of_several_machines_are_counted_by_machine(tmp_path, found):
    engine = make_engine(tmp_path, tp_size=8, pp_size=2)
    assert codes(found(engine, gpus=8)) == []
    assert codes(found(engine, gpus=4)) == ["DX467"]


def test_plans_that_are_broken(tmp_path, found):
    make_engine(tmp_path, tp_size=2)
    os.truncate(tmp_path / "rank0.engine", 1000)
    (tmp_path / "rank1.engine").write_bytes(b"\x08\x0a\x12\x07pytorch")
    assert sorted(codes(found(tmp_path))) == ["DX203", "DX204"]


def test_plans_of_two_builds(tmp_path, found):
    make_engine(tmp_path, tp_size=2)
    (tmp_path / "rank1.engine").write_bytes(plan_bytes("10.11.0.33"))
    assert codes(found(tmp_path, runtime="1.2.1", gpu="L40S")) == ["DX903"]


def test_a_plan_of_tensorrt_rtx(tmp_path, found):
    engine = make_engine(tmp_path, tensorrt="1.7.1.116", product="tensorrt-rtx")
    assert codes(found(engine, runtime="1.2.1", gpu="L40S")) == ["DX904"]


def test_plans_left_over_from_more_ranks(tmp_path, found):
    assert codes(found(make_engine(tmp_path, tp_size=2, ranks=4))) == ["DX905"]


def test_a_configuration_beside_plans_of_another_build(tmp_path, found):
    engine = make_engine(tmp_path, "1.2.1", tensorrt="10.9.0.34")
    assert codes(found(engine)) == ["DX906"]
    assert codes(found(engine, runtime="1.2.1", gpu="L40S")) == ["DX200"], "one cause, one finding"


def test_debug_outputs_are_noted(tmp_path, found):
    findings = found(make_engine(tmp_path, enable_debug_output=True))
    assert [(each.code, each.severity) for each in findings] == [("DX390", Severity.NOTE)]


@pytest.mark.parametrize(
    ("size", "code"), [(128, None), (72, None), (80, None), (100, "DX322"), (40, "DX322"), (512, "DX322")]
)
def test_heads_have_a_size_there_are_kernels_for(tmp_path, found, size, code):
    checkpoint = make_checkpoint(tmp_path, head_size=size)
    assert codes(found(checkpoint)) == ([code] if code else [])


def test_an_encoder_has_an_attention_of_its_own(tmp_path, found):
    assert codes(found(make_checkpoint(tmp_path, architecture="BertForQuestionAnswering", head_size=100))) == []


def test_compressed_attention_has_one_size(tmp_path, found):
    sizes = {"architecture": "DeepseekV2ForCausalLM", "head_size": 576, "qk_rope_head_dim": 64}
    assert codes(found(make_checkpoint(tmp_path / "right", kv_lora_rank=512, **sizes))) == []
    assert codes(found(make_checkpoint(tmp_path / "wrong", kv_lora_rank=256, **sizes))) == ["DX907"]


def test_fused_attention_of_early_releases(tmp_path, found):
    assert codes(found(make_engine(tmp_path / "early", "0.10.0", head_size=112))) == ["DX156"]
    assert codes(found(make_engine(tmp_path / "late", "0.12.0", head_size=112))) == []


def test_fused_attention_of_0_8_had_fewer_sizes_on_hopper_only(tmp_path, found):
    assert codes(found(make_engine(tmp_path / "hopper", "0.8.0", head_size=80, sm=90))) == ["DX156"]
    assert codes(found(make_engine(tmp_path / "ada", "0.8.0", head_size=80, sm=89))) == []


def test_a_plain_plan_may_be_made_for_other_gpus_and_releases(tmp_path, found):
    (tmp_path / "model.plan").write_bytes(plan_bytes("10.9.0.34", sm=80))
    findings = found(tmp_path / "model.plan", runtime="1.2.1", gpu="L40S")
    assert [(each.code, each.severity) for each in findings] == [
        ("DX200", Severity.WARNING),
        ("DX201", Severity.WARNING),
    ]


def test_a_plan_of_tensorrt_rtx_by_itself_is_fine(tmp_path, found):
    (tmp_path / "model.plan").write_bytes(plan_bytes("1.7.1.116", "tensorrt-rtx", sm=80))
    assert found(tmp_path / "model.plan", runtime="1.2.1", gpu="L40S") == []
