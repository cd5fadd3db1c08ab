"""Where a model's sizes come from: a folder, a config.json, the hub cache, a well-known name, or plain dims."""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from trtdx.errors import InputError
from trtdx.formats.documents import Document, UnreadableError, read_json
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import read_artifact
from trtdx.inspect.readers.engine.pretrained_config import put_pretrained_config
from trtdx.inspect.readers.folder import ArtifactFolder
from trtdx.inspect.readers.hf.model_config import ModelConfig, put_model_config
from trtdx.inspect.readers.hf.quantization import put_quantization_facts
from trtdx.memory.model.class_defaults import with_class_defaults
from trtdx.memory.model.dims import sizes_from_config, sizes_from_facts
from trtdx.memory.model.exclusions import LAYER_MODULES
from trtdx.memory.model.format_names import weight_format_from_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.host import Host
    from trtdx.memory.model.dims import Sizes

MODEL_KINDS = ("hf", "checkpoint", "engine")
TUNED_SUFFIX = re.compile(r"[-_](?:instruct|chat|it|hf|base|bf16|fp16)$", re.IGNORECASE)
REVISION_SUFFIX = re.compile(r"(?<=\db)-v\d+(?:\.\d+)?$", re.IGNORECASE)  # behind a size: DeepSeek-V2 is another model
MODEL_HINT = "give a model folder, its config.json, or its sizes: --dims num_layers=32,hidden_size=4096,num_heads=32,num_kv_heads=8,intermediate_size=14336,vocab_size=128256"


class ModelSource(NamedTuple):
    """A model as far as memory is concerned."""

    name: str
    artifact: Artifact  # its facts: types, quantisation, and for engines mapping and limits
    sizes: Sizes
    folder: str = ""  # where weights may lie


NO_MODEL = ModelSource("the model of --dims", Artifact("hf", "--dims"), {})


def read_model(host: Host, text: str, *, version: str = "") -> ModelSource:
    """Return the model at a path, in the hub cache, or of a well-known name."""
    if not text:
        return NO_MODEL
    kind = host.kind(text)
    if kind == "absent":
        cached = _hub_cache_folder(host, text)
        if cached:
            return _source_from_folder(host, cached, text, version)
        return _source_from_name(text)
    if kind == "file" and text.lower().endswith(".json"):
        return _source_from_json(host, text)
    return _source_from_folder(host, text, text.rstrip("/"), version)


def _source_from_folder(host: Host, path: str, name: str, version: str) -> ModelSource:
    if host.kind(path) == "directory" and not host.entries(path):
        raise InputError(f"{path} is empty, or may not be read", fix=MODEL_HINT)
    artifact = read_artifact(host, path, version=version)
    if artifact.kind not in MODEL_KINDS:
        raise InputError(f"{path} is a {artifact.title}, which has no sizes of a model", fix=MODEL_HINT)
    folder = artifact.path.rstrip("/")
    config = _read_folder_config(host, folder) if artifact.kind == "hf" else None
    artifact = _with_fp4_experts(config, artifact) if config else artifact
    sizes = _sizes_from_document(config, artifact) if config else sizes_from_facts(artifact)
    if artifact.kind != "hf":
        sizes = _trtllm_sizes(artifact, sizes)
    return ModelSource(name, artifact, sizes, folder)


def _read_folder_config(host: Host, folder: str) -> Document | None:
    path = f"{folder}/config.json"
    return read_config_file(host, path) if host.kind(path) == "file" else None


def read_config_file(host: Host, path: str) -> Document:
    """Return a JSON file, or raise with how else a model can be given."""
    try:
        return read_json(host, path)
    except UnreadableError as err:
        raise InputError(f"{path} {err}", fix=MODEL_HINT) from err


# The MLPs of TensorRT-LLM's own classes: those that are not gated.
UNGATED_CLASSES = ("GPTForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM", "FalconForCausalLM", "BloomForCausalLM",
         "OPTForCausalLM", "PhiForCausalLM", "MPTForCausalLM", "EncoderModel", "DecoderModel")  # fmt: skip
GATED_ACTIVATIONS = ("silu", "swiglu", "geglu", "gated", "fast-swiglu")


