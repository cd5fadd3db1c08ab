"""What a LoRA adapter must have in common with the engine or server that applies it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import is_older_release, loading_servers, quoted_path, short_kind
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# Names of modules in adapters and what TensorRT-LLM calls them (hf_lora_convert.py and lora_helper.py, 1.2.1).
TRTLLM_MODULES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "qkv_proj": "attn_qkv",
    "query_key_value": "attn_qkv", "c_attn": "attn_qkv", "o_proj": "attn_dense", "dense": "attn_dense",
    "gate_proj": "mlp_h_to_4h", "up_proj": "mlp_gate", "down_proj": "mlp_4h_to_h",
    "gate_up_proj": "mlp_gate_up", "w1": "moe_h_to_4h", "w2": "moe_4h_to_h", "w3": "moe_gate",
    "gate": "moe_router",
}  # fmt: skip
FUSED_LORA_MODULES = {
    "attn_q": "attn_qkv",
    "attn_k": "attn_qkv",
    "attn_v": "attn_qkv",
    "mlp_gate_up": "mlp_h_to_4h",
}
REPLACED_MODULES = (
    "lm_head",
    "embed_tokens",
)  # what is taken from an adapter named when the engine or LLM is made
RSLORA_SINCE, DORA_SINCE = "0.11.0", "0.19.0rc0"
SIXTEEN_BIT = ("float16", "bfloat16")


def adapter_hosts(deployment: Deployment) -> Iterator[Artifact]:
    """Yield what applies an adapter: engines, and servers that load a model themselves."""
    engines = list(deployment.of_kinds("engine"))
    return iter(engines or loading_servers(deployment))


def host_remedy(
    host: Artifact, adapter: Artifact, *, rank: int = 0, modules: list[str] | None = None
) -> dict[str, str]:
    """Return how a rank and modules are taken: an engine is built with them, the PyTorch backend reads YAML."""
    names = modules or []
    if host.kind == "engine":
        flags = [f"--max_lora_rank {rank}"] if rank else []
        flags += [f"--lora_target_modules {' '.join(map(shlex.quote, names))}"] if names else []
        build = "trtllm-build --checkpoint_dir CHECKPOINT_DIR --output_dir EMPTY_DIRECTORY --lora_plugin auto"
        command = " ".join([build, f"--lora_dir {quoted_path(adapter)}", *flags])
        return {
            "remedy": f"build the engine again with {' and '.join(flags) or 'the LoRA plugin'}",
            "command": command,
        }
    lines = [f"max_lora_rank: {rank}"] if rank else []
    lines += [f"lora_target_modules: [{', '.join(names)}]"] if names else []
    file = host.path if host.kind == "llm-args" else "the YAML file of --extra_llm_api_options (--config since 1.2)"
    shown = r"\n  ".join(["lora_config:", *lines])
    return {
        "remedy": f"set in {file}, below lora_config: {' and '.join(lines)}",
        "command": f"printf {shlex.quote(shown + chr(92) + 'n')}",
    }


@make_agreement("DX115", "lora", "engine", "llm-args", "command", needs=("lora", "engine|llm-args|command"))
def rank_in_limit(deployment: Deployment) -> Iterator[Violation]:
    """An adapter's rank is no higher than the engine or server takes."""
    for adapter in deployment.of_kinds("lora"):
        for host in adapter_hosts(deployment):
            adapter_rank, most = adapter.integer("lora.rank"), host.integer("lora.max_rank")
            if adapter_rank is not None and most is not None and adapter_rank > most:
                yield Violation(
                    adapter.evidence("lora.rank") + host.evidence("lora.max_rank"),
                    {
                        "rank": adapter_rank,
                        "most": most,
                        "kind": short_kind(host),
                        "adapter": quoted_path(adapter),
                    },
                )


@make_agreement("DX243", "lora", "engine", "llm-args", "command", needs=("lora", "engine|llm-args|command"))
def lora_enabled(deployment: Deployment) -> Iterator[Violation]:
    """An engine or server that gets an adapter takes adapters at all."""
    for adapter in deployment.of_kinds("lora"):
        for host in adapter_hosts(deployment):
            if host.get("lora.enabled") is False or _without_plugin(host):
                yield Violation(
                    adapter.evidence("lora.modules") + host.evidence(_switch_fact(host)),
                    {
                        "kind": short_kind(host),
                        "adapter": quoted_path(adapter),
                        **host_remedy(
                            host,
                            adapter,
                            rank=adapter.integer("lora.rank") or 64,
                            modules=_adapter_modules(adapter) or ["attn_q", "attn_k", "attn_v"],
                        ),
                    },
                )


