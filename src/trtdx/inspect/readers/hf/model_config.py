"""config.json of a Hugging Face model as facts: every family's own key names become the shared ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.inspect.facts.config_keys import CONFIG_KEYS
from trtdx.inspect.readers.hf.rope import put_rope_facts

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import FactCollector

# Where a multimodal model keeps the configuration of its language model.
TEXT_SECTIONS = (
    "text_config", "llm_config", "language_config", "thinker_config.text_config", "language_model",
)  # fmt: skip
MULTIMODAL_KEYS = (
    "vision_config", "audio_config", "visual", "vision_tower_config", "thinker_config", "video_config",
    "image_token_id", "image_token_index",
)  # fmt: skip

HF_CONFIG_KEYS = CONFIG_KEYS.hf_config
SWITCH_KEYS = CONFIG_KEYS.hf_switches
DECODER_KEYS = CONFIG_KEYS.hf_decoder
ACTIVATION_KEYS = (
    "hidden_activation",
    "hidden_act",
    "activation_function",
    "dense_act_fn",
    "feed_forward_proj",
)
EXPERT_COUNT_KEYS = (
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "ffn_config.moe_num_experts",
)  # fmt: skip
# What a missing key means is the model class's own affair; only those that are certain are listed.
KV_HEADS_AS_HEADS = {"llama", "gpt2", "gpt_neox", "gptj", "opt", "bloom", "phi", "codegen", "t5", "whisper"}
ONE_KV_HEAD = {"falcon", "gpt_bigcode", "RefinedWebModel"}
INNER_IS_FOUR_TIMES = {"gpt2", "gptj", "gpt_bigcode", "codegen", "falcon", "bloom", "gpt_neo"}
OWN_HEAD_SIZE = ("gemma", "qwen3", "gpt_oss", "glm4", "deepseek", "kimi", "longcat", "minimax", "t5", "mt5")
TIED_BY_DEFAULT = {"gpt2", "gemma", "gemma2", "gemma3", "gemma3_text", "opt", "bloom", "cohere", "cohere2"}
UNTIED_BY_DEFAULT = {
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "deepseek_v2",
    "deepseek_v3", "gpt_neox", "gpt_oss", "nemotron", "gptj", "phi",
}  # fmt: skip
QK_NORMED = {"qwen3", "qwen3_moe", "gemma3", "gemma3_text"}
WINDOW_BY_SWITCH = ("qwen",)  # these state a window and switch it on by use_sliding_window

DTYPES = {"half": "float16", "float": "float32"}  # torch's other names


class StatedValue(NamedTuple):
    """A value and where it stands."""

    value: Any
    where: str


class ModelConfig:
    """config.json seen from the language model: its own section first, then the top level."""

    def __init__(self, document: Document) -> None:
        self.document = document
        sections = [section for section in TEXT_SECTIONS if isinstance(document.value_at(section), dict)]
        self.section = sections[0] if sections else ""

    def find(self, *keys: str) -> StatedValue | None:
        """Return the first key that is stated, in the language model's section or else at the top."""
        prefixes = (f"{self.section}.", "") if self.section else ("",)
        for prefix in prefixes:
            for key in keys:
                value = self.document.value_at(prefix + key)
                if value is not None:
                    return StatedValue(value, self.document.place_of(prefix + key))
        return None

    def get(self, *keys: str) -> Any:
        stated = self.find(*keys)
        return stated.value if stated else None

    @property
    def model_type(self) -> str:
        value = self.get("model_type")
        return value if isinstance(value, str) else ""


def put_model_config(facts: FactCollector, document: Document) -> None:
    """Put what config.json says of the model; keys that are absent stay absent unless their default is certain."""
    config = ModelConfig(document)
    _put_model_identity(facts, config)
    _put_model_dtype(facts, document, config)
    for name, keys in HF_CONFIG_KEYS.items():
        if name not in _misleading_facts(config):
            _put_number(facts, name, config.find(*keys))
    if facts.get("encoder_decoder"):
        for name, keys in DECODER_KEYS.items():
            _put_number(facts, name, config.find(*keys))
    _put_switches(facts, config)
    _put_expert_count(facts, config)
    _put_head_counts(facts, config)
    _put_intermediate_size(facts, config)
    _put_sliding_window(facts, config)
    _put_tied_embeddings(facts, config)
    _put_activation(facts, config)
    put_rope_facts(facts, config)


def _put_number(facts: FactCollector, name: str, stated: StatedValue | None) -> None:
    """Put a number; a list has one for each layer (Gemma 3n, Step 3), and no one number says that."""
    if stated is None or isinstance(stated.value, list):
        return
    if name in POSITIVE_FACTS and isinstance(stated.value, int) and stated.value < 0:
        facts.put_malformed(stated.value, stated.where, "expected a number above 0")
    else:
        facts.put(name, stated.value, stated.where)


POSITIVE_FACTS = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "vocab_size")


def _misleading_facts(config: ModelConfig) -> set[str]:
    """Return what a family states and means otherwise.

    With MLA `head_dim` is only the rotated part of a head; T5 has relative positions and no longest one.
    """
    names = {"head_size"} if config.get("kv_lora_rank") is not None else set()
    return names | ({"max_positions"} if config.model_type in ("t5", "mt5", "umt5") else set())


