"""What both sides' files tell beside the numbers."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.model_zoo import A, M
from support.planted_faults import decoder, suspect_of, weight
from trtdx.compare.attribute import find_causes
from trtdx.compare.attribute.files.file_cause import compare_files
from trtdx.compare.attribute.files.weight_differences import relate_weights
from trtdx.compare.attribute.mistakes.quantization import backend_saturates, saturating_product
from trtdx.compare.sides.side import SideSpec

torch = sys.modules["torch"]


class OnlySpec:
    """A side of which only the files matter: as compare/sides/side.py has it, without a capture."""

    def __init__(self, spec):
        self.spec = spec


CHANGES = {
    "same": lambda held: held.bfloat16().float(),
    "transposed": lambda held: held.T,
    "scaled": lambda held: 1.5 * held,
    "in another order": lambda held: held.flip(0),
    "partly zero": lambda held: torch.cat((torch.zeros_like(held[:4]), held[4:])),
    "different": lambda held: held + torch.randn_like(held),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_how_a_weight_comes_from_another_is_told(kind):
    torch.manual_seed(0)
    held = torch.randn(16, 24)
    assert relate_weights(held, CHANGES[kind](held)).kind == kind


def test_columns_in_another_order_and_one_added_are_seen():
    held = torch.randn(8, 6)
    assert relate_weights(held, held[:, [1, 0, 2, 3, 4, 5]]).description == "2 of 6 columns in another order"
    assert relate_weights(held[0], held[0] + 1).description == "with one added"


def test_weights_of_another_checkpoint_are_tried_out(tmp_path):
    reference = decoder("llama")
    torch.manual_seed(8)
    plant = weight(f"{M}.up_proj", lambda held, _: 0.2 * torch.randn_like(held))
    suspect = suspect_of(reference, f"{M}.up_proj", plant)
    other = decoder("llama")
    torch.manual_seed(8)
    with plant(other):
        other.config.rms_norm_eps = 1e-4
        other.save_pretrained(tmp_path)
    found = find_causes(suspect._replace(candidate=OnlySpec(SideSpec("hf", str(tmp_path)))))
    assert (found[0].code, round(found[0].share, 3)) == ("DX977", 1.0)
    assert found[0].values["what"] == "weight is another one"
    assert "rms_norm_eps 0.0001, the reference's 1e-06" in found[0].values["evidence"]


def test_what_the_numbers_find_is_named_and_the_files_are_evidence(tmp_path):
    reference = decoder("llama")
    plant = weight(f"{A}.q_proj", lambda held, _: held.T)
    suspect = suspect_of(reference, f"{A}.q_proj", plant)
    other = decoder("llama")
    with plant(other):
        other.save_pretrained(tmp_path)
    found = find_causes(suspect._replace(candidate=OnlySpec(SideSpec("hf", str(tmp_path)))))
    assert found[0].code == "DX982"
    assert found[0].values["evidence"] == f"the candidate's {A}.q_proj.weight is transposed"


def test_constants_and_settings_of_two_graphs_are_compared(tmp_path):
    onnx = pytest.importorskip("onnx")
    import numpy as np

    def saved(name, eps, perm, matrix):
        make = onnx.helper
        nodes = [
            make.make_node("Add", ["x", "eps"], ["a"], name="/model/norm/Add"),
            make.make_node("Transpose", ["a"], ["t"], name="/model/norm/Transpose", perm=perm),
            make.make_node("MatMul", ["t", "w"], ["y"], name="/model/norm/MatMul"),
        ]
        constants = [
            onnx.numpy_helper.from_array(np.array(eps, np.float32), "eps"),
            onnx.numpy_helper.from_array(matrix, "w"),
        ]
        values = [make.make_tensor_value_info(each, 1, [2, 4, 4]) for each in ("x", "y")]
        graph = make.make_graph(nodes, "g", values[:1], values[1:], constants)
        onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), tmp_path / name)
        return str(tmp_path / name)

    matrix = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    one = saved("one.onnx", 1e-6, [0, 2, 1], matrix)
    assert compare_files(one, one, "model.norm") == ([], None)
    other = saved("other.onnx", 1e-5, [0, 1, 2], matrix.T.copy())
    told, _ = compare_files(one, other, "model.norm")
    assert told[0] == "Add: a constant is 1e-05, not 1e-06"
    assert "MatMul: a constant is transposed" in told
    assert any("perm" in each for each in told)


def test_pairs_of_products_saturate_as_the_probe_of_the_backend_shows():
    """255 * 127 summed over 64: exact 2072640, in 16 bits 32 times 32767."""
    found = saturating_product(torch.full((1, 64), 255.0), torch.full((1, 64), 127.0))
    assert int(found) == 32 * 32767
    assert backend_saturates() in (None, True, False)