def _without_plugin(host: Artifact) -> bool:
    """Return whether an engine says that it has no plugin: the key is there and empty."""
    return host.kind == "engine" and host.has("plugin.lora_plugin") and not host.get("plugin.lora_plugin")


def _switch_fact(host: Artifact) -> str:
    return "plugin.lora_plugin" if host.kind == "engine" and host.has("plugin.lora_plugin") else "lora.enabled"


@make_agreement("DX895", "lora", "engine", "llm-args", "command", needs=("lora", "engine|llm-args|command"))
def modules_adapted(deployment: Deployment) -> Iterator[Violation]:
    """Every module an adapter changes is one that the engine or server adapts.

    The LLM API leaves others out with a warning (`load_from_hf`, 1.2.1); Triton refuses the request.
    """
    for adapter in deployment.of_kinds("lora"):
        for host in adapter_hosts(deployment):
            target_modules = {str(name) for name in host.items("lora.target_modules")}
            left_out = [module for module in _adapter_modules(adapter) if not _is_adapted(module, target_modules)]
            if target_modules and left_out and host.get("lora.enabled") is not False:
                yield Violation(
                    adapter.evidence("lora.modules") + host.evidence("lora.target_modules"),
                    {
                        "left_out": join_words(left_out),
                        "kind": short_kind(host),
                        "adapter": quoted_path(adapter),
                        **host_remedy(host, adapter, modules=sorted(target_modules | set(_adapter_modules(adapter)))),
                    },
                )


def _adapter_modules(adapter: Artifact) -> list[str]:
    """Return the modules under TensorRT-LLM's names; one that has none there is left out."""
    names = (str(module).rpartition(".")[2] for module in adapter.items("lora.modules"))
    trtllm_names = (TRTLLM_MODULES.get(name, name) for name in names)
    return list(dict.fromkeys(name for name in trtllm_names if name in TRTLLM_MODULES.values()))


def _is_adapted(module: str, target_modules: set[str]) -> bool:
    """Return whether a module is among those adapted, under its own or the adapter's name, or fused."""
    names = {name for name, trtllm_name in TRTLLM_MODULES.items() if trtllm_name == module}
    return module in target_modules or FUSED_LORA_MODULES.get(module) in target_modules or bool(names & target_modules)


@make_agreement("DX896", "lora", "engine")
def data_type(deployment: Deployment) -> Iterator[Violation]:
    """Adapter, LoRA plugin and engine compute in one data type."""
    for engine in deployment.of_kinds("engine"):
        engine_dtype, plugin = engine.text("dtype"), engine.text("plugin.lora_plugin")
        if plugin in (*SIXTEEN_BIT, "float32") and engine_dtype and plugin != engine_dtype:
            yield Violation(
                engine.evidence("dtype", "plugin.lora_plugin"),
                {
                    "what": f"the LoRA plugin computes in {plugin}",
                    "dtype": engine_dtype,
                    "adapter": "adapter",
                },
            )
            continue
        for adapter in deployment.of_kinds("lora"):
            adapter_dtype = adapter.text("lora.dtype")
            # Adapters are commonly saved in float32 and converted on loading, which loses nothing that matters.
            if adapter_dtype in SIXTEEN_BIT and engine_dtype in SIXTEEN_BIT and adapter_dtype != engine_dtype:
                yield Violation(
                    adapter.evidence("lora.dtype") + engine.evidence("dtype"),
                    {
                        "what": f"the adapter is stored in {adapter_dtype}",
                        "dtype": engine_dtype,
                        "adapter": quoted_path(adapter),
                    },
                    Severity.NOTE,
                    0.6,
                )


@make_agreement("DX897", "lora", "hf", "checkpoint", "engine")
def base_model(deployment: Deployment) -> Iterator[Violation]:
    """An adapter was trained on a model of these sizes."""
    for adapter in deployment.of_kinds("lora"):
        size = adapter.integer("lora.hidden_size")
        models = [
            artifact for artifact in deployment.of_kinds("engine", "checkpoint", "hf") if artifact.has("hidden_size")
        ]
        if size is None or not models or any(model.get("hidden_size") == size for model in models):
            continue
        yield Violation(
            adapter.evidence("lora.hidden_size", "lora.base_model") + models[0].evidence("hidden_size"),
            {
                "theirs": size,
                "ours": models[0].get("hidden_size"),
                "kind": short_kind(models[0]),
                "base": adapter.text("lora.base_model") or "another model",
                "adapter": quoted_path(adapter),
            },
        )


