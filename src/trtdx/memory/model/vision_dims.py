"""How many parameters the encoders of a multimodal model have, from their sections of config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtdx.formats.documents import Document

ENCODER_SECTIONS = (
    "vision_config", "visual", "vision_tower_config", "audio_config", "thinker_config.vision_config",
    "thinker_config.audio_config",
)  # fmt: skip
WIDTH_KEYS = ("embed_dim", "hidden_size", "d_model", "width", "image_embedding_size", "vt_hidden_size")
DEPTH_KEYS = ("num_hidden_layers", "depth", "layers", "encoder_layers", "vt_num_hidden_layers")
INNER_SIZE_KEYS = ("intermediate_size", "encoder_ffn_dim", "mlp_dim", "vt_intermediate_size")
OUTPUT_SIZE_KEYS = ("out_hidden_size", "projection_dim", "output_dim", "text_hidden_size", "hidden_size")
GATED_ENCODERS = ("qwen2_5_vl", "pixtral")


def multimodal_encoder_params(document: Document) -> int:
    """Return the parameters of all encoders together, with the projection into the language model; 0: none."""
    return sum(
        _encoder_section_params(document.value_at(section))
        for section in ENCODER_SECTIONS
        if isinstance(document.value_at(section), dict)
    )


def _encoder_section_params(config: dict[str, Any]) -> int:
    """Return attention, MLP and projection of one encoder; what it does not state is as usual."""
    depth, width = _first_size(config, DEPTH_KEYS), _first_size(config, WIDTH_KEYS)
    if not depth or not width:
        return 0
    inner = _first_size(config, INNER_SIZE_KEYS) or int(width * float(config.get("mlp_ratio") or 4))
    matrices = 3 if any(str(config.get("model_type", "")).startswith(name) for name in GATED_ENCODERS) else 2
    out = _first_size(config, OUTPUT_SIZE_KEYS) or width
    merged = width * (_first_size(config, ("spatial_merge_size",)) or _merge_kernel_side(config)) ** 2
    projection = merged * merged + merged * out
    patch = _first_size(config, ("patch_size",)) or 14
    places = _first_size(config, ("num_position_embeddings",)) or (_first_size(config, ("image_size",)) // patch) ** 2
    deeper = config.get("deepstack_visual_indexes")  # Qwen3-VL projects the outputs of these layers too
    projection *= 1 + (len(deeper) if isinstance(deeper, list) else 0)
    depth += _first_size(config, ("num_global_layers",))  # Llama 3.2
    adapter = _first_size(config, ("projector_input_dim",))  # Llama 4
    projection += adapter * (inner + 2 * (_first_size(config, ("projector_output_dim",)) or adapter))
    layer = 4 * width * width + matrices * width * inner + 9 * width + inner
    return depth * layer + projection + (3 * patch**2 + places) * width


def _merge_kernel_side(config: dict[str, Any]) -> int:
    """Return how many patches are merged on a side (Kimi: [2, 2])."""
    sides = config.get("merge_kernel_size")
    return sides[0] if isinstance(sides, list) and sides and sides[0] in range(1, 17) else 1


def _first_size(config: dict[str, Any], names: tuple[str, ...]) -> int:
    values = (config.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 < v < 1e7), 0)
