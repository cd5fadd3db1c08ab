"""How many parameters the encoders of a multimodal model have, from their sections of config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtdx.formats.documents import Document

SECTIONS = (
    "vision_config", "visual", "vision_tower_config", "audio_config", "thinker_config.vision_config",
    "thinker_config.audio_config",
)  # fmt: skip
WIDTHS = ("embed_dim", "hidden_size", "d_model", "width", "image_embedding_size", "vt_hidden_size")
DEPTHS = ("num_hidden_layers", "depth", "layers", "encoder_layers", "vt_num_hidden_layers")
INNERS = ("intermediate_size", "encoder_ffn_dim", "mlp_dim", "vt_intermediate_size")
OUTPUTS = ("out_hidden_size", "projection_dim", "output_dim", "text_hidden_size", "hidden_size")
GATED = ("qwen2_5_vl", "pixtral")


def encoder_params(document: Document) -> int:
    """Return the parameters of all encoders together, with the projection into the language model; 0: none."""
    return sum(_of(document.at(section)) for section in SECTIONS if isinstance(document.at(section), dict))


def _of(config: dict[str, Any]) -> int:
    """Return attention, MLP and projection of one encoder; what it does not state is as usual."""
    depth, width = _first(config, DEPTHS), _first(config, WIDTHS)
    if not depth or not width:
        return 0
    inner = _first(config, INNERS) or int(width * float(config.get("mlp_ratio") or 4))
    matrices = 3 if any(str(config.get("model_type", "")).startswith(name) for name in GATED) else 2
    out = _first(config, OUTPUTS) or width
    merged = width * (_first(config, ("spatial_merge_size",)) or _kernel(config)) ** 2
    projection = merged * merged + merged * out
    patch = _first(config, ("patch_size",)) or 14
    places = _first(config, ("num_position_embeddings",)) or (_first(config, ("image_size",)) // patch) ** 2
    deeper = config.get("deepstack_visual_indexes")  # Qwen3-VL projects the outputs of these layers too
    projection *= 1 + (len(deeper) if isinstance(deeper, list) else 0)
    depth += _first(config, ("num_global_layers",))  # Llama 3.2
    adapter = _first(config, ("projector_input_dim",))  # Llama 4
    projection += adapter * (inner + 2 * (_first(config, ("projector_output_dim",)) or adapter))
    layer = 4 * width * width + matrices * width * inner + 9 * width + inner
    return depth * layer + projection + (3 * patch**2 + places) * width


def _kernel(config: dict[str, Any]) -> int:
    """Return how many patches are merged on a side (Kimi: [2, 2])."""
    sides = config.get("merge_kernel_size")
    return sides[0] if isinstance(sides, list) and sides and sides[0] in range(1, 17) else 1


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int:
    values = (config.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 < v < 1e7), 0)
