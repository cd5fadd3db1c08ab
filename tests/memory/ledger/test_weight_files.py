"""Weights to the byte where files are at hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.make_engine import make_checkpoint, make_engine
from support.make_hf import llama_tensors, make_hf_model, model_config, write_safetensors
from support.make_setups import LLAMA_8B, make_setup
from trtdx.host import RealHost
from trtdx.memory.ledger.weight_files import HEADERS_SOURCE, weights_from_files
from trtdx.memory.ledger.weights import rank_weights

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.memory.nouns import Dims, Figure

SMALL = msgspec.structs.replace(LLAMA_8B, vocab_size=2048)  # what make_hf_model writes
MIXTURE = msgspec.structs.replace(SMALL, num_layers=4, num_experts=8, moe_intermediate_size=14336, model_type="mixtral")


def read(folder: Path, dims: Dims = SMALL, **more: Any) -> tuple[Figure, ...]:
    return weights_from_files(RealHost(), str(folder), make_setup(dims, **more))


def tensor_bytes(config: dict[str, Any]) -> int:
    total = 0
    for _, shape in llama_tensors(config).values():
        size = 2
        for each in shape:
            size *= each
        total += size
    return total


def test_a_hugging_face_model_on_one_gpu_takes_exactly_its_tensors(tmp_path: Path) -> None:
    found = read(make_hf_model(tmp_path))

    assert [figure.value for figure in found] == [tensor_bytes(model_config())]
    assert found[0].source == HEADERS_SOURCE
    assert found[0].low == found[0].value


@pytest.mark.parametrize(
    "layout", [{"tp": 2}, {"tp": 16}, {"pp": 2}, {"tp": 2, "pp": 4}, {"tp": 4, "attention_dp": True}]
)
def test_a_hugging_face_model_is_cut_as_the_formula_cuts_it(tmp_path: Path, layout: dict[str, Any]) -> None:
    found = read(make_hf_model(tmp_path), layout=layout)

    setup = make_setup(SMALL, layout=layout)
    assert len(found) == setup.layout.world
    for rank, figure in enumerate(found):
        assert figure.value == pytest.approx(rank_weights(setup, rank).bytes.value, rel=1e-9)


def test_experts_are_told_from_the_rest(tmp_path: Path) -> None:
    config = model_config(num_hidden_layers=4, num_local_experts=8, model_type="mixtral")
    write_safetensors(tmp_path / "model.safetensors", llama_tensors(config))
    layout = {"tp": 4, "ep": 4}

    found = read(tmp_path, MIXTURE, layout=layout)

    assert found[0].value == pytest.approx(rank_weights(make_setup(MIXTURE, layout=layout), 0).bytes.value, rel=1e-9)


def test_float32_files_loaded_as_bfloat16_take_half(tmp_path: Path) -> None:
    wide = {name: ("F32", shape) for name, (_, shape) in llama_tensors(model_config()).items()}
    write_safetensors(tmp_path / "model.safetensors", wide)

    assert read(tmp_path)[0].value == pytest.approx(tensor_bytes(model_config()), rel=1e-9)


def test_layers_beyond_the_model_are_loaded_only_when_they_guess_ahead(tmp_path: Path) -> None:
    extra = {"model.layers.32.mlp.up_proj.weight": ("BF16", (14336, 4096))}
    write_safetensors(tmp_path / "model.safetensors", llama_tensors(model_config()) | extra)
    guessing = msgspec.structs.replace(SMALL, nextn_layers=1)

    assert read(tmp_path, guessing)[0].value == tensor_bytes(model_config())
    assert read(tmp_path, guessing, limits={"max_draft_len": 1})[0].value > tensor_bytes(model_config())


def test_an_image_encoder_is_not_part_of_the_decoder(tmp_path: Path) -> None:
    seeing = {"vision_tower.encoder.layers.0.mlp.fc1.weight": ("BF16", (4096, 4096))}
    write_safetensors(tmp_path / "model.safetensors", llama_tensors(model_config()) | seeing)

    assert read(tmp_path)[0].value == tensor_bytes(model_config())


def test_a_head_that_is_tied_is_not_loaded_twice(tmp_path: Path) -> None:
    tied = msgspec.structs.replace(SMALL, tied=True)

    found = read(make_hf_model(tmp_path), tied)

    assert found[0].value == tensor_bytes(model_config()) - 2048 * 4096 * 2


def test_each_rank_of_a_checkpoint_has_its_own_file(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tp_size=2, num_hidden_layers=4, vocab_size=2048)
    four = msgspec.structs.replace(SMALL, num_layers=4)

    found = read(folder, four, layout={"tp": 2}, backend="tensorrt", version="1.2.1")

    reckoned = rank_weights(make_setup(four, layout={"tp": 2}, backend="tensorrt", version="1.2.1"), 1).bytes.value
    assert [figure.value for figure in found] == [pytest.approx(reckoned, rel=1e-6)] * 2


def test_a_checkpoint_cut_otherwise_says_nothing(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, tp_size=2, num_hidden_layers=4)

    assert read(folder, layout={"tp": 4}, backend="tensorrt") == ()


def test_an_engine_takes_about_the_size_of_its_file(tmp_path: Path) -> None:
    folder = make_engine(tmp_path, tp_size=2)

    found = read(folder, layout={"tp": 2}, backend="tensorrt")

    assert [figure.value for figure in found] == [(folder / f"rank{rank}.engine").stat().st_size for rank in (0, 1)]
    assert found[1].source == "exact: the size of rank1.engine"
    assert read(folder, layout={"tp": 4}, backend="tensorrt") == ()


def test_files_that_are_not_whole_say_nothing(tmp_path: Path) -> None:
    folder = make_hf_model(tmp_path / "cut")
    os.truncate(next(folder.glob("*.safetensors")), 64)

    assert read(folder) == ()
    assert read(make_hf_model(tmp_path / "whole"), msgspec.structs.replace(SMALL, num_layers=64)) == ()
    (tmp_path / "none").mkdir()
    assert read(tmp_path / "none") == ()
