"""Causes that the two configs state outright: the reference's module, built with one setting of the candidate's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.compare.attribute.experiment import Idea
from trtdx.compare.attribute.files.hf_folders import settings_in
from trtdx.compare.attribute.module_copies import copied
from trtdx.engines.torch.lazy import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtdx.compare.attribute.experiment import Bench
    from trtdx.compare.attribute.suspect import Suspect

OTHER_SETTING = "DX928"
MOST_SETTINGS = 24
# What a config says about where it came from, how it is stored or how text is made: none of it changes what is computed.
SILENT = {
    "_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache", "bos_token_id",
    "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef", "pretraining_tp",
    "quantization_config", "torchscript", "return_dict", "is_encoder_decoder", "attn_implementation", "chunk_size_feed_forward",
    "id2label", "label2id", "problem_type", "auto_map", "use_bfloat16", "vocab_size",
}  # fmt: skip
CODES = {
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


class Setting(NamedTuple):
    """One setting that both configs state, and differently."""

    name: str
    expected: Any
    found: Any

    @property
    def code(self) -> str:
        if self.name == "rope_parameters":
            return _rope_code(self.expected, self.found)
        return CODES.get(self.name, OTHER_SETTING)

    @property
    def told(self) -> str:
        expected, found = self._parts()
        return f"config.json states {self.name} {_short(found)}, the reference's {_short(expected)}"

    @property
    def values(self) -> dict[str, str]:
        expected, found = self._parts()
        held = {
            "expected": _short(expected),
            "found": _short(found),
            "setting": self.name,
            "inner": self.name,
        }
        if _is_number(expected) and _is_number(found) and expected:
            held["factor"] = f"{found / expected:.4g}"
        if self.name == "rope_interleave":
            pairs = {True: "interleaved", False: "in halves"}
            held |= {"expected": pairs[bool(expected)], "found": pairs[bool(found)]}
        held["what"] = f"{self.name} is {_short(found)} instead of {_short(expected)}"
        return held

    def _parts(self) -> tuple[Any, Any]:
        """Return what differs in two values that hold several."""
        if not (isinstance(self.expected, dict) and isinstance(self.found, dict)):
            return self.expected, self.found
        names = [
            name for name in self.expected | self.found if self.expected.get(name) != self.found.get(name)
        ]
        if len(names) == 1:
            return self.expected.get(names[0]), self.found.get(names[0])
        return tuple({name: each.get(name) for name in names} for each in (self.expected, self.found))  # type: ignore[return-value]


def _rope_code(expected: Any, found: Any) -> str:
    one, other = (each if isinstance(each, dict) else {} for each in (expected, found))
    names = {name for name in one | other if one.get(name) != other.get(name)}
    if names == {"rope_theta"}:
        return "DX962"
    return "DX964" if names == {"partial_rotary_factor"} else "DX963"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if _is_number(value):
        return f"{value:.6g}"
    text = (
        {True: "true", False: "false", None: "none"}.get(value)
        if isinstance(value, (bool, type(None)))
        else str(value)
    )
    return text if text is not None and len(text) <= 80 else f"{str(value)[:77]}..."


def stated_settings(suspect: Suspect, config: Any) -> list[Setting]:
    """Return the settings that the configs of both sides state differently; what a file leaves out is the class's default."""
    own, theirs = (settings_in(side, config) for side in (suspect.reference, suspect.candidate))
    if not own and hasattr(config, "to_dict"):  # a model that is open already is its own witness
        own = config.to_dict()
    if not own or not theirs or own.get("model_type") != theirs.get("model_type"):
        return []
    names = [name for name in theirs if name in own and name not in SILENT and not name.startswith("_")]
    return [Setting(name, own[name], theirs[name]) for name in names if own[name] != theirs[name]]


def ideas(bench: Bench) -> Iterator[Idea]:
    """Yield the module as the reference's model has it with a setting of the candidate's, one after the other, then all."""
    settings = stated_settings(bench.suspect, getattr(bench.model, "config", None))[:MOST_SETTINGS]
    for each in settings:
        yield from _built(bench, each.code, {each.name: each.found}, each.values, each.told)
    if len(settings) > 1 and not bench.solved:
        told = "; ".join(each.told for each in settings[:3])
        what = "; ".join(each.values["what"] for each in settings[:3])
        found = {each.name: each.found for each in settings}
        yield from _built(bench, OTHER_SETTING, found, {"what": what}, told, freedom=0.5)


def _built(
    bench: Bench,
    code: str,
    changes: Mapping[str, Any],
    values: Mapping[str, str],
    told: str,
    freedom: float = 0,
) -> Iterator[Idea]:
    try:
        model = _model_with(bench.model, changes)
        module = None if model is None else dict(model.named_modules()).get(bench.path)
        if module is None:
            bench.failures.append(f"{told}: no such module is in a model built so")
            return
        got = bench.run(module=copied(module, bench.exact))
    except (
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
    ) as err:  # of transformers, about the settings
        bench.failures.append(f"{told}: a model built so fails ({err})")
        return
    if all(name in got for name in bench.targets):
        yield Idea(code, got, values, told, freedom=freedom, rank=-1)


def _model_with(model: Any, changes: Mapping[str, Any]) -> Any:
    """Return the reference's model with other settings and its own weights, which both share."""
    from transformers.initialization import no_init_weights

    held = {**model.config.to_dict(), **changes}
    config = type(model.config).from_dict(held)
    config._attn_implementation = model.config._attn_implementation
    with no_init_weights():
        made = type(model)(config).eval()
    own = made.state_dict()
    theirs = {
        name: each
        for name, each in model.state_dict().items()
        if name in own and each.shape == own[name].shape
    }
    if any(name not in theirs for name in own):
        return None
    made.load_state_dict(theirs, strict=False, assign=True)
    for name, buffer in model.named_buffers():
        if not torch.is_floating_point(buffer) and name in dict(made.named_buffers()):
            made.get_buffer(name).copy_(buffer)
    return made.requires_grad_(False)