def _trtllm_sizes(artifact: Artifact, sizes: Sizes) -> Sizes:
    """Return the sizes of a checkpoint or engine, whose config names TensorRT-LLM's class."""
    architecture, activation = artifact.text("architecture"), artifact.text("hidden_act")
    where = artifact.path
    gated = any(word in activation for word in GATED_ACTIVATIONS) or architecture not in UNGATED_CLASSES
    sizes["gated"] = (gated, where)
    if architecture in UNGATED_CLASSES:
        for name in ("attention_bias", "output_bias", "mlp_bias", "norm_bias"):
            sizes.setdefault(name, (artifact.get("attention_bias", True) is not False, where))
    if architecture.startswith("QWen") and artifact.text("model_type") != "qwen3":
        sizes.setdefault("attention_bias", (True, where))
    if artifact.integer("num_experts") and "moe_intermediate_size" not in sizes and "intermediate_size" in sizes:
        sizes["moe_intermediate_size"] = sizes["intermediate_size"]
    sizes.setdefault("model_type", (MODEL_TYPES.get(architecture, architecture), where))
    return sizes


# Hugging Face's names for what TensorRT-LLM's classes are.
MODEL_TYPES = {
    "LlamaForCausalLM": "llama", "LLaMAForCausalLM": "llama", "MixtralForCausalLM": "mixtral",
    "MistralForCausalLM": "mistral", "GemmaForCausalLM": "gemma", "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3", "GPTForCausalLM": "gpt2", "GPTJForCausalLM": "gptj", "GPTNeoXForCausalLM": "gpt_neox",
    "FalconForCausalLM": "falcon", "BloomForCausalLM": "bloom", "OPTForCausalLM": "opt", "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3", "MPTForCausalLM": "mpt", "QWenForCausalLM": "qwen2", "Qwen2ForCausalLM": "qwen2",
    "DeepseekV2ForCausalLM": "deepseek_v2", "DeepseekV3ForCausalLM": "deepseek_v3", "ChatGLMForCausalLM": "chatglm",
    "BaichuanForCausalLM": "baichuan", "NemotronForCausalLM": "nemotron", "EncoderModel": "t5", "DecoderModel": "t5",
    "MambaForCausalLM": "mamba", "CohereForCausalLM": "cohere", "InternLMForCausalLM": "internlm",
}  # fmt: skip


def _source_from_json(host: Host, path: str) -> ModelSource:
    """Return the model of a config.json alone; one that lies in a model's folder speaks for the folder."""
    parent, _, name = path.rpartition("/")
    document = read_config_file(host, path)
    if name == "config.json":
        names = host.entries(parent or ".")
        if any(entry.endswith((".safetensors", ".engine", ".bin")) for entry in names):
            return _source_from_folder(host, parent or ".", path, "")
    folder = ArtifactFolder(host, parent or ".")
    if name != "config.json":  # the files beside it are another model's
        folder.names = frozenset()
    return source_from_document(document, path, folder)


def source_from_document(document: Document, name: str, folder: ArtifactFolder | None = None) -> ModelSource:
    """Return the model that a parsed config.json describes, whichever program wrote it."""
    facts = folder.facts if folder else FactCollector()
    prefix = "pretrained_config." if document.has_value("pretrained_config") else ""
    if prefix or (document.has_value("architecture") and document.has_value("dtype")):
        put_pretrained_config(facts, document, prefix)
        kind = "engine" if prefix else "checkpoint"
        artifact = Artifact(kind, document.path, facts.to_dict())
        return ModelSource(name, artifact, _trtllm_sizes(artifact, sizes_from_facts(artifact)))
    put_model_config(facts, document)
    if folder is not None:
        put_quantization_facts(folder, document)
    artifact = _with_fp4_experts(document, Artifact("hf", document.path, facts.to_dict()))
    return ModelSource(name, artifact, _sizes_from_document(document, artifact))


def _with_fp4_experts(document: Document, artifact: Artifact) -> Artifact:
    """Return the formats of DeepSeek V4's checkpoints: FP8 in blocks, but for the experts.

    TensorRT-LLM sees these in the headers of the files (_detect_deepseek_v4_routed_moe_layout,
    _torch/model_config.py@v1.3.0rc22); config.json says it by `expert_dtype` or `moe_quant_algo`.
    """
    quantization = document.value_at("quantization_config")
    if not isinstance(quantization, dict) or document.value_at("o_lora_rank") is None:
        return artifact
    four = "W4A16_MXFP4" if document.value_at("expert_dtype") == "fp4" else ""
    four = "NVFP4" if quantization.get("moe_quant_algo") == "NVFP4" else four
    if not four:
        return artifact
    layers = {f"model.layers.0.{module}": "FP8_BLOCK_SCALES" for module in LAYER_MODULES if module != "mixer"}
    layers["model.layers.0.mlp.experts"] = four
    mixed = FactCollector()
    where = document.place_of("expert_dtype" if document.has_value("expert_dtype") else "quantization_config")
    mixed.put("quant.algo", "MIXED_PRECISION", where)
    mixed.put("quant.per_layer", layers, where)
    return replace(artifact, facts=artifact.facts | mixed.to_dict())