def _put_model_identity(facts: FactCollector, config: ModelConfig) -> None:
    document = config.document
    architectures = document.value_at("architectures")
    if isinstance(architectures, list) and architectures:
        facts.put("architecture", architectures[0], document.place_of("architectures"))
    facts.put("model_type", document.value_at("model_type"), document.place_of("model_type"))
    name = document.value_at("_name_or_path")
    facts.put("saved_as", name if isinstance(name, str) and name else None, document.place_of("_name_or_path"))
    if document.value_at("is_encoder_decoder") is True:
        facts.put("encoder_decoder", True, document.place_of("is_encoder_decoder"))
    senses = [key for key in MULTIMODAL_KEYS if document.has_value(key)]
    if senses:
        facts.put("multimodal", True, document.place_of(senses[0]))


def _put_model_dtype(facts: FactCollector, document: Document, config: ModelConfig) -> None:
    """Put the model's type; transformers 5 writes `dtype`, older ones `torch_dtype`, and the top level rules."""
    for key in ("dtype", "torch_dtype"):
        for stated in (StatedValue(document.value_at(key), document.place_of(key)), config.find(key)):
            value = stated.value if stated else None
            if value is None or value == "auto" or stated is None:
                continue
            word = value.removeprefix("torch.") if isinstance(value, str) else value
            facts.put("dtype", DTYPES.get(word, word) if isinstance(word, str) else word, stated.where)
            return


def _put_switches(facts: FactCollector, config: ModelConfig) -> None:
    if config.model_type in QK_NORMED:
        facts.put("qk_norm", True, config.document.place_of("model_type"))
    for name, keys in SWITCH_KEYS.items():
        stated = config.find(*keys)
        if stated is not None and isinstance(stated.value, bool):
            facts.put(name, stated.value, stated.where)


def _put_expert_count(facts: FactCollector, config: ModelConfig) -> None:
    stated = config.find(*EXPERT_COUNT_KEYS)
    if stated is not None and stated.value != 0:  # dense models of a family with experts state none
        _put_number(facts, "num_experts", stated)


def _put_head_counts(facts: FactCollector, config: ModelConfig) -> None:
    heads = facts.get("num_heads")
    if heads is None or heads < 1:
        return
    stated = config.find(*HF_CONFIG_KEYS["num_heads"], *DECODER_KEYS["num_heads"])
    where = stated.where if stated else config.document.path
    model_type = config.model_type
    grouped = config.get("new_decoder_architecture") is True
    if model_type in ONE_KV_HEAD and config.get("multi_query") is True and not grouped:
        facts.put("num_kv_heads", 1, config.document.place_of("multi_query"))
    elif not facts.has("num_kv_heads") and model_type in KV_HEADS_AS_HEADS:
        facts.put("num_kv_heads", heads, where)
    _put_head_size(facts, config, heads, where)


def _put_head_size(facts: FactCollector, config: ModelConfig, heads: int, where: str) -> None:
    """Put hidden size / heads where no size is stated; with MLA one number does not say it."""
    hidden = facts.get("hidden_size")
    if facts.has("head_size") or facts.has("kv_lora_rank") or hidden is None or hidden % heads:
        return
    if not config.model_type.startswith(OWN_HEAD_SIZE):
        facts.put("head_size", hidden // heads, where)


def _put_intermediate_size(facts: FactCollector, config: ModelConfig) -> None:
    hidden = facts.get("hidden_size")
    if hidden is not None and not facts.has("intermediate_size") and config.model_type in INNER_IS_FOUR_TIMES:
        stated = config.find(*HF_CONFIG_KEYS["hidden_size"])
        facts.put("intermediate_size", 4 * hidden, stated.where if stated else config.document.path)


def _put_sliding_window(facts: FactCollector, config: ModelConfig) -> None:
    switch = config.get("use_sliding_window")
    by_switch = config.model_type.startswith(WINDOW_BY_SWITCH)
    if switch is False or (switch is None and by_switch):
        return
    stated = config.find("sliding_window")
    if stated is not None and stated.value is not False:
        _put_number(facts, "sliding_window", stated)


def _put_tied_embeddings(facts: FactCollector, config: ModelConfig) -> None:
    """Put whether embeddings are tied; two levels that contradict each other leave it open."""
    document = config.document
    keys = ["tie_word_embeddings", *([f"{config.section}.tie_word_embeddings"] if config.section else [])]
    stated = {document.value_at(key): key for key in keys if isinstance(document.value_at(key), bool)}
    if len(stated) == 1:
        value, key = stated.popitem()
        facts.put("tie_embeddings", value, document.place_of(key))
    elif not stated and config.model_type in TIED_BY_DEFAULT | UNTIED_BY_DEFAULT:
        facts.put("tie_embeddings", config.model_type in TIED_BY_DEFAULT, document.place_of("model_type"))


def _put_activation(facts: FactCollector, config: ModelConfig) -> None:
    stated = config.find(*ACTIVATION_KEYS)
    if stated is None or not isinstance(stated.value, str):
        return
    # The first Gemma stated "gelu" and computed its tanh approximation; transformers knows and warns.
    if config.model_type == "gemma" and stated.value == "gelu":
        return
    facts.put("hidden_act", stated.value, stated.where)
