"""Where TensorRT's parser makes another network of an ONNX node than the node says.

For each: which tests, why, and what the parser understood, as a change to the model. The network is then compared
with ONNX's own reference of the changed model, so that what is computed is known to be what the network says.
"""

from __future__ import annotations

from typing import NamedTuple


class Deviation(NamedTuple):
    tests: tuple[str, ...]
    reason: str
    understood: object = None  # changes the model's node in place; None: there is no such model


def without_attribute(*names):
    def change(node):
        kept = [each for each in node.attribute if each.name not in names]
        del node.attribute[:]
        node.attribute.extend(kept)

    return change


def with_attribute(name, number):
    def change(node):
        without_attribute(name)(node)
        attribute = node.attribute.add()
        attribute.name, attribute.i, attribute.type = name, number, attribute.INT

    return change


def without_input(number):
    def change(node):
        node.input[number] = ""

    return change


NONPAD = (
    "gqa_causal_nonpad_decode",
    "gqa_causal_nonpad_decode_fp16",
    "causal_nonpad_continued_prefill",
    "causal_nonpad_negative_offset_structural_empty",
    "causal_nonpad_batch_prefill",
)
TRIU = ("", "_neg", "_out_neg_out", "_pos", "_out_pos", "_square", "_square_neg", "_one_row")
NO_SATURATE = ("cast_no_saturate_{}", "castlike_no_saturate_{}", "castlike_no_saturate_{}_expanded")
FP8 = ("FLOAT_to_FLOAT8E4M3FN", "FLOAT16_to_FLOAT8E4M3FN")

DEVIATIONS = (
    Deviation(
        tuple(f"test_triu{each}" for each in TRIU),
        "an omitted `upper` is taken for 0, ONNX's default is 1",
        with_attribute("upper", 0),
    ),
    Deviation(
        tuple(f"test_attention_4d_{each}" for each in NONPAD),
        "the input nonpad_kv_seqlen is dropped",
        without_input(6),
    ),
    Deviation(
        ("test_attention_local_window", "test_attention_bidirectional_window"),
        "window sizes are dropped",
        without_attribute("left_window_size", "right_window_size"),
    ),
    Deviation(
        tuple(f"test_{each.format(kind)}" for each in NO_SATURATE for kind in FP8),
        "saturate=0 is dropped, FP8 saturates",
        without_attribute("saturate"),
    ),
    Deviation(
        ("test_gru_batchwise", "test_lstm_batchwise", "test_simple_rnn_batchwise"),
        "layout=1 is dropped",
        with_attribute("layout", 0),
    ),
    Deviation(("test_spacetodepth_crd_mode_example",), "mode=CRD is dropped", without_attribute("mode")),
    Deviation(
        (
            "test_averagepool_2d_ceil_last_window_starts_on_pad",
            "test_maxpool_2d_ceil_output_size_reduce_by_one",
        ),
        "TensorRT counts a last window that lies in the padding, ONNX does not",
    ),
    Deviation(
        ("test_quantizelinear", "test_quantizelinear_axis", "test_quantizelinear_blocked_asymmetric"),
        "TensorRT has no UINT8 to quantise to, the network says INT8",
    ),
    Deviation(("test_nonmaxsuppression_two_classes",), "TensorRT sorts boxes by score, ONNX by class"),
    Deviation(("test_bernoulli_double_expanded", "test_bernoulli_seed_expanded"), "random numbers"),
    Deviation(
        ("test_attention_4d_causal_fp16_expanded",),
        "ONNX's expectation is added up in half precision, TensorRT's in float32",
    ),
)


def deviation_of(name):
    return next((each for each in DEVIATIONS if name in each.tests), None)
