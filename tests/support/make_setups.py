"""Set-ups of well-known models, for tests of memory plans."""

from __future__ import annotations

from typing import Any

from trtdx.memory.nouns import (
    GIB,
    Device,
    Dims,
    Formats,
    ParallelLayout,
    RuntimeSettings,
    ServingLimits,
    Setup,
)

LLAMA_7B = Dims(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_dim=128, intermediate_size=11008,
    vocab_size=32000, max_positions=4096, model_type="llama",
)  # fmt: skip
LLAMA_8B = Dims(
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, intermediate_size=14336,
    vocab_size=128256, max_positions=8192, model_type="llama",
)  # fmt: skip
DEEPSEEK = Dims(
    num_layers=61, hidden_size=7168, num_heads=128, num_kv_heads=128, head_dim=0, intermediate_size=18432,
    vocab_size=129280, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    num_experts=256, experts_per_token=8, moe_intermediate_size=2048, shared_experts=1, dense_layers=3, nextn_layers=1,
    model_type="deepseek_v3",
)  # fmt: skip
GPT_OSS_120B = Dims(
    num_layers=36, hidden_size=2880, num_heads=64, num_kv_heads=8, head_dim=64, intermediate_size=2880,
    vocab_size=201088, num_experts=128, experts_per_token=4, moe_intermediate_size=2880, attention_bias=True,
    output_bias=True, mlp_bias=True, model_type="gpt_oss",
)  # fmt: skip
B200 = Device(name="B200", total_bytes=round(178.35 * GIB), sm=100)
H100 = Device(name="H100 80GB", total_bytes=round(79.10 * GIB), sm=90)


def make_setup(
    dims: Dims = LLAMA_8B,
    *,
    weights: str = "",
    kv: str = "",
    dtype: str = "bfloat16",
    excluded: tuple[str, ...] = (),
    device: Device | None = H100,
    layout: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    draft: Dims | None = None,
    **running: Any,
) -> Setup:
    """Return a set-up with ordinary limits; `running` are fields of Running."""
    asked = {"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 8192} | (limits or {})
    return Setup(
        model="",
        dims=dims,
        layout=ParallelLayout(**(layout or {})),
        formats=Formats(dtype=dtype, weights=weights, kv=kv, excluded=excluded),
        limits=ServingLimits(**asked),
        running=RuntimeSettings(**running),
        device=device,
        draft=draft,
    )
