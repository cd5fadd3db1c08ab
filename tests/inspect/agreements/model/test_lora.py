"""LoRA adapters: what an engine or server takes of them, and what it would leave out in silence."""

from __future__ import annotations

import pytest

from support.make_hf import make_lora
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreements_in
from trtdx.inspect.agreements.model import lora
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.readers import read_artifact
from trtdx.model import Severity

ADAPTER = '[lora]\nlora.rank = 16\nlora.alpha = 32.0\nlora.modules = ["q_proj", "v_proj"]\n'


def found(text):
    deployment = deployment_from_example(text)
    return [(row.code, violation) for row in agreements_in(lora) for violation in row.check(deployment)]


def codes(text):
    return [code for code, _ in found(text)]


def test_an_adapter_as_peft_writes_it_fits_an_engine_for_it(tmp_path):
    make_lora(tmp_path / "adapter")
    adapter = read_artifact(RealHost(), str(tmp_path / "adapter"))
    engine = deployment_from_example(
        f"""
        [engine]
        version = "1.2.1"
        dtype = "bfloat16"
        hidden_size = {adapter.get("lora.hidden_size")}
        vocab_size = 2048
        lora.enabled = true
        lora.max_rank = 64
        lora.target_modules = ["attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_gate", "mlp_4h_to_h"]
        plugin.lora_plugin = "bfloat16"
        """
    )
    deployment = Deployment((adapter, *engine.artifacts))
    assert adapter.kind == "lora"
    assert [row.code for row in agreements_in(lora) for _ in row.check(deployment)] == []


@pytest.mark.parametrize(
    ("adapts", "expected"),
    [
        (["attn_q", "attn_k", "attn_v"], []),
        (["attn_qkv"], []),  # fused
        (["q_proj", "v_proj"], []),  # under the adapter's own names
        (["attn_q"], ["DX895"]),
        ([], []),  # not stated
    ],
)
def test_modules_are_compared_whatever_they_are_called(adapts, expected):
    assert codes(f'{ADAPTER}[engine]\nplugin.lora_plugin = "auto"\nlora.target_modules = {adapts}\n') == expected


def test_an_engine_without_the_plugin_is_one_finding():
    text = ADAPTER + "[engine]\nlora.enabled = false\nlora.target_modules = []\n"
    assert codes(text) == ["DX243"]


def test_a_server_that_says_nothing_of_adapters_is_not_accused():
    assert codes(ADAPTER + '[llm-args]\nruntime.model = "/model"\n') == []


# PEFT saves adapters in float32 by default; they are cast when they are loaded.
@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ("float32", "bfloat16", []),
        ("bfloat16", "bfloat16", []),
        ("float16", "bfloat16", ["DX896"]),
        ("bfloat16", "float16", ["DX896"]),
    ],
)
def test_types_of_adapter_and_engine(theirs, ours, expected):
    assert codes(f'{ADAPTER}lora.dtype = "{theirs}"\n[engine]\ndtype = "{ours}"\n') == expected


def test_a_resized_vocabulary_is_surer_than_a_replaced_one_and_both_are_wrong_in_silence():
    def told(size):
        text = f'{ADAPTER}lora.modules_to_save = ["lm_head"]\nlora.vocab_size = {size}\n[engine]\nvocab_size = 32000\n'
        [(_, violation)] = found(text)
        return violation.severity, violation.confidence

    assert told(32005) == (Severity.ERROR, 0.9)
    assert told(32000) == (Severity.ERROR, 0.7)


def test_whole_modules_of_the_adapter_an_llm_is_made_with_are_taken():
    text = ADAPTER + 'lora.modules_to_save = ["lm_head"]\n[hf]\nvocab_size = 32000\n[llm-args]\n'
    assert codes(text) == ["DX899"]
    assert codes(text + 'option."lora_config.lora_dir" = ["/adapters/lora"]\n') == []


def test_a_model_of_the_same_size_beside_the_adapter_is_enough():
    text = ADAPTER + "lora.hidden_size = 4096\n[hf]\nhidden_size = 4096\n[hf.other]\nhidden_size = 1024\n"
    assert codes(text) == []


@pytest.mark.parametrize(("version", "expected"), [("0.16.0", ["DX898"]), ("1.2.1", []), ("", [])])
def test_an_old_engine_has_no_dora(version, expected):
    assert codes(f'{ADAPTER}lora.dora = true\n[engine]\nversion = "{version}"\n') == expected


def test_what_is_to_be_changed_is_the_yaml_of_the_pytorch_backend_or_the_build_of_an_engine():
    for host, words in (
        ('[llm-args]\nlora.target_modules = ["attn_q"]\n', "lora_target_modules: [attn_q, attn_v]"),
        ('[engine]\nlora.target_modules = ["attn_q"]\n', "--lora_target_modules attn_q attn_v"),
    ):
        [violation] = [each for code, each in found(ADAPTER + host) if code == "DX895"]
        assert words in violation.values["remedy"]
        assert ("trtllm-build" in violation.values["command"]) == ("engine" in host)
