"""Activation memory of engines, against what their build and start logs printed."""

from __future__ import annotations

import pytest

from support.make_setups import DEEPSEEK, LLAMA_7B, LLAMA_8B, make_setup
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.nouns import MIB, Device, Dims, Setup

ENGINE = {"backend": "tensorrt", "dtype": "float16"}
PRINTED = 0.006 * MIB  # logs round to 0.01 MiB
SHAPES = 20_480  # of shape tensors


def dims(layers: int, hidden: int, heads: int, kv: int, head: int, inner: int, words: int) -> Dims:
    return Dims(
        num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=kv, head_dim=head,
        intermediate_size=inner, vocab_size=words,
    )  # fmt: skip


MISTRAL = dims(32, 4096, 32, 8, 128, 14336, 32000)
BAICHUAN_13B = dims(40, 5120, 40, 40, 128, 13696, 64000)
QWEN_05B = dims(24, 896, 14, 2, 64, 4864, 151936)
QWEN_15B = dims(28, 1536, 12, 2, 128, 8960, 151936)
A4000 = Device(name="A4000", total_bytes=16 << 30, sm=86)
RTX_4090 = Device(name="RTX 4090", total_bytes=24 << 30, sm=89)


def limits(batch: int, tokens: int, length: int) -> dict[str, int]:
    return {"max_batch_size": batch, "max_num_tokens": tokens, "max_seq_len": length}


LOGGED = [
    pytest.param(
        make_setup(MISTRAL, limits=limits(32, 32768, 2048), version="0.7.1", **ENGINE),
        95_232 * 32768,
        id="Mistral-7B with the GEMM plugin",
    ),
    pytest.param(
        make_setup(BAICHUAN_13B, limits=limits(64, 65536, 2048), version="0.6.1", **ENGINE),
        6_308_236_288,
        id="Baichuan-13B, whose queries, keys and values are wider than its MLP",
    ),
    pytest.param(
        make_setup(
            QWEN_05B,
            weights="W8A16",
            limits=limits(2048, 8192, 32768),
            version="0.14.0",
            device=A4000,
            **ENGINE,
        ),
        773.51 * MIB,
        id="Qwen2.5-0.5B INT8, where the logits of 2048 sequences are the largest tensor",
    ),
    pytest.param(
        make_setup(QWEN_05B, weights="W8A16", limits=limits(1, 512, 32768), version="0.14.0", device=A4000, **ENGINE),
        43.26 * MIB,
        id="the same for one sequence of 512 tokens: most is cuBLAS's workspace",
    ),
    pytest.param(
        make_setup(
            QWEN_15B,
            weights="W4A16",
            limits=limits(2048, 8192, 131072),
            version="0.17.0",
            device=RTX_4090,
            **ENGINE,
        ),
        921.51 * MIB,
        id="DeepSeek-R1-Distill-Qwen-1.5B INT4",
    ),
    pytest.param(
        make_setup(
            LLAMA_8B,
            limits=limits(64, 128_000, 131072),
            version="0.18.0",
            gather_context_logits=True,
            **ENGINE,
        ),
        37_812.51 * MIB,
        id="Llama-3.1-8B that returns the logits of prompts",
    ),
    pytest.param(
        make_setup(LLAMA_8B, limits=limits(64, 12288, 2048), version="0.8.0", gemm_plugin=False, backend="tensorrt"),
        147_456 * 12288,
        id="Llama-3-8B without the GEMM plugin",
    ),
]


@pytest.mark.parametrize(("setup", "measured"), LOGGED)
def test_is_what_the_log_printed(setup: Setup, measured: float) -> None:
    figure = formula_activation(setup, 0).bytes
    assert abs(figure.value - measured) <= SHAPES + PRINTED
    assert figure.low < measured < figure.high


def test_says_what_it_is_made_of() -> None:
    component = formula_activation(LOGGED[0].values[0], 0)  # type: ignore[arg-type]
    assert sum(component.parts.values()) == component.bytes.value
    assert {"gate", "up", "product"} <= set(component.parts)
    assert component.why == "32 768 tokens, 32 rows of logits"


def test_without_the_fused_attention_it_grows_with_the_square_of_the_length() -> None:
    def need(length: int) -> int:
        setup = make_setup(
            LLAMA_7B, limits={"max_batch_size": 8, "max_num_tokens": 8 * length, "max_seq_len": 2 * length, "max_input_len": length},
            packed=False, context_fmha=False, **ENGINE,
        )  # fmt: skip
        return formula_activation(setup, 0).bytes.value

    assert need(4096) > 3 * need(2048)
    fused = make_setup(LLAMA_7B, limits=limits(8, 8 * 4096, 8192), **ENGINE)
    assert need(4096) > 5 * formula_activation(fused, 0).bytes.value


def test_a_padded_batch_counts_its_padding() -> None:
    asked = {"max_batch_size": 16, "max_num_tokens": 2048, "max_seq_len": 2048, "max_input_len": 1024}
    packed = formula_activation(make_setup(limits=asked, **ENGINE), 0).bytes.value
    padded = formula_activation(make_setup(limits=asked, packed=False, **ENGINE), 0).bytes.value
    assert padded > 5 * packed


def test_tensor_parallelism_shrinks_it_but_not_the_hidden_states() -> None:
    one, two, eight = (
        formula_activation(make_setup(limits=limits(8, 32768, 8192), layout={"tp": tp}, **ENGINE), 0).bytes.value
        for tp in (1, 2, 8)
    )
    assert one > two > eight > one // 8


def test_logits_are_on_the_last_stage_of_a_pipeline() -> None:
    setup = make_setup(limits=limits(2048, 8192, 8192), layout={"pp": 2}, **ENGINE)
    first, last = (formula_activation(setup, rank) for rank in (0, 1))
    assert "logits" not in first.parts
    assert last.parts["logits"] == 2048 * 128_256 * 2
    assert last.bytes.value > first.bytes.value


def test_quantised_activations_and_experts_are_less_sure() -> None:
    sure = formula_activation(make_setup(**ENGINE), 0).bytes
    for setup in (make_setup(weights="FP8", **ENGINE), make_setup(DEEPSEEK, **ENGINE)):
        figure = formula_activation(setup, 0).bytes
        assert (figure.high - figure.low) / figure.value > 2 * (sure.high - sure.low) / sure.value
