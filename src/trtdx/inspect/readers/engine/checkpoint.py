"""TensorRT-LLM checkpoints since 0.8: config.json, one file of weights for each rank, and quant_cfg.json."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING

from trtdx.formats.documents import UnreadableError, read_json
from trtdx.formats.safetensors import read_safetensors_header
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import ArtifactReader, PathProbe
from trtdx.inspect.readers.engine.pretrained_config import put_pretrained_config, put_quant_cfg
from trtdx.inspect.readers.folder import ArtifactFolder
from trtdx.inspect.readers.hf.weights import WeightSurvey, put_survey_facts

if TYPE_CHECKING:
    from typing import Any

    from trtdx.host import Host

RANK_FILE = re.compile(r"rank(\d{1,6})\.safetensors")
MAX_CONFIG_BYTES = 16 << 20
MAX_HEADERS_READ = 2000  # headers; the largest checkpoints have a few dozen ranks
MAX_RANKS = 4096  # a world size beyond this is a mistake, not a list of files to look for


def read_config_data(host: Host, probe: PathProbe) -> dict[str, Any]:
    """Return a directory's config.json for telling kinds apart; empty where it cannot be used."""
    path = f"{probe.path.rstrip('/')}/config.json"
    if not probe.is_directory or "config.json" not in probe.names or host.kind(path) != "file":
        return {}
    try:
        return read_json(host, path, MAX_CONFIG_BYTES).data
    except UnreadableError:
        return {}


def _is_checkpoint(host: Host, probe: PathProbe) -> bool:
    if not probe.is_directory:
        return False
    config = read_config_data(host, probe)
    if not config:
        return any(map(RANK_FILE.fullmatch, probe.names)) and "config.json" in probe.names
    # Hugging Face says `architectures`; `dtype` and the layers keep other formats' `architecture` out.
    stated = isinstance(config.get("architecture"), str) and "dtype" in config
    return stated and "num_hidden_layers" in config and "pretrained_config" not in config


def _read_checkpoint(host: Host, path: str) -> Artifact:
    """Return the checkpoint in a directory."""
    folder = ArtifactFolder(host, path)
    config = folder.read_json_object("config.json")
    if config is not None:
        put_pretrained_config(folder.facts, config)
        folder.facts.put("version", config.value_at("version"), config.place_of("version"))
    layers = folder.read_json_object("quant_cfg.json")
    if layers is not None:
        put_quant_cfg(folder.facts, layers)
    _put_weights(folder)
    return Artifact("checkpoint", path, folder.facts.to_dict(), unread=tuple(folder.unread))


def _put_weights(folder: ArtifactFolder) -> None:
    """Put every weights.* fact."""
    rank_files = (RANK_FILE.fullmatch(name) for name in folder.names)
    ranks = sorted(int(rank_file[1]) for rank_file in rank_files if rank_file)
    if ranks:
        where = folder.path_of(f"rank{ranks[0]}.safetensors")
        folder.facts.put("weights.format", "safetensors", where)
        folder.facts.put("weights.ranks", ranks, where)
        _put_header_survey(folder, ranks, where)
    _put_missing_ranks(folder, ranks)


def _put_header_survey(folder: ArtifactFolder, ranks: list[int], where: str) -> None:
    """Put what the headers say; the files' shapes are those of one rank, the facts' those of the model."""
    survey, layers = WeightSurvey(), {}
    for rank in ranks[:MAX_HEADERS_READ]:
        name = f"rank{rank}.safetensors"
        header = read_safetensors_header(folder.host, folder.path_of(name))
        rank_survey = WeightSurvey()
        for target in (survey, rank_survey):
            target.add_file(name, header)
        layers[rank] = rank_survey.layer_count()
    rank_folder = copy.copy(folder)
    rank_folder.facts = FactCollector()
    put_survey_facts(rank_folder, survey, where)
    for name, fact in rank_folder.facts.to_dict().items():
        folder.facts.put(name, _model_wide_value(folder, name, fact.value, layers), fact.where)


def _model_wide_value(folder: ArtifactFolder, name: str, value: Any, layers: dict[int, int]) -> Any:
    """Return a rank's fact as one of the whole model."""
    tp_size = _positive_size(folder, "tp_size")
    if name == "weights.embedding_shape" and folder.facts.get("use_parallel_embedding") is True:
        axis = folder.facts.get("embedding_sharding_dim") or 0
        return [size * tp_size if dim == axis else size for dim, size in enumerate(value)]
    if name == "weights.lm_head_shape":  # always cut by rows
        return [value[0] * tp_size, *value[1:]] if value else value
    if name == "weights.experts":
        return value * _positive_size(folder, "moe_ep_size")
    if name == "weights.layers":  # each pipeline stage counts its own from 0; one that is not there hides the sum
        stages = [layers.get(stage * tp_size) for stage in range(min(_positive_size(folder, "pp_size"), MAX_RANKS))]
        return sum(stage_layers or 0 for stage_layers in stages) if all(stages) else None
    return value


def _positive_size(folder: ArtifactFolder, name: str) -> int:
    value = folder.facts.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def _put_missing_ranks(folder: ArtifactFolder, ranks: list[int]) -> None:
    """Put the files that the mapping promises; ranks of context parallelism share one."""
    world_size = folder.facts.get("world_size")
    if not isinstance(world_size, int) or not 0 < world_size <= MAX_RANKS:
        return
    expected_files = max(world_size // _positive_size(folder, "cp_size"), 1)
    where = folder.path_of("config.json")
    missing = sorted(set(range(expected_files)) - set(ranks))
    folder.put_list_fact("weights.missing", (f"rank{rank}.safetensors" for rank in missing), where)
    beyond = [rank for rank in ranks if rank >= expected_files]
    folder.put_list_fact("weights.unindexed", (f"rank{rank}.safetensors" for rank in beyond), where)


READER = ArtifactReader(
    "checkpoint",
    "a TensorRT-LLM checkpoint (config.json with `architecture` and `dtype`, and rank*.safetensors)",
    _is_checkpoint,
    _read_checkpoint,
)
