"""Causes that the two configs state outright. Each is tried by building the reference's module with one of the candidate's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.files.hf_folders import model_settings
from trtdx.compare.attribute.module_bench import Mistake
from trtdx.compare.attribute.module_copies import copy_in_dtype
from trtdx.engines.torch.lazy_import import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.compare.attribute.module_bench import ModuleBench
    from trtdx.compare.attribute.suspect import Suspect

OTHER_SETTING = "DX928"
MOST_SETTINGS = 24
# What a config says about where it came from, how it is stored or how text is made: none of it changes what is computed.
SILENT_SETTINGS = {
    "_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache", "bos_token_id",
    "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef", "pretraining_tp",
    "quantization_config", "torchscript", "return_dict", "is_encoder_decoder", "attn_implementation", "chunk_size_feed_forward",
    "id2label", "label2id", "problem_type", "auto_map", "use_bfloat16", "vocab_size",
}  # fmt: skip
SETTING_CODES = {
    "embedding_multiplier": "DX991", "scale_emb": "DX991", "attention_multiplier": "DX967", "query_pre_attn_scalar": "DX967",
    "scale_attn_weights": "DX967", "attn_logit_softcapping": "DX968", "final_logit_softcapping": "DX968",
    "sliding_window": "DX971", "use_sliding_window": "DX971", "max_window_layers": "DX971", "layer_types": "DX971",
    "rope_theta": "DX962", "rope_scaling": "DX963", "partial_rotary_factor": "DX964", "rotary_pct": "DX964", "rotary_dim": "DX964",
    "no_rope_layers": "DX964", "rms_norm_eps": "DX975", "layer_norm_eps": "DX975", "layer_norm_epsilon": "DX975", "norm_eps": "DX975",
    "norm_epsilon": "DX975", "hidden_act": "DX980", "hidden_activation": "DX980", "activation_function": "DX980",
    "norm_topk_prob": "DX955", "num_experts_per_tok": "DX955", "routed_scaling_factor": "DX955", "scoring_func": "DX955",
    "topk_group": "DX955", "n_group": "DX955", "moe_router_activation_func": "DX955", "attention_bias": "DX987",
    "use_qkv_bias": "DX987", "use_bias": "DX987", "mlp_bias": "DX987", "qkv_bias": "DX987", "bias": "DX987",
    "tie_word_embeddings": "DX992", "num_key_value_heads": "DX972", "use_parallel_residual": "DX927", "parallel_attn": "DX927",
    "rope_interleave": "DX961", "rotary_embedding_base": "DX962", "sliding_window_pattern": "DX971",
}  # fmt: skip


class SettingDifference(NamedTuple):
    """One setting that both configs state, and differently."""

    name: str
    expected: Any
    actual: Any

    @property
    def code(self) -> str:
        if self.name == "rope_parameters":
            return _rope_setting_code(self.expected, self.actual)
        return SETTING_CODES.get(self.name, OTHER_SETTING)

    @property
    def description(self) -> str:
        expected, actual = self._differing_parts()
        return f"config.json states {self.name} {_render_value(actual)}, the reference's {_render_value(expected)}"

    @property
    def values(self) -> dict[str, str]:
        expected, actual = self._differing_parts()
        values = {
            "expected": _render_value(expected),
            "found": _render_value(actual),
            "setting": self.name,
            "inner": self.name,
        }
        if _is_number(expected) and _is_number(actual) and expected:
            values["factor"] = f"{actual / expected:.4g}"
        if self.name == "rope_interleave":
            pairs = {True: "interleaved", False: "in halves"}
            values |= {"expected": pairs[bool(expected)], "found": pairs[bool(actual)]}
        values["what"] = f"{self.name} is {_render_value(actual)} instead of {_render_value(expected)}"
        return values

    def _differing_parts(self) -> tuple[Any, Any]:
        """Return what differs in two values that hold several."""
        if not (isinstance(self.expected, dict) and isinstance(self.actual, dict)):
            return self.expected, self.actual
        names = [name for name in self.expected | self.actual if self.expected.get(name) != self.actual.get(name)]
        if len(names) == 1:
            return self.expected.get(names[0]), self.actual.get(names[0])
        return tuple({name: config.get(name) for name in names} for config in (self.expected, self.actual))  # type: ignore[return-value]


def _rope_setting_code(expected: Any, actual: Any) -> str:
    one, other = (config if isinstance(config, dict) else {} for config in (expected, actual))
    names = {name for name in one | other if one.get(name) != other.get(name)}
    if names == {"rope_theta"}:
        return "DX962"
    return "DX964" if names == {"partial_rotary_factor"} else "DX963"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _render_value(value: Any) -> str:
    if _is_number(value):
        return f"{value:.6g}"
    text = (
        {True: "true", False: "false", None: "none"}.get(value) if isinstance(value, (bool, type(None))) else str(value)
    )
    return text if text is not None and len(text) <= 80 else f"{str(value)[:77]}..."


def differing_settings(suspect: Suspect, config: Any) -> list[SettingDifference]:
    """Return the settings that the configs of both sides state differently; what a file leaves out is the class's default."""
    reference, candidate = (model_settings(side, config) for side in (suspect.reference, suspect.candidate))
    if not reference and hasattr(config, "to_dict"):  # a model that is open already is its own witness
        reference = config.to_dict()
    if not reference or not candidate or reference.get("model_type") != candidate.get("model_type"):
        return []
    names = [
        name for name in candidate if name in reference and name not in SILENT_SETTINGS and not name.startswith("_")
    ]
    return [
        SettingDifference(name, reference[name], candidate[name])
        for name in names
        if reference[name] != candidate[name]
    ]