def _sizes_from_document(document: Document, artifact: Artifact) -> Sizes:
    """Return the sizes of a config.json; what it leaves out is the default of its class."""
    completed = with_class_defaults(document)
    facts = FactCollector()
    put_model_config(facts, completed)
    full_artifact = replace(artifact, facts=facts.to_dict() | artifact.facts)
    return sizes_from_config(ModelConfig(completed), full_artifact)


def _hub_cache_folder(host: Host, text: str) -> str:
    """Return the folder of a model of the hub cache, where `owner/name` is in it."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return ""
    env = host.environment()
    home = env.get("HF_HUB_CACHE") or f"{env.get('HF_HOME') or env.get('HOME', '') + '/.cache/huggingface'}/hub"
    path = f"{home}/models--{text.replace('/', '--')}"
    return path if host.kind(path) == "directory" else ""


@cache
def known_models() -> Mapping[str, dict[str, Any]]:
    data = resources.files("trtdx").joinpath("data/known_models.toml").read_bytes()
    models: dict[str, dict[str, Any]] = msgspec.toml.decode(data)["model"]
    return models


def _known_aliases() -> Iterator[tuple[str, str]]:
    """Yield every name of a known model as it is written, and the model's own."""
    for name, config in known_models().items():
        yield from ((alias, name) for alias in (name, *config.get("also", ())))


@cache
def _known_names() -> dict[str, str]:
    """Return every name a known model goes by, in lower case; its revision may be left out, not replaced."""
    bare: dict[str, str] = {}
    exact = {}
    for alias, name in _known_aliases():
        exact[alias.lower()] = name
        bare[_bare_name(alias)] = name
        bare.setdefault(REVISION_SUFFIX.sub("", _bare_name(alias)), name)
    return bare | exact


def _bare_name(text: str) -> str:
    name = text.rpartition("/")[2]
    while TUNED_SUFFIX.search(name):
        name = TUNED_SUFFIX.sub("", name)
    return name.lower()


def _source_from_name(text: str) -> ModelSource:
    name, weights = split_format_suffix(text.rpartition("/")[2])
    known_name = _known_names().get(name.lower()) or _known_names().get(_bare_name(name))
    if known_name is None:
        raise _unknown_model_error(text)
    data = {key: value for key, value in known_models()[known_name].items() if key != "also"}
    document = Document(f"the sizes trtdx knows of {known_name}", data)
    source = source_from_document(document, text, _EmptyFolder())
    if weights:
        named = FactCollector()
        named.put("quant.algo", weights, f"the name {text}")
        facts = source.artifact.facts | named.to_dict()
        source = source._replace(artifact=replace(source.artifact, facts=facts))
    return source


class _EmptyFolder(ArtifactFolder):
    """A folder with no files, for a configuration that lies nowhere."""

    def __init__(self) -> None:
        self.path, self.names, self.unread = "", frozenset(), []
        self.facts = FactCollector()


def split_format_suffix(name: str) -> tuple[str, str]:
    """Return a name without the format at its end, and the format: "Llama-3.1-8B-Instruct-FP8"."""
    match = re.fullmatch(
        r"(.+?)[-_](fp8|nvfp4|fp4|awq|gptq(?:-int4)?|int4|int8)(?:-(?:int4|g128|dynamic|v\d))?",
        name,
        re.IGNORECASE,
    )
    if not match:
        return name, ""
    return match[1], weight_format_from_word(match[2])


class UnknownModelError(InputError):
    """A name that is no path and no model trtdx knows."""


def _unknown_model_error(text: str) -> UnknownModelError:
    bare = _bare_name(split_format_suffix(text.rpartition("/")[2])[0])
    names = {alias.lower(): alias for alias, _ in _known_aliases()}
    near = [names[alias] for alias in names if alias.startswith(f"{bare}-")][:3] or [
        names[alias] for alias in difflib.get_close_matches(bare, names, n=1, cutoff=0.7)
    ]
    also = f"did you mean {' or '.join(near)}? Else " if near else ""
    return UnknownModelError(
        f"there is nothing at {text}, and trtdx knows no sizes of a model of that name", fix=also + MODEL_HINT
    )
