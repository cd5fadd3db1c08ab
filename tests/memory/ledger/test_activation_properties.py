"""What holds for activations and buffers of every model, layout and limit."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_setups import make_setup
from trtdx.memory.ledger.buffers import late_logits, rank_buffers
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.nouns import Component, Device, Dims, Figure, Setup

GROWING = ("max_num_tokens", "max_batch_size", "max_beam_width", "max_seq_len", "max_draft_len")


@st.composite
def models(draw: st.DrawFn) -> Dims:
    heads = draw(st.sampled_from([4, 14, 32, 40]))
    experts = draw(st.sampled_from([0, 0, 8, 64]))
    latent = draw(st.sampled_from([0, 0, 512]))
    return Dims(
        num_layers=draw(st.integers(1, 80)),
        hidden_size=draw(st.sampled_from([256, 896, 4096, 8192])),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from([1, 2, heads])),
        head_dim=draw(st.sampled_from([64, 128, 256])),
        intermediate_size=draw(st.sampled_from([512, 4864, 14336])),
        vocab_size=draw(st.integers(100, 200_000)),
        gated=draw(st.booleans()),
        num_experts=experts,
        experts_per_token=2 if experts else 0,
        moe_intermediate_size=768 if experts else 0,
        shared_experts=draw(st.integers(0, 1)) if experts else 0,
        kv_lora_rank=latent,
        qk_nope_head_dim=128 if latent else 0,
        qk_rope_head_dim=64 if latent else 0,
        v_head_dim=128 if latent else 0,
        state_bytes_per_sequence=draw(st.sampled_from([0, 1 << 20])),
        encoder_params=draw(st.sampled_from([0, 10**8])),
    )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    engine = draw(st.booleans())
    flags = {name: draw(st.booleans()) for name in ("gemm_plugin", "attention_plugin", "context_fmha", "packed", "gather_context_logits", "multiple_profiles", "piecewise_graphs", "lora")}  # fmt: skip
    tp = draw(st.sampled_from([1, 2, 8]))
    return make_setup(
        draw(models()),
        weights=draw(st.sampled_from(["", "FP8", "NVFP4", "W4A16_AWQ", "W8A8_SQ_PER_CHANNEL"])),
        kv=draw(st.sampled_from(["", "fp8"])),
        layout={"tp": tp, "pp": draw(st.sampled_from([1, 2])), "ep": draw(st.sampled_from([0, tp])), "attention_dp": draw(st.booleans())},
        limits={
            "max_batch_size": draw(st.integers(1, 4096)),
            "max_num_tokens": draw(st.integers(1, 200_000)),
            "max_seq_len": draw(st.integers(1, 200_000)),
            "max_input_len": draw(st.sampled_from([0, 100, 1024])),
            "max_beam_width": draw(st.sampled_from([1, 4])),
        },
        device=draw(st.sampled_from([None, Device(name="a", total_bytes=80 << 30, sm=90), Device(name="b", total_bytes=180 << 30, sm=100)])),
        backend="tensorrt" if engine else "pytorch",
        version=draw(st.sampled_from(["", "0.8.0", "0.16.0", "1.1.0"])),
        moe_backend=draw(st.sampled_from(["", "CUTLASS", "TRTLLM", "DEEPGEMM"])),
        disaggregated_tokens=draw(st.sampled_from([0, 4096])),
        **flags,
    )  # fmt: skip


def all_of(setup: Setup, rank: int) -> list[Component]:
    return [formula_activation(setup, rank), *rank_buffers(setup, rank), late_logits(setup, rank)]


@pytest.mark.heavy
@given(setups())
@settings(max_examples=200, deadline=None)
def test_bands_are_in_order_and_nothing_is_negative(setup: Setup) -> None:
    for component in all_of(setup, setup.layout.world - 1):
        figure: Figure = component.bytes
        assert 0 <= figure.low <= figure.value <= figure.high
        assert all(size >= 0 for size in component.parts.values())


@pytest.mark.heavy
@given(setups())
@settings(max_examples=200, deadline=None)
def test_parts_sum_to_the_whole(setup: Setup) -> None:
    for component in all_of(setup, 0):
        if component.parts:
            assert sum(component.parts.values()) == component.bytes.value


@pytest.mark.heavy
@given(setups(), st.sampled_from(GROWING), st.integers(1, 5000))
@settings(max_examples=400, deadline=None)
def test_a_larger_limit_never_needs_less(setup: Setup, name: str, more: int) -> None:
    more = 1 if name == "max_beam_width" else min(more, 8) if name == "max_draft_len" else more
    limits = msgspec.structs.replace(setup.limits, **{name: getattr(setup.limits, name) + more})
    grown = msgspec.structs.replace(setup, limits=limits)
    rank = setup.layout.world - 1
    before = {each.name: each.bytes for each in all_of(setup, rank)}
    after = {each.name: each.bytes for each in all_of(grown, rank)}
    for component, figure in before.items():
        assert after[component].value >= figure.value
        assert after[component].high >= figure.high


@given(setups(), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_more_layers_never_need_less(setup: Setup, more: int) -> None:
    grown = msgspec.structs.replace(
        setup, dims=msgspec.structs.replace(setup.dims, num_layers=setup.dims.num_layers + more)
    )
    for before, after in zip(all_of(setup, 0), all_of(grown, 0), strict=True):
        assert after.bytes.value >= before.bytes.value


@given(setups())
@settings(max_examples=100, deadline=None)
def test_only_gpus_that_work_together_talk(setup: Setup) -> None:
    names = {each.name for each in rank_buffers(setup, 0)}
    assert ("communication" in names) == (setup.layout.world > 1)
