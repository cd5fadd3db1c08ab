"""The build settings of an engine that decide which inputs it has and how large they may be.

Learnt from `prepare_inputs`, `prepare_basic_inputs` and `build` of TensorRT-LLM, read at every stable tag
from v0.9.0 to v1.2.1 (and v1.3.0rc13, which has the same rules).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.knowledge import versions

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact

FIRST_READ, LAST_READ = (0, 9), (1, 3)
LAST_LEGACY_RELEASE = (0, 7, 1)  # the limits are the same from 0.5 on
# Each of these adds inputs of its own to the ordinary ones; those are not derived.
ADDS_INPUTS = {"EagleForCausalLM": "Eagle", "ReDrafterForCausalLM": "ReDrafter"}
OWN_INPUT_ARCHITECTURES = (
    "Mamba", "RecurrentGemma", "Mllama", "Bert", "Roberta", "WhisperEncoder", "DiT", "STDiT", "SD3", "CLIP",
    "LlavaNextVision", "DeciLM", "NemotronNas",
)  # fmt: skip


class NotDerivableError(Exception):
    """Why the inputs of an engine cannot be told from its settings, in words."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides an engine's inputs. A size the engine does not state is 0, and its tensors are left out."""

    version: str
    release: tuple[int, ...]
    is_verified: bool
    architecture: str
    max_batch_size: int
    max_beam_width: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    opt_num_tokens: int
    max_draft_len: int
    prompt_table: int
    encoder_len: int
    is_packed: bool
    attention_plugin: bool
    gemm_plugin: bool
    cache: str  # paged, continuous, disabled
    tokens_per_block: int
    multiple_profiles: bool
    streaming: bool
    reduce_scatter: bool
    max_profiles: int  # 0: as many as the model prepares
    gathers_context_logits: bool
    lora_modules: tuple[str, ...]
    speculative: bool
    drafts_from_outside: bool
    tp_size: int
    pp_size: int
    dtype: str
    kv_dtype: str
    logits_dtype: str
    num_layers: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    vocab_size: int
    rotary_table: int  # columns of the multimodal rotary table, 0 for a model without one
    two_positions: bool  # GLM and ChatGLM 1 give each token two positions

    def since(self, *release: int) -> bool:
        return self.release >= release

    @property
    def supports_inflight(self) -> bool:
        """Whether context and generation requests can share a step (ModelConfig.supportsInflightBatching)."""
        kinds = ("paged", "disabled") if self.since(0, 13) else ("paged",)
        return self.is_packed and self.attention_plugin and self.cache in kinds

    @property
    def splits_phases(self) -> bool:
        """Whether one profile serves prompts and another one the tokens after them."""
        return not (self.attention_plugin and self.gemm_plugin) and not self.supports_inflight

    @property
    def is_cross_decoder(self) -> bool:
        return self.architecture == "DecoderModel"

    @property
    def is_encoder(self) -> bool:
        return self.architecture == "EncoderModel"


def derivable_settings(engine: Artifact) -> EngineSettings | None:
    """Return an engine's settings, or None where they do not tell its inputs."""
    try:
        return settings_from_engine(engine)
    except NotDerivableError:
        return None


def settings_from_engine(engine: Artifact) -> EngineSettings:
    """Return an engine's settings, or raise NotDerivableError with what is missing."""
    _refuse_underivable(engine)
    release, verified = _engine_release(engine)
    packed = _is_plugin_on(engine, "plugin.remove_input_padding", default=True)
    limits = _engine_limits(engine, packed)
    architecture = engine.text("architecture")
    mode = engine.text("speculative_mode").rpartition(".")[2].upper()
    draft = engine.integer("max_draft_len") or 0
    external = "EXTERNAL" in mode or mode == "2"
    return EngineSettings(
        version=engine.text("version"),
        release=release,
        is_verified=verified,
        architecture=architecture,
        **limits,
        opt_num_tokens=engine.integer("opt_num_tokens") or 0,
        max_draft_len=draft,
        prompt_table=engine.integer("max_prompt_table") or 0,
        encoder_len=engine.integer("max_encoder_input_len") or 0,
        is_packed=packed,
        # null in the file, which is the same as absent here, means that the plugin is off
        attention_plugin=_is_plugin_on(engine, "plugin.gpt_attention_plugin", default=packed),
        gemm_plugin=_is_plugin_on(engine, "plugin.gemm_plugin", default=False),
        cache=_cache_kind(engine),
        tokens_per_block=_tokens_per_block(engine, release),
        multiple_profiles=bool(engine.get("multiple_profiles", engine.get("plugin.multiple_profiles"))),
        streaming=_is_plugin_on(engine, "plugin.streamingllm", default=False),
        reduce_scatter=_is_plugin_on(engine, "plugin.pp_reduce_scatter", default=False),
        max_profiles=_forced_profiles(engine),
        gathers_context_logits=bool(engine.get("gather_context_logits")),
        lora_modules=_lora_modules(engine),
        speculative=(bool(draft) and mode not in ("", "NONE", "1")) or architecture.startswith("Medusa"),
        drafts_from_outside=external,
        tp_size=engine.integer("tp_size") or 1,
        pp_size=engine.integer("pp_size") or 1,
        dtype=engine.text("dtype") or "float16",
        kv_dtype=_kv_dtype(engine),
        logits_dtype=engine.text("logits_dtype") or "float32",
        **_model_sizes(engine),
    )


