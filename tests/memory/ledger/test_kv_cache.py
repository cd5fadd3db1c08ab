"""The key/value cache: bytes of a token, the pool that is left, and how releases round it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_setups import B200, DEEPSEEK, GPT_OSS_120B, H100, LLAMA_7B, LLAMA_8B, make_setup
from trtdx.memory.ledger.capacity import count_requests
from trtdx.memory.ledger.kv_cache import kv_bytes_per_token, kv_pool_component, recurrent_state
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.nouns import GIB, Dims, Figure, Setup

QWEN3_06B = msgspec.structs.replace(
    LLAMA_8B, num_layers=28, hidden_size=1024, num_heads=16, num_kv_heads=8, head_dim=128
)
GEMMA_7B = msgspec.structs.replace(LLAMA_8B, num_layers=28, num_heads=16, num_kv_heads=16, head_dim=256)
TINY = msgspec.structs.replace(LLAMA_8B, num_layers=22, num_kv_heads=4, head_dim=64)

# Bytes that logs give: allocated, divided by tokens.
PRINTED = {
    "Llama-2-7B": (make_setup(LLAMA_7B), 524_288),
    "Llama-3-8B": (make_setup(), 131_072),
    "Llama-3-8B in FP8": (make_setup(kv="fp8"), 65_536),
    "Llama-2-7B in int8": (make_setup(LLAMA_7B, kv="int8", backend="tensorrt"), 262_144),
    "Gemma-7B": (make_setup(GEMMA_7B), 458_752),
    "Qwen3-0.6B, whose heads are wider than its hidden size": (make_setup(QWEN3_06B), 114_688),
    "TinyLlama": (make_setup(TINY), 22_528),
    "gpt-oss-120b in FP8": (make_setup(GPT_OSS_120B, kv="fp8"), 36_864),
    "DeepSeek in FP8, tp 4: one latent, not cut": (make_setup(DEEPSEEK, kv="fp8", layout={"tp": 4}), 35_136),
    "DeepSeek in FP8, tp 8": (make_setup(DEEPSEEK, kv="fp8", layout={"tp": 8}), 35_136),
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED)
def test_a_token_takes_what_logs_say(case: str) -> None:
    setup, printed = PRINTED[case]

    assert kv_bytes_per_token(setup, 0) == Figure.exact(printed)


def per_token(dims: Dims = LLAMA_8B, rank: int = 0, **more: object) -> int:
    return kv_bytes_per_token(make_setup(dims, **more), rank).value  # type: ignore[arg-type]


def test_heads_are_cut_until_each_rank_has_one() -> None:
    assert per_token(layout={"tp": 4}) == 131_072 // 4
    assert per_token(layout={"tp": 8}) == 131_072 // 8
    assert per_token(layout={"tp": 16}) == 131_072 // 8
    assert per_token(layout={"tp": 4, "attention_dp": True}) == 131_072


def test_nvfp4_keeps_a_scale_for_sixteen_numbers() -> None:
    assert per_token(kv="nvfp4") == 65_536 * (0.5 + 1 / 16)


def test_each_stage_keeps_its_layers() -> None:
    assert [per_token(rank=rank, layout={"pp": 3}) // 4096 for rank in range(3)] == [11, 11, 10]


def test_layers_without_attention_keep_nothing() -> None:
    hybrid = msgspec.structs.replace(LLAMA_8B, attention_layers=8, state_layers=24)
    skipping = msgspec.structs.replace(LLAMA_8B, kv_heads_per_layer=(8,) * 16 + (0,) * 16)

    assert per_token(hybrid) == 131_072 // 4
    assert per_token(skipping) == 131_072 // 2


def test_a_draft_keeps_keys_of_its_own() -> None:
    head = msgspec.structs.replace(LLAMA_8B, num_layers=1)

    assert per_token(draft=head) == 33 * 4096
    assert per_token(draft=head, layout={"pp": 2}) == 16 * 4096
    assert per_token(draft=head, layout={"pp": 2}, rank=1) == 17 * 4096


@pytest.mark.parametrize(
    ("version", "reckoned"),
    [("1.2.0rc6.post3", 61), ("1.3.0rc5.post2", 122), ("1.3.0rc8", 122), ("1.3.0rc10", 62)],
)
def test_layers_that_guess_ahead_were_reckoned_with_in_three_ways(version: str, reckoned: int) -> None:
    setup = make_setup(DEEPSEEK, kv="fp8", device=B200, version=version, limits={"max_draft_len": 3})

    pool, tokens = kv_pool_component(setup, 0, Figure.exact(90 * GIB))

    assert kv_bytes_per_token(setup, 0).value == reckoned * 576
    assert pool.bytes.value == tokens.value * 62 * 576  # allocated in any case


def test_under_attention_dp_they_are_not_reckoned_with() -> None:
    guessing = {"kv": "fp8", "limits": {"max_draft_len": 1}, "layout": {"tp": 8, "attention_dp": True}}

    assert per_token(DEEPSEEK, **guessing) == 61 * 576


def left(setup: Setup, available: float) -> tuple[int, int]:
    """Return tokens and bytes of the pool where so many GiB are left."""
    assert setup.device is not None
    pool, tokens = kv_pool_component(setup, 0, Figure.exact(setup.device.total_bytes - round(available * GIB)))
    return tokens.value, pool.bytes.value


def test_an_engine_takes_its_share_of_what_is_left() -> None:
    """A log: 70.48 GiB available, 4060 blocks of 64 tokens, 63.44 GiB."""
    setup = make_setup(LLAMA_7B, kv="fp8", backend="tensorrt", limits={"tokens_per_block": 64})

    tokens, size = left(setup, 70.48)

    assert tokens == 4060 * 64
    assert size / GIB == pytest.approx(63.44, abs=0.005)


@pytest.mark.parametrize(
    ("backend", "version", "tokens"),
    [
        ("pytorch", "0.20.0", 860_320),
        ("pytorch", "1.1.0rc3", 860_320),
        ("pytorch", "1.2.0rc5", 860_288),
        ("pytorch", "", 860_288),
        ("tensorrt", "1.2.1", 860_320),
    ],
)
def test_releases_round_to_blocks_in_different_directions(backend: str, version: str, tokens: int) -> None:
    setup = make_setup(kv="fp8", backend=backend, version=version, free_fraction=0.8)

    assert left(setup, 860_308.5 * 65_536 / 0.8 / GIB)[0] == tokens


def test_the_smallest_of_what_was_asked_for_counts() -> None:
    assert left(make_setup(max_tokens=2560), 40) == (2560, 2560 * 131_072)
    assert left(make_setup(max_tokens=10**9), 40) == left(make_setup(), 40)
    assert left(make_setup(max_kv_bytes=GIB), 40)[1] == GIB


def test_nothing_left_is_no_pool() -> None:
    assert left(make_setup(), 0) == (0, 0)
    assert left(make_setup(), -5) == (0, 0)


def test_what_is_uncertain_of_the_rest_is_uncertain_of_the_pool() -> None:
    pool, tokens = kv_pool_component(make_setup(), 0, Figure(20 * GIB, 19 * GIB, 22 * GIB, "formula"))

    assert tokens.low < tokens.value < tokens.high
    assert tokens.low * 131_072 == pool.bytes.low


def test_different_windows_share_the_memory_equally_whatever_their_layers() -> None:
    windows = {"max_attention_window": (1024, 1024, 1024, 8192), "max_seq_len": 8192}
    setup = make_setup(limits=windows)

    pool, tokens = kv_pool_component(setup, 0, Figure.exact(40 * GIB))

    assert set(pool.parts) == {"window 1024", "window 8192"}
    assert pool.parts["window 1024"] == pytest.approx(pool.parts["window 8192"], rel=1e-3)
    assert tokens.value == pool.parts["window 8192"] // (8 * 4096)
    asked = make_setup(limits=windows, env={"TRTLLM_WINDOW_SIZE_SHARES": "0.25,0.75"})
    shared, _ = kv_pool_component(asked, 0, Figure.exact(40 * GIB))
    assert shared.parts["window 8192"] == pytest.approx(3 * shared.parts["window 1024"], rel=1e-3)


def test_windows_of_the_model_alone_save_nothing() -> None:
    """Unless max_attention_window is set, sliding layers keep whole sequences."""
    sliding = msgspec.structs.replace(LLAMA_8B, windows=(1024, 0) * 16)

    assert left(make_setup(sliding), 40) == left(make_setup(), 40)


def test_a_cache_that_is_not_paged_holds_all_sequences_at_their_longest() -> None:
    setup = make_setup(LLAMA_7B, backend="tensorrt", paged_kv=False, limits={"max_batch_size": 8, "max_seq_len": 4096})

    pool, tokens = kv_pool_component(setup, 0, Figure.exact(0))

    assert (pool.bytes.value, tokens.value) == (16 * GIB, 8 * 4096)


def test_an_encoder_decoder_halves_its_pool_for_cross_attention() -> None:
    seeing = msgspec.structs.replace(LLAMA_8B, encoder_layers=32)

    tokens, size = left(make_setup(seeing), 40)

    assert tokens == pytest.approx(left(make_setup(), 40)[0] / 2, abs=32)
    assert size == 2 * tokens * 131_072


def test_without_a_gpu_one_sequence_must_fit() -> None:
    pool, tokens = kv_pool_component(make_setup(device=None), 0, Figure.exact(0))

    assert tokens.value == 8192
    assert "name a GPU" in pool.why


def test_memory_of_the_host_is_told_in_words() -> None:
    pool, _ = kv_pool_component(make_setup(host_cache_bytes=GIB), 0, Figure.exact(40 * GIB))

    assert "8 192 more tokens in host memory" in pool.why


def test_recurrent_layers_keep_a_state_for_each_sequence() -> None:
    """Nemotron-H-8B: 24 layers of 128 heads of 64, 8 groups, a state of 128 numbers, a convolution over 4."""
    layer = 128 * 64 * 128 * 4 + (128 * 64 + 2 * 8 * 128) * 3 * 2
    hybrid = msgspec.structs.replace(
        LLAMA_8B, num_layers=28, attention_layers=4, state_layers=24, state_bytes_per_sequence=24 * layer
    )

    found = recurrent_state(make_setup(hybrid), 0)

    assert found is not None
    assert found.bytes.value == 64 * 24 * layer
    halved = recurrent_state(make_setup(hybrid, layout={"tp": 2}), 0)
    assert halved is not None
    assert halved.bytes.value == found.bytes.value // 2
    assert recurrent_state(make_setup(), 0) is None


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 80),
    st.integers(0, 80),
    st.floats(0.05, 0.95),
    st.sampled_from(["", "0.20.0"]),
    st.sampled_from(["bfloat16", "fp8", "nvfp4"]),
)
def test_a_pool_never_takes_more_than_its_share_and_more_room_never_gives_less(
    used: int, more: int, fraction: float, version: str, kind: str
) -> None:
    setup = make_setup(kv=kind, free_fraction=fraction, version=version, device=H100)
    available = max(H100.total_bytes - used * GIB, 0)

    pool, tokens = kv_pool_component(setup, 0, Figure.exact(used * GIB))
    _, fewer = kv_pool_component(setup, 0, Figure.exact((used + more) * GIB))

    a_block = 32 * kv_bytes_per_token(setup, 0).value
    assert pool.bytes.value <= available * fraction + a_block
    assert pool.bytes.value == tokens.value * kv_bytes_per_token(setup, 0).value
    assert fewer.value <= tokens.value
    assert tokens.value % 32 == 0


def test_what_whisper_hears_bounds_its_requests() -> None:
    """Each request fills 1500 tokens of the cross-attention's cache, however short its text is."""
    whisper = msgspec.structs.replace(LLAMA_8B, encoder_layers=32, encoder_positions=1500, max_positions=448)
    setup = make_setup(whisper, backend="tensorrt", version="1.2.1", limits={"max_seq_len": 448})

    ledger = plan_memory(setup)

    assert count_requests(ledger, 448) == ledger.kv_tokens.value // (47 * 32)
