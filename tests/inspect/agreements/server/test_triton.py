"""A Triton repository against itself and its engine: each mistake gives its rule, a correct one none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from support.make_triton import make_llmapi, make_triton
from trtdx.host import RealHost
from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.artifact import Deployment
from trtdx.inspect.facts.page_examples import deployment_from_example
from trtdx.inspect.readers.server.triton_repository import read_triton_repository
from trtdx.knowledge.load import load_book

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.inspect.facts.artifact import Artifact
    from trtdx.model import Finding

HOST = RealHost()
BOOK = load_book(HOST)
ENGINE = """
[engine]
architecture = "LlamaForCausalLM"
version = "1.2.1"
max_batch_size = 8
max_beam_width = 1
max_seq_len = 2048
max_num_tokens = 4096
tp_size = 1
pp_size = 1
kv_cache_type = "paged"
logits_dtype = "float32"
speculative_mode = "NONE"
plugin.use_paged_context_fmha = true
plugin.context_fmha = true
plugin.remove_input_padding = true
"""


def engine(**facts: str) -> Artifact:
    """Return an engine of 1.2.1 as its reader states it; values are TOML."""
    lines = [line for line in ENGINE.splitlines() if line.partition(" = ")[0] not in facts]
    text = "\n".join([*lines, *(f"{name} = {value}" for name, value in facts.items())])
    [artifact] = deployment_from_example(text).artifacts
    return artifact


def repository(tmp_path: Path, **overrides: str | None) -> Artifact:
    for name in ("engine", "tokenizer"):
        (tmp_path / name).mkdir(exist_ok=True)
    root = make_triton(tmp_path / "repository", str(tmp_path / "engine"), str(tmp_path / "tokenizer"), **overrides)
    return read_triton_repository(HOST, str(root))


def found(*artifacts: Artifact) -> list[Finding]:
    return judge_findings(agreement_table(), Deployment(artifacts), BOOK)


def codes(*artifacts: Artifact) -> list[str]:
    return [finding.code for finding in found(*artifacts)]


def test_a_correct_repository_with_its_engine_gives_nothing(tmp_path: Path) -> None:
    assert codes(repository(tmp_path), engine()) == []


def test_a_correct_llm_api_repository_gives_nothing(tmp_path: Path) -> None:
    root = make_llmapi(tmp_path / "repository", model="org/name", kv_cache_config={"free_gpu_memory_fraction": 0.9})
    assert codes(read_triton_repository(HOST, str(root))) == []


def test_optional_parameters_may_stay_unfilled(tmp_path: Path) -> None:
    names = ("max_attention_window_size", "cross_kv_cache_fraction", "decoding_mode", "gpu_device_ids")
    assert codes(repository(tmp_path, **dict.fromkeys(names)), engine()) == []


@pytest.mark.parametrize(
    ("overrides", "facts", "code"),
    [
        ({"decoupled_mode": None}, {}, "DX219"),
        ({"preprocessing_tokenizer_dir": None}, {}, "DX219"),
        ({"batching_strategy": None}, {}, "DX219"),
        ({"decoupled_mode": "True"}, {}, "DX217"),
        ({"bls_decoupled_mode": "True"}, {}, "DX217"),
        ({"ensemble_max_batch_size": "16"}, {}, "DX237"),
        ({"triton_max_batch_size": "64"}, {}, "DX885"),
        ({"max_beam_width": "4"}, {}, "DX212"),
        ({"logits_datatype": "TYPE_FP16", "ensemble_logits_datatype": "TYPE_FP16"}, {}, "DX238"),
        ({"logits_datatype": "TYPE_FP16"}, {"logits_dtype": '"float16"'}, "DX238"),
        ({"gpu_device_ids": "0"}, {"tp_size": "2"}, "DX210"),
        ({"cross_kv_cache_fraction": "0.5"}, {}, "DX241"),
        ({}, {"encoder_decoder": "true"}, "DX241"),
        ({"enable_kv_cache_reuse": "yes"}, {}, "DX241"),
        ({"decoding_mode": "medusa"}, {}, "DX245"),
        ({"kv_cache_free_gpu_mem_fraction": "90"}, {}, "DX355"),
        ({"max_attention_window_size": "4096"}, {}, "DX872"),
        ({"batching_strategy": "V1"}, {}, "DX892"),
        ({"enable_kv_cache_reuse": "false"}, {"plugin.use_paged_context_fmha": "false"}, "DX216"),
        (
            {"enable_kv_cache_reuse": "false", "enable_chunked_context": "false"},
            {"plugin.remove_input_padding": "false"},
            "DX215",
        ),
    ],
)
def test_each_mistake_gives_its_rule_and_no_other(
    tmp_path: Path, overrides: dict[str, str | None], facts: dict[str, str], code: str
) -> None:
    assert set(codes(repository(tmp_path, **overrides), engine(**facts))) == {code}


@pytest.mark.parametrize(
    ("model", "old", "new", "code"),
    [
        ("ensemble", '"preprocessing"', '"preproc"', "DX225"),
        ("postprocessing", 'name: "postprocessing"', 'name: "post"', "DX225"),
        ("ensemble", 'key: "QUERY"', 'key: "QUERRY"', "DX238"),
        ("preprocessing", "instance_group", "instance_grup", "DX223"),
    ],
)
def test_each_slip_in_a_configuration_gives_its_rule(tmp_path: Path, model: str, old: str, new: str, code: str) -> None:
    repository(tmp_path)
    config = tmp_path / "repository" / model / "config.pbtxt"
    config.write_text(config.read_text().replace(old, new))
    assert set(codes(read_triton_repository(HOST, str(tmp_path / "repository")))) == {code}


def test_files_and_folders_that_are_missing_give_their_rules(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "repository" / "preprocessing" / "1" / "model.py").unlink()
    (tmp_path / "engine").rmdir()
    assert set(codes(read_triton_repository(HOST, str(tmp_path / "repository")))) == {"DX224", "DX888"}


def test_different_tokenizers_before_and_after_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    [finding] = found(repository(tmp_path, postprocessing_tokenizer_dir=str(tmp_path / "other")))
    assert finding.code == "DX887"
    assert str(tmp_path / "other") in finding.message


def test_the_engine_that_is_named_is_the_one_compared(tmp_path: Path) -> None:
    named = msgspec.structs.replace(engine(), path=str(tmp_path / "engine"))
    other = msgspec.structs.replace(engine(max_batch_size="1", max_beam_width="0"), path="/elsewhere")
    assert codes(repository(tmp_path), other, named) == []


def test_an_encoder_beside_the_decoder_needs_no_more_than_a_share(tmp_path: Path) -> None:
    repaired = repository(tmp_path, cross_kv_cache_fraction="0.5")
    assert codes(repaired, engine(encoder_decoder="true")) == []


def test_a_finding_names_the_line(tmp_path: Path) -> None:
    [finding] = found(repository(tmp_path, decoupled_mode=None))
    assert "repository/tensorrt_llm/config.pbtxt:" in finding.where
    assert "decoupled" in finding.where
