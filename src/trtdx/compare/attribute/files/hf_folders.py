"""What the Hugging Face folders of both sides say: their settings, with the defaults of the model's class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.compare.attribute.twin.stand_in import find_model_spec
from trtdx.host import RealHost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtdx.compare.sides.side import Side


def read_config_json(folder: str) -> Mapping[str, Any]:
    """Return a folder's config.json as it stands; empty if it cannot be read."""
    try:
        with RealHost().open(f"{folder}/config.json") as file:
            config = msgspec.json.decode(file.read(16_000_000))
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
    return config if isinstance(config, dict) else {}


def model_settings(side: Side | None, like: Any) -> Mapping[str, Any]:
    """Return all settings of a side's model; those that its file leaves out are the defaults of the class of `like`."""
    spec = find_model_spec(side) if side is not None else None
    if spec is None or spec.kind != "hf":
        return {}
    raw = read_config_json(spec.path)
    same = like is not None and raw.get("model_type") == getattr(like, "model_type", None)
    if not same or not hasattr(type(like), "from_dict"):
        return raw
    try:
        settings: Mapping[str, Any] = type(like).from_dict(dict(raw)).to_dict()
    except (TypeError, ValueError, KeyError, AttributeError):  # settings that the class does not take
        return raw
    return settings
