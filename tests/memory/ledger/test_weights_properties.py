"""What holds for the weights of every model, layout and format."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_setups import DEEPSEEK, GPT_OSS_120B, LLAMA_8B, make_setup
from trtdx.memory.ledger.weight_storage import ALGOS as KNOWN
from trtdx.memory.ledger.weight_storage import WeightMatrix, linear_bytes
from trtdx.memory.ledger.weights import rank_weights
from trtdx.memory.nouns import Dims

ALGOS = st.sampled_from(KNOWN)
BACKENDS = st.sampled_from(["CUTLASS", "TRTLLM", "TRITON", ""])
FLOWS = st.sampled_from(["pytorch", "tensorrt"])


@st.composite
def models(draw: st.DrawFn) -> Dims:
    heads = draw(st.sampled_from([8, 16, 40, 64]))
    experts = draw(st.sampled_from([0, 0, 8, 64]))
    return Dims(
        num_layers=draw(st.integers(2, 12)),
        hidden_size=draw(st.sampled_from([512, 2880, 4096])),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([each for each in (1, 2, 4, 8, heads) if heads % each == 0])),
        head_dim=draw(st.sampled_from([64, 128])),
        intermediate_size=draw(st.sampled_from([1024, 11008, 14336])),
        vocab_size=draw(st.integers(1000, 200_000)),
        gated=draw(st.booleans()),
        tied=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        num_experts=experts,
        moe_intermediate_size=draw(st.sampled_from([768, 1536, 2880])) if experts else 0,
        shared_experts=draw(st.integers(0, 2)) if experts else 0,
        dense_layers=draw(st.integers(0, 2)) if experts else 0,
        model_type=draw(st.sampled_from(["llama", "qwen3", "mixtral", "gemma2", "gpt_oss"])),
    )


ANY_MODEL = st.one_of(models(), st.sampled_from([LLAMA_8B, DEEPSEEK, GPT_OSS_120B]))


def held(dims: Dims, algo: str, backend: str, flow: str, rank: int = 0, **layout: Any) -> int:
    return rank_weights(
        make_setup(dims, weights=algo, moe_backend=backend, backend=flow, layout=layout), rank
    ).bytes.value


@settings(max_examples=150, deadline=None)
@given(ANY_MODEL, ALGOS, BACKENDS, FLOWS, st.sampled_from([1, 2, 4]), st.booleans())
def test_more_tensor_parallelism_never_takes_more(
    dims: Dims, algo: str, backend: str, flow: str, tp: int, dp: bool
) -> None:
    assert held(dims, algo, backend, flow, tp=2 * tp, attention_dp=dp) <= held(
        dims, algo, backend, flow, tp=tp, attention_dp=dp
    )


@settings(max_examples=100, deadline=None)
@given(ANY_MODEL, ALGOS, FLOWS, st.integers(1, 4), st.integers(1, 2))
def test_the_band_holds_the_value_and_parts_sum_to_it(dims: Dims, algo: str, flow: str, pp: int, tp: int) -> None:
    setup = make_setup(dims, weights=algo, backend=flow, layout={"pp": pp, "tp": tp})

    for rank in range(pp * tp):
        found = rank_weights(setup, rank)
        assert 0 <= found.bytes.low <= found.bytes.value <= found.bytes.high
        assert sum(found.parts.values()) == found.bytes.value
        assert all(size > 0 for size in found.parts.values())


@settings(max_examples=100, deadline=None)
@given(ANY_MODEL, ALGOS, st.integers(1, 4))
def test_the_stages_of_a_pipeline_sum_to_the_whole(dims: Dims, algo: str, pp: int) -> None:
    dims = msgspec.structs.replace(dims, tied=False)

    assert sum(held(dims, algo, "", "pytorch", rank, pp=pp) for rank in range(pp)) == held(dims, algo, "", "pytorch")


@settings(max_examples=100, deadline=None)
@given(models(), ALGOS, FLOWS, st.sampled_from(["num_layers", "hidden_size", "intermediate_size", "vocab_size"]))
def test_more_of_anything_never_takes_less(dims: Dims, algo: str, flow: str, name: str) -> None:
    larger = msgspec.structs.replace(dims, **{name: getattr(dims, name) * 2})

    assert held(larger, algo, "", flow) >= held(dims, algo, "", flow)


@settings(max_examples=200, deadline=None)
@given(ALGOS, st.integers(1, 5000), st.integers(1, 5000))
def test_a_smaller_matrix_never_takes_more(algo: str, rows: int, columns: int) -> None:
    size = linear_bytes(algo, WeightMatrix(rows, columns))

    assert linear_bytes(algo, WeightMatrix(rows + 1, columns)) >= size
    assert linear_bytes(algo, WeightMatrix(rows, columns + 1)) >= size
