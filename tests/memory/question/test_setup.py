"""A set-up is made from whatever a user has: folders, files, names, sizes, flags, whole command lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.make_configs import FAMILIES
from support.make_engine import make_checkpoint, make_engine
from support.make_hf import make_hf_model
from trtdx.errors import TrtdxError
from trtdx.host import RealHost, RecordedHost
from trtdx.memory.ledger.weights import count_parameters
from trtdx.memory.question.flags import artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.memory.nouns import Setup


def asked(model: str = "", *words: str, **more: Any) -> Setup:
    flags = artifact_from_flags(more.pop("flags", {}), words)
    return resolve_setup(RealHost(), MemoryRequest(model=model, flags=flags, **more)).setup


def config_file(folder: Path, name: str) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(FAMILIES[name]))
    return str(path)


# Of the families, what makes them special, and their parameters in billions as their makers tell them.
SPECIAL: dict[str, tuple[float, dict[str, Any]]] = {
    "gemma-3-27b": (27.0, {"tied": True, "head_dim": 128, "max_positions": 131072}),
    "gemma-2-9b": (9.24, {"head_dim": 256, "tied": True}),
    "phi-2": (2.78, {"gated": False, "attention_bias": True, "mlp_bias": True}),
    "phi-3-mini": (3.82, {"gated": True}),
    "gpt2": (0.124, {"position_embeddings": 1024, "tied": True, "intermediate_size": 3072}),
    "gpt-j": (6.05, {"mlp_bias": True, "attention_bias": False, "head_dim": 256}),
    "falcon-7b": (6.92, {"num_kv_heads": 1, "intermediate_size": 4 * 4544}),
    "baichuan-13b": (13.26, {"num_kv_heads": 40, "max_positions": 4096}),
    "chatglm3-6b": (6.24, {"num_kv_heads": 2, "vocab_size": 65024, "attention_bias": True}),
    "mistral-7b": (7.24, {"windows": (4096,) * 32}),
    "mixtral-8x7b": (46.7, {"moe_intermediate_size": 14336, "experts_per_token": 2}),
    "qwen2-moe": (14.3, {"shared_intermediate_size": 5632, "attention_bias": True}),
    "llama-4-scout": (
        107.8,
        {"intermediate_size": 16384, "moe_intermediate_size": 8192, "shared_experts": 1},
    ),
    "nemotron-h-8b": (8.1, {"attention_layers": 4, "state_layers": 24, "mlp_layers": 24, "gated": False}),
    "qwen3-next-80b": (79.7, {"attention_layers": 12, "state_layers": 36}),
    "mamba2-2.7b": (2.70, {"attention_layers": 0, "state_layers": 64}),
    "flan-t5-xl": (2.85, {"encoder_layers": 24, "num_layers": 24, "gated": True}),
    "qwen2-vl-7b": (7.62, {"num_kv_heads": 4}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_states_its_sizes_in_its_own_words(tmp_path, name):
    billions, traits = SPECIAL[name]
    dims = asked(config_file(tmp_path, name)).dims
    assert {field: getattr(dims, field) for field in traits} == traits
    assert count_parameters(dims) / 1e9 == pytest.approx(billions, rel=0.006)


def test_windows_follow_the_pattern_of_the_layers(tmp_path):
    gemma3 = asked(config_file(tmp_path, "gemma-3-27b")).dims.windows
    assert gemma3[:6] == (1024, 1024, 1024, 1024, 1024, 0)
    assert asked(config_file(tmp_path, "gemma-2-9b")).dims.windows[:4] == (4096, 0, 4096, 0)


def test_image_encoders_are_counted(tmp_path):
    assert asked(config_file(tmp_path, "qwen2-vl-7b")).dims.encoder_params / 1e6 == pytest.approx(675, rel=0.02)
    assert asked(config_file(tmp_path, "gemma-3-27b")).dims.encoder_params / 1e6 == pytest.approx(415, rel=0.02)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("Llama-3.1-8B", 32), ("meta-llama/Meta-Llama-3-70B-Instruct", 80), ("deepseek-ai/DeepSeek-R1", 61)],
)
def test_well_known_names_need_no_files(name, layers):
    assert asked(name).dims.num_layers == layers


def test_a_format_at_the_end_of_a_name_is_the_format_of_the_weights():
    assert asked("nvidia/Llama-3.1-8B-Instruct-FP8").formats.weights == "FP8"
    assert asked("Qwen/Qwen2.5-7B-Instruct-AWQ").formats.weights == "W4A16_AWQ"
    assert asked("DeepSeek-R1").formats.weights == "FP8_BLOCK_SCALES"  # as it is published


def test_a_folder_gives_the_weights_to_the_byte(tmp_path):
    setup = asked(str(make_hf_model(tmp_path / "model")))
    assert setup.running.backend == "pytorch"
    assert setup.weights_by_rank[0].source.startswith("exact")
    assert setup.weights_by_rank[0].value > 0


def test_files_say_nothing_about_a_format_they_are_not_in(tmp_path):
    folder = str(make_hf_model(tmp_path / "model"))
    assert asked(folder, "--quantization", "fp8").weights_by_rank == ()


def test_a_config_in_a_model_folder_speaks_for_the_folder(tmp_path):
    folder = make_hf_model(tmp_path / "model")
    assert asked(str(folder / "config.json")).weights_by_rank


def test_engines_and_checkpoints_run_on_the_tensorrt_backend_with_their_own_limits(tmp_path):
    engine = asked(str(make_engine(tmp_path / "engine", max_batch_size=16)))
    assert (engine.running.backend, engine.limits.max_batch_size) == ("tensorrt", 16)
    assert engine.running.version == "1.2.1"
    assert "config.json" in engine.said["max_batch_size"]
    checkpoint = asked(str(make_checkpoint(tmp_path / "checkpoint")))
    assert checkpoint.running.backend == "tensorrt"
    assert checkpoint.dims.gated


def test_flags_rule_over_what_files_say(tmp_path):
    folder = str(make_engine(tmp_path / "engine", max_batch_size=16))
    setup = asked(folder, "--max-batch-size", "4")
    assert setup.limits.max_batch_size == 4
    assert setup.said["max_batch_size"] == "--max-batch-size"


DIMS = "num_layers=2,hidden_size=64,num_heads=4,num_kv_heads=2,intermediate_size=128,vocab_size=1000"


def test_plain_sizes_are_enough():
    dims = asked(dims=DIMS).dims
    assert (dims.num_layers, dims.head_dim, dims.gated) == (2, 16, True)


def test_sizes_are_taken_in_the_words_of_a_config_too():
    text = "num_hidden_layers=2,hidden_size=64,num_attention_heads=4,intermediate_size=128,vocab_size=1000"
    dims = asked(dims=text).dims
    assert (dims.num_layers, dims.num_heads, dims.num_kv_heads) == (2, 4, 4)


def test_sizes_correct_a_model():
    assert asked("Llama-3.1-8B", dims="num_layers=16").dims.num_layers == 16


def test_a_name_that_leads_nowhere_is_a_name_where_sizes_are_given():
    setup = asked("acme/unheard-of-9b", dims=DIMS)
    assert (setup.model, setup.dims.num_layers) == ("acme/unheard-of-9b", 2)


def test_all_that_is_missing_is_named_at_once_with_how_to_give_it():
    with pytest.raises(TrtdxError) as caught:
        asked(dims="num_layers=32,num_heads=32")
    for name in ("hidden_size", "intermediate_size", "vocab_size"):
        assert name in caught.value.message
        assert f"{name}=" in caught.value.fix
    assert "num_layers" not in caught.value.message


def test_a_whole_command_line_is_understood():
    line = "trtllm-serve Llama-3.1-70B --tp_size 4 --max_batch_size 32 --kv_cache_free_gpu_memory_fraction 0.8"
    setup = asked(commands=(f"mpirun -n 1 {line}",))
    assert setup.model == "Llama-3.1-70B"
    assert (setup.layout.tp, setup.limits.max_batch_size, setup.running.free_fraction) == (4, 32, 0.8)


def test_a_build_command_line_is_one_of_engines(tmp_path):
    folder = make_checkpoint(tmp_path / "checkpoint")
    line = f"trtllm-build --checkpoint_dir {folder} --gemm_plugin auto --max_num_tokens 4096 --context_fmha disable"
    setup = asked(commands=(line,))
    assert setup.running.backend == "tensorrt"
    assert setup.running.gemm_plugin
    assert not setup.running.context_fmha
    assert setup.limits.max_num_tokens == 4096


def test_a_file_of_options_is_understood(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text(
        "tensor_parallel_size: 2\nmax_num_tokens: 4096\nenable_chunked_prefill: true\n"
        "kv_cache_config:\n  dtype: fp8\n  free_gpu_memory_fraction: 0.7\n  host_cache_size: 1073741824\n"
        "cuda_graph_config: null\nmoe_config:\n  backend: TRTLLM\n"
    )
    setup = asked("Mixtral-8x7B", options=(str(path),))
    assert (setup.layout.tp, setup.formats.kv, setup.running.free_fraction) == (2, "fp8", 0.7)
    assert setup.running.chunked
    assert not setup.running.cuda_graphs
    assert setup.running.moe_backend == "TRTLLM"
    assert setup.running.host_cache_bytes == 2**30
    assert asked("Mixtral-8x7B", "--tp", "4", options=(str(path),)).layout.tp == 4


@pytest.mark.parametrize(
    "words", [("--max-num-tokens", "4096"), ("--max_num_tokens=4096",), ("--max_num_tokens", "4k")]
)
def test_flags_are_spelt_with_either_dash(words):
    assert asked("Llama-3.1-8B", *words).limits.max_num_tokens == 4096


def test_switches_may_stand_alone_or_have_a_value():
    setup = asked("Llama-3.1-8B", "--backend", "tensorrt", "--gather_context_logits", "--context_fmha", "disable")
    assert setup.running.gather_context_logits
    assert not setup.running.context_fmha
    assert asked("Llama-3.1-8B", "--backend", "tensorrt").running.context_fmha


def test_any_option_of_the_llm_api_may_be_a_flag():
    setup = asked("Llama-3.1-8B", "--cuda_graph_config.max_batch_size", "16", "--kv_cache_config.dtype", "fp8")
    assert setup.running.cuda_graph_max_batch == 16
    assert setup.formats.kv == "fp8"


@pytest.mark.parametrize("value", ["[1024, 1024, 131072]", "1024,1024,131072", "[1024,1024,131072]"])
def test_a_list_may_be_a_flag_too(value):
    setup = asked("Llama-3.1-8B", "--kv_cache_config.max_attention_window", value)
    assert setup.limits.max_attention_window == (1024, 1024, 131072)


def test_a_list_of_lists_belongs_into_a_file():
    with pytest.raises(TrtdxError, match="not a plain list"):
        asked("Llama-3.1-8B", "--speculative_config.medusa_choices", "[[0], [0, 0]]")


def test_flags_that_do_not_touch_memory_are_taken_too():
    assert asked("Llama-3.1-8B", "--host", "0.0.0.0", "--port", "8000").layout.tp == 1


def test_several_gpus_mean_tensor_parallelism_unless_something_else_is_said():
    assert asked("Llama-3.1-8B", gpu="4xH100").layout.tp == 4
    assert asked("Llama-3.1-8B", "--pp", "2", gpu="4xH100").layout.tp == 2
    assert asked("Llama-3.1-8B", "--tp", "2", gpu="4xH100").layout.tp == 2


def test_a_gpu_that_is_not_in_the_table_is_one_with_its_memory():
    device = asked("Llama-3.1-8B", gpu="sm_89", gpu_memory="24GiB").device
    assert (device.sm, device.total_bytes) == (89, 24 * 2**30)
    known = asked("Llama-3.1-8B", gpu="H100", gpu_memory="94GB").device
    assert (known.sm, known.total_bytes) == (90, 94 * 10**9)


def test_a_format_given_as_type_is_that_of_the_weights():
    setup = asked("Llama-3.1-8B", "--dtype", "fp8")
    assert (setup.formats.weights, setup.formats.dtype) == ("FP8", "bfloat16")


def test_what_nobody_says_is_the_default_of_the_release_and_told_as_such():
    new = asked("Llama-3.1-8B")
    assert (new.limits.max_batch_size, new.limits.max_num_tokens, new.limits.max_seq_len) == (
        2048,
        8192,
        131072,
    )
    assert new.running.backend == "pytorch"
    assert all(new.said[name].startswith("default") for name in ("max_batch_size", "max_seq_len", "backend"))
    old = asked("Llama-3.1-8B", version="0.9.0")
    assert old.running.backend == "tensorrt"
    assert (old.limits.max_batch_size, old.limits.max_seq_len, old.limits.tokens_per_block) == (1, 2048, 128)
    assert asked("Llama-3.1-8B", version="0.12.0").limits.max_batch_size == 256


@pytest.mark.parametrize(
    ("words", "more", "told"),
    [
        (("--tp", "-2"), {}, "tp = -2"),
        (("--tp", "0"), {}, "tp = 0"),
        (("--max_batch_size", "1000000000000"), {}, "1000000000000"),
        (("--max_seq_len", "many"), {}, "'many' is not a number"),
        (("--kv_cache_free_gpu_memory_fraction", "1"), {}, "not between 0 and 1"),
        (("--kv_cache_free_gpu_memory_fraction", "-0.5"), {}, "not between 0 and 1"),
        (("--quantization", "fp7"), {}, "'fp7'"),
        (("--kv_cache_dtype", "fp7"), {}, "'fp7'"),
        (("--backend", "vllm"), {}, "'vllm'"),
        (("--gem_plugin", "auto"), {}, "--gem_plugin"),
        (("--max_batch_size",), {}, "needs a value"),
        (("more",), {}, "'more'"),
        (("--world_size", "4", "--tp", "2"), {}, "world_size 4"),
        ((), {"gpu": "H1000"}, "'H1000'"),
        ((), {"gpu_memory": "0"}, "not a GPU's memory"),
        ((), {"gpu_memory": "lots"}, "'lots'"),
        ((), {"dims": "num_layers=-1"}, "num_layers = -1"),
        ((), {"dims": "num_layers=1000000000000"}, "num_layers"),
        ((), {"dims": "num_layers=x"}, "not a whole number"),
        ((), {"dims": "hiden_size=64"}, "hiden_size"),
        ((), {"version": "banana"}, "'banana'"),
        (("--backend", "tensorrt"), {"version": "1.3.0rc23"}, "no engines any more"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(words, more, told):
    with pytest.raises(TrtdxError) as caught:
        asked("Llama-3.1-8B", *words, **more)
    assert told in caught.value.message
    assert caught.value.fix


def test_an_unknown_model_says_how_to_give_its_sizes():
    with pytest.raises(TrtdxError) as caught:
        asked("acme/unheard-of-9b")
    assert "--dims" in caught.value.fix
    with pytest.raises(TrtdxError) as caught:
        asked("Lama-3.1-8B")
    assert "did you mean Llama-3.1-8B" in caught.value.fix


def test_a_model_of_the_hub_cache_is_found_by_its_name():
    hub = "/home/me/.cache/huggingface/hub/models--acme--llm"
    files = {
        f"{hub}/refs/main": b"abc",
        f"{hub}/blobs/1": b"",
        f"{hub}/snapshots/abc/config.json": json.dumps(FAMILIES["mistral-7b"]).encode(),
    }
    host = RecordedHost(files, environment={"HOME": "/home/me"})
    setup = resolve_setup(host, MemoryRequest(model="acme/llm")).setup
    assert (setup.model, setup.dims.num_layers) == ("acme/llm", 32)


def test_a_format_that_is_not_known_is_planned_and_told(tmp_path):
    config = FAMILIES["mistral-7b"] | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP3"}}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(config))
    setup = asked(str(path))
    assert setup.formats.weights == "FP3"
    assert "not known" in setup.said["weights"]


def test_variables_of_a_command_line_count():
    setup = asked(commands=("TRTLLM_MOE_A2A_WORKSPACE_MB=512 trtllm-serve Llama-3.1-8B",))
    assert setup.running.env == {"TRTLLM_MOE_A2A_WORKSPACE_MB": "512"}


def test_a_draft_model_has_sizes_of_its_own():
    assert asked("Llama-3.1-70B", "--draft_model", "Llama-3.2-1B").draft.num_layers == 16
    lost = resolve_setup(
        RealHost(),
        MemoryRequest(model="Llama-3.1-70B", flags=artifact_from_flags({"draft_model": "acme/none"})),
    )
    assert lost.setup.draft is None
    assert "draft model" in lost.notes[0]


def test_a_config_that_is_no_json_is_told(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{ not json")
    with pytest.raises(TrtdxError):
        asked(str(path))


def test_the_release_meant_is_the_last_stable_one_where_nobody_names_it():
    found = asked("Llama-3.1-8B")
    assert found.running.version == "1.2.1"
    assert found.said["version"].startswith("default")
    assert asked("Llama-3.1-8B", version="0.20.0").running.version == "0.20.0"


def test_attention_that_adds_to_its_scores_has_no_fused_kernel(tmp_path):
    model = config_file(tmp_path, "flan-t5-xl")
    assert not asked(model, "--backend", "tensorrt").running.context_fmha
    assert asked(model, "--backend", "tensorrt", "--context_fmha", "enable").running.context_fmha


@pytest.mark.parametrize(
    "text",
    [
        '{"kv_cache_config": {"free_gpu_memory_fraction": 0.5}, "max_batch_size": 16}',
        "{kv_cache_config: {free_gpu_memory_fraction: 0.5},\n max_batch_size: 16}\n",
    ],
)
def test_options_in_braces_are_options_whatever_the_file_is_called(tmp_path, text):
    (tmp_path / "options.yaml").write_text(text)
    setup = resolve_setup(RealHost(), MemoryRequest(model="Qwen3-8B", options=(str(tmp_path / "options.yaml"),))).setup
    assert (setup.running.free_fraction, setup.limits.max_batch_size) == (0.5, 16)


def test_an_engine_has_no_attention_data_parallelism():
    asked = MemoryRequest(
        model="Llama-3.1-70B", gpu="8xH200", version="0.18.0",
        flags=artifact_from_flags({"backend": "tensorrt", "enable_attention_dp": True}),
    )  # fmt: skip
    answer = resolve_setup(RecordedHost(), asked)
    assert not answer.setup.layout.attention_dp
    assert any("attention data parallelism" in each for each in answer.notes)