def _refuse_underivable(engine: Artifact) -> None:
    architecture = engine.text("architecture")
    if architecture.startswith(OWN_INPUT_ARCHITECTURES):
        raise NotDerivableError(f"{architecture} prepares inputs of its own, which are not derived")
    if engine.integer("max_batch_size") is None:
        raise NotDerivableError("the engine does not state max_batch_size")
    if engine.integer("max_seq_len") is None and engine.integer("max_input_len") is None:
        raise NotDerivableError("the engine states neither max_seq_len nor max_input_len")
    if architecture == "DecoderModel" and _engine_release(engine)[0] < (0, 12):
        raise NotDerivableError("the inputs of encoder-decoder models are known from release 0.12 on")
    for name, most in MAX_SIZES.items():
        size = engine.integer(name)
        if size is not None and not 0 <= size <= most:
            raise NotDerivableError(f"the engine states {name} {size}, which no engine has")


# Sizes beyond these are no engine's, and would make as many inputs.
MAX_SIZES = {
    **dict.fromkeys(("max_batch_size", "max_beam_width", "max_input_len", "max_seq_len"), 2**31),
    **dict.fromkeys(("max_num_tokens", "opt_num_tokens", "max_output_len", "max_draft_len"), 2**31),
    **dict.fromkeys(("max_prompt_table", "max_encoder_input_len", "tokens_per_block"), 2**31),
    **dict.fromkeys(("num_heads", "num_kv_heads", "head_size", "hidden_size", "vocab_size"), 2**31),
    **dict.fromkeys(("num_layers", "tp_size", "pp_size"), 4096),
}
MAX_LORA_MODULES = 64


def _engine_release(engine: Artifact) -> tuple[tuple[int, ...], bool]:
    """Return an engine's release and whether its rules were read; an unknown one is taken as the last.

    config.json before 0.8 states none, but is laid out otherwise.
    """
    if engine.text("era") == "before 0.8" and not engine.has("version"):
        return LAST_LEGACY_RELEASE, False
    parsed = versions.parse_release(engine.text("version"))
    if parsed is None:
        return LAST_READ, False
    release = parsed.release
    return release, FIRST_READ <= release[:2] <= LAST_READ and not parsed.is_devrelease


def _engine_limits(engine: Artifact, packed: bool) -> dict[str, Any]:
    batch = engine.integer("max_batch_size") or 1
    beam = engine.integer("max_beam_width") or 1
    prompt = engine.integer("max_input_len")
    total = engine.integer("max_seq_len")
    if total is None:  # before 0.11 prompt and answer had a limit each
        total = (prompt or 0) + (engine.integer("max_output_len") or 0)
    prompt = total if prompt is None else prompt
    tokens = engine.integer("max_num_tokens") or (total if packed else prompt) * batch
    return {
        "max_batch_size": batch,
        "max_beam_width": beam,
        "max_input_len": prompt,
        "max_seq_len": total,
        "max_num_tokens": tokens,
    }


def _model_sizes(engine: Artifact) -> dict[str, Any]:
    heads, hidden = engine.integer("num_heads") or 0, engine.integer("hidden_size") or 0
    layers = engine.integer("num_layers") or 0
    arch = engine.text("architecture")
    rotary = (engine.integer("max_positions") or 0) * (engine.integer("rotary_dim") or 0)
    return {
        "num_layers": 0 if arch in ADDS_INPUTS else layers,  # Eagle counts its own layers too
        "num_kv_heads": engine.integer("num_kv_heads") or heads,
        "head_size": engine.integer("head_size") or (hidden // heads if heads else 0),
        "hidden_size": hidden,
        "vocab_size": engine.integer("vocab_size") or 0,
        "rotary_table": rotary if arch.startswith("Qwen2VL") else 0,
        "two_positions": engine.get("build.chatglm_version") in ("glm", "chatglm"),
    }


def _is_plugin_on(engine: Artifact, name: str, *, default: bool) -> bool:
    """Return whether a plugin is used; its value is a data type, "auto", true or false."""
    value = engine.get(name)
    if value is None:
        return default
    return value not in (False, 0, "", "disable", "disabled", "none", "None")


def _cache_kind(engine: Artifact) -> str:
    kind = engine.text("kv_cache_type").rpartition(".")[2].lower()
    if kind in ("paged", "continuous", "disabled"):
        return kind
    return "paged" if _is_plugin_on(engine, "plugin.paged_kv_cache", default=True) else "continuous"


def _tokens_per_block(engine: Artifact, release: tuple[int, ...]) -> int:
    stated = engine.integer("tokens_per_block") or engine.get("plugin.tokens_per_block")
    if isinstance(stated, int) and stated > 0:
        return stated
    return 128 if release < (0, 10) else 64 if release < (0, 19) else 32


def _forced_profiles(engine: Artifact) -> int:
    # trtllm-build passes BUILDER_FORCE_NUM_PROFILES on as text before 1.2, where it then has no effect
    stated = engine.get("build.force_num_profiles")
    return stated if isinstance(stated, int) and stated > 0 else 0


def _lora_modules(engine: Artifact) -> tuple[str, ...]:
    if not _is_plugin_on(engine, "plugin.lora_plugin", default=False):
        return ()
    return tuple(map(str, engine.items("lora.target_modules")[:MAX_LORA_MODULES]))


def _kv_dtype(engine: Artifact) -> str:
    dtype_by_algo = {"FP8": "fp8", "INT8": "int8", "NVFP4": "fp4"}
    return dtype_by_algo.get(engine.text("quant.kv_algo"), engine.text("dtype") or "float16")