def config_mistakes(bench: ModuleBench) -> Iterator[Mistake]:
    """Yield the reference's module built with each differing setting of the candidate, then with all of them."""
    settings = differing_settings(bench.suspect, getattr(bench.model, "config", None))[:MOST_SETTINGS]
    for setting in settings:
        yield from _rebuilt_model_mistakes(
            bench, setting.code, {setting.name: setting.actual}, setting.values, setting.description
        )
    if len(settings) > 1 and not bench.solved:
        description = "; ".join(setting.description for setting in settings[:3])
        what = "; ".join(setting.values["what"] for setting in settings[:3])
        changes = {setting.name: setting.actual for setting in settings}
        yield from _rebuilt_model_mistakes(bench, OTHER_SETTING, changes, {"what": what}, description, freedom=0.5)


def _rebuilt_model_mistakes(
    bench: ModuleBench,
    code: str,
    changes: Mapping[str, Any],
    values: Mapping[str, str],
    description: str,
    freedom: float = 0,
) -> Iterator[Mistake]:
    try:
        model = _rebuild_model(bench.model, changes)
        module = None if model is None else dict(model.named_modules()).get(bench.path)
        if module is None:
            bench.failures.append(f"{description}: no such module is in a model built so")
            return
        got = bench.run(module=copy_in_dtype(module, bench.exact_dtype))
    except (
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as err:  # of transformers, about the settings
        bench.failures.append(f"{description}: a model built so fails ({err})")
        return
    if all(name in got for name in bench.targets):
        yield Mistake(code, got, values, description, freedom=freedom, rank=-1)


def _rebuild_model(model: Any, changes: Mapping[str, Any]) -> Any:
    """Return the reference's model with other settings and its own weights, which both share."""
    from transformers.initialization import no_init_weights

    settings = {**model.config.to_dict(), **changes}
    config = type(model.config).from_dict(settings)
    config._attn_implementation = model.config._attn_implementation
    with no_init_weights():
        new_model = type(model)(config).eval()
    new_state = new_model.state_dict()
    shared_state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in new_state and tensor.shape == new_state[name].shape
    }
    if any(name not in shared_state for name in new_state):
        return None
    new_model.load_state_dict(shared_state, strict=False, assign=True)
    for name, buffer in model.named_buffers():
        if not torch.is_floating_point(buffer) and name in dict(new_model.named_buffers()):
            new_model.get_buffer(name).copy_(buffer)
    return new_model.requires_grad_(False)