@make_agreement("DX898", "lora", "engine", "llm-args", "command", needs=("lora", "engine|llm-args|command"))
def dora_magnitudes(deployment: Deployment) -> Iterator[Violation]:
    """The magnitudes of a DoRA adapter are applied."""
    for adapter in deployment.of_kinds("lora"):
        for host in adapter_hosts(deployment):
            if adapter.get("lora.dora") is True and not _applies_dora(host):
                yield Violation(
                    adapter.evidence("lora.dora") + host.evidence(*_dora_facts(host)),
                    {
                        "kind": short_kind(host),
                        "adapter": quoted_path(adapter),
                        "rank": adapter.integer("lora.rank") or 64,
                    },
                )


def _applies_dora(host: Artifact) -> bool:
    """Return whether DoRA is on; the PyTorch backend has no code for magnitudes (1.2.1)."""
    if host.kind != "engine":
        return host.text("runtime.backend") not in ("", "pytorch")
    if host.has("plugin.dora_plugin"):
        return bool(host.get("plugin.dora_plugin"))
    return not is_older_release(host.text("version"), DORA_SINCE)


def _dora_facts(host: Artifact) -> tuple[str, ...]:
    return ("plugin.dora_plugin",) if host.kind == "engine" else ("runtime.backend",)


@make_agreement("DX899", "lora", "hf", "engine", "checkpoint")
def whole_modules(deployment: Deployment) -> Iterator[Violation]:
    """Modules that an adapter replaces whole, such as a larger output layer, are replaced."""
    for adapter in deployment.of_kinds("lora"):
        replaced = [name for name in REPLACED_MODULES if name in map(str, adapter.items("lora.modules_to_save"))]
        models = [
            artifact for artifact in deployment.of_kinds("engine", "checkpoint", "hf") if artifact.has("vocab_size")
        ]
        if not replaced or not models or _named_at_start(deployment, adapter):
            continue
        model_vocab, adapter_vocab = models[0].integer("vocab_size"), adapter.integer("lora.vocab_size")
        resized = adapter_vocab is not None and model_vocab is not None and adapter_vocab > model_vocab
        yield Violation(
            adapter.evidence("lora.modules_to_save", "lora.vocab_size") + models[0].evidence("vocab_size"),
            {"modules": join_words(replaced), "kind": short_kind(models[0]), "adapter": quoted_path(adapter)},
            Severity.ERROR,
            0.9 if resized else 0.7,
        )


def _named_at_start(deployment: Deployment, adapter: Artifact) -> bool:
    """Return whether the adapter is the one the engine or LLM was made with: its whole modules are taken then."""
    settings = (
        fact.value
        for host in (*deployment.of_kinds("engine"), *loading_servers(deployment))
        for fact in (*host.family_facts("option").values(), *host.family_facts("build").values())
    )
    return any(isinstance(value, (dict, list, str)) and adapter.path in str(value) for value in settings)


@make_agreement("DX900", "lora", "engine")
def root_scale(deployment: Deployment) -> Iterator[Violation]:
    """An adapter scaled by the root of its rank meets a release that knows such scales."""
    for adapter in deployment.of_kinds("lora"):
        for engine in deployment.of_kinds("engine"):
            if adapter.get("lora.rslora") is True and is_older_release(engine.text("version"), RSLORA_SINCE):
                yield Violation(
                    adapter.evidence("lora.rslora", "lora.rank") + engine.evidence("version"),
                    {
                        "version": engine.text("version"),
                        "root": f"{(adapter.integer('lora.rank') or 1) ** 0.5:.3g}",
                        "adapter": quoted_path(adapter),
                    },
                )


@make_agreement("DX901", "lora")
def trained_biases(deployment: Deployment) -> Iterator[Violation]:
    """An adapter has no biases of its own: nothing applies them."""
    for adapter in deployment.of_kinds("lora"):
        bias = adapter.text("lora.bias")
        if bias and bias != "none":
            yield Violation(adapter.evidence("lora.bias"), {"bias": bias, "adapter": quoted_path(adapter)})


@make_agreement("DX902", "lora")
def scale_stated(deployment: Deployment) -> Iterator[Violation]:
    """An adapter states the scale it is applied with."""
    for adapter in deployment.of_kinds("lora"):
        if adapter.has("lora.rank", "lora.modules") and not adapter.has("lora.alpha"):
            yield Violation(
                adapter.evidence("lora.rank", "lora.alpha"),
                {"rank": adapter.get("lora.rank"), "adapter": quoted_path(adapter)},
            )
