"""What a server is started with: paths that are there, a model that it can serve, a draft and a tokenizer that fit."""

from __future__ import annotations

import posixpath
import shlex
from typing import TYPE_CHECKING

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.engine.machine import machine_gpu_words
from trtdx.inspect.agreements.serving import (
    SERVER_KINDS,
    items_and_evidence,
    names_artifact,
    served_models,
    server_place,
    server_words,
    serving_artifacts,
    stated_evidence,
    verify_command,
)
from trtdx.inspect.facts.compatibility import FIRST_FP4, kernels_not_serving, unsupported_algo
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

# Models that were never trained with layers that predict further tokens, and that no release has such layers for.
MODELS_WITHOUT_MTP = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3", "starcoder2",
)  # fmt: skip
FP4_CACHE_SMS = (100, 103)  # compute capabilities that the matrix lists an NVFP4 cache for
MAX_VOCABULARY_RATIO = 1.05  # vocabularies of one family are padded to sizes that differ by less


@make_agreement("DX880", "llm-args", "command")
def paths_there(deployment: Deployment) -> Iterator[Violation]:
    """The files and directories that a command names are there."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        for name in ("runtime.paths_missing", "runtime.paths_unseen"):
            words, evidence = items_and_evidence(server, name)
            if not words:
                continue
            path = str(server.items(name)[0]).rpartition(" (")[0]
            values = {"what": words, "is": "is" if len(server.items(name)) == 1 else "are"}
            values |= {"folder": shlex.quote(posixpath.dirname(path.rstrip("/")) or ".")}
            values |= server_words(server)
            sure = name == "runtime.paths_missing"
            yield Violation(evidence, values, None if sure else Severity.NOTE, 0.85 if sure else 0.5)


@make_agreement("DX881", "lora", "llm-args", "command")
def adapter_beside_model(deployment: Deployment) -> Iterator[Violation]:
    """What is served is a model; an adapter is loaded beside one."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        for adapter in deployment.of_kinds("lora"):
            if names_artifact(server, "runtime.model", adapter):
                base = adapter.text("lora.base_model")
                values = {"adapter": adapter.path, "folder": shlex.quote(adapter.path.rstrip("/"))}
                values |= {
                    "base": shlex.quote(base) if base else "BASE_MODEL",
                    "verify": verify_command(server),
                }
                values["rank"] = str(adapter.integer("lora.rank") or 64)
                evidence = server.evidence("runtime.model") + stated_evidence(adapter, "lora.base_model", "lora.rank")
                yield Violation(evidence, values)


@make_agreement("DX509", "hf", "llm-args", "command")
def tokenizer_named(deployment: Deployment) -> Iterator[Violation]:
    """A tokenizer that is named for a model gives the ids the model was trained with."""
    for server, model in served_models(deployment):
        lender = next(
            (model for model in deployment.of_kinds("hf") if names_artifact(server, "runtime.tokenizer", model)),
            None,
        )
        if lender is None or lender is model:
            continue
        facts = ("tokenizer.size", "tokenizer.eos_id")
        if lender.has(*facts) and model.has(*facts) and all(lender.get(x) != model.get(x) for x in facts):
            what = (
                f"{lender.path} has {lender.get(facts[0])} ids and ends a text with {lender.get(facts[1])}, "
                f"the one of {model.path} has {model.get(facts[0])} and {model.get(facts[1])}"
            )
            values = {"what": what, "tokenizer": shlex.quote(lender.path)}
            evidence = server.evidence("runtime.tokenizer") + lender.evidence(*facts) + model.evidence(*facts)
            yield Violation(evidence, values, Severity.ERROR)


@make_agreement("DX874", "hf", "llm-args", "command")
def predicting_layers(deployment: Deployment) -> Iterator[Violation]:
    """Multi-token prediction is asked of a model that has layers for it."""
    for server, model in served_models(deployment):
        kind = model.text("model_type")
        if kind not in MODELS_WITHOUT_MTP:
            continue
        if server.text("runtime.speculative").upper() == "MTP" and not server.has("runtime.draft_model"):
            values = {"kind": kind, "model": model.path, **server_words(server)}
            evidence = server.evidence("runtime.speculative") + model.evidence("model_type")
            yield Violation(evidence, values, confidence=0.9)


# Kinds of speculative decoding that are refused without a model to draft with: "Draft model must be provided for EAGLE",
# "EAGLE3 draft model must be specified", "Draft model must be specified" (llm_args.py, 1.0.0 to 1.3.0rc22).
DRAFT_MODEL_KINDS = ("eagle", "eagle3", "drafttarget", "pard", "dflash")


@make_agreement("DX566", "llm-args", "command")
def draft_named(deployment: Deployment) -> Iterator[Violation]:
    """Speculative decoding names its kind, and the model that drafts where its kind has one."""
    for server in serving_artifacts(deployment, "llm-args", "command"):
        kind = server.text("runtime.speculative")
        names = [f"option.{name}" for name in server.family_facts("option") if name.startswith("speculative_config.")]
        named = server.has("runtime.draft_model") or any(name.endswith(("_model", "_path")) for name in names)
        if kind.lower().replace("_", "") in DRAFT_MODEL_KINDS and not named:
            what, lack = f"{kind} has no draft model", "speculative_model_dir"
            evidence = server.evidence("runtime.speculative")
        elif names and not kind and not server.has("runtime.invalid_values"):
            what, lack = "speculative_config does not say which kind it is", "decoding_type"
            evidence = server.evidence(names[0])
        else:
            continue
        yield Violation(evidence, {"what": what, "lack": lack, **server_words(server)}, confidence=0.9)


@make_agreement("DX319", "hf", "llm-args", "command")
def draft_vocabulary(deployment: Deployment) -> Iterator[Violation]:
    """A draft model of its own has the vocabulary of the model it drafts for."""
    for server, model in served_models(deployment):
        target = model.integer("vocab_size")
        draft = server.integer("runtime.draft_vocab_size")
        is_draft = server.text("runtime.speculative").lower().replace("_", "") == "drafttarget"
        if not target or not draft or not is_draft:
            continue
        if max(draft, target) > MAX_VOCABULARY_RATIO * min(draft, target):
            values = {"draft": draft, "target": target, "model": model.path, **server_words(server)}
            values["drafter"] = server.text("runtime.draft_model")
            evidence = server.evidence("runtime.draft_vocab_size") + model.evidence("vocab_size")
            yield Violation(evidence, values, None if draft > target else Severity.WARNING, 0.9)


@make_agreement("DX875", *SERVER_KINDS, "hf", "machine", needs=("hf|llm-args|command|triton", "machine"))
def cache_on_gpu(deployment: Deployment) -> Iterator[Violation]:
    """A key/value cache in NVFP4 is kept on a GPU that computes it."""
    machine = deployment.first_of("machine")
    sm = machine.integer("gpu.sm") if machine else None
    if machine is None or sm is None or sm in FP4_CACHE_SMS or kernels_not_serving(machine):
        return
    if any(unsupported_algo(model, machine) for model in deployment.of_kinds("hf")):
        return  # the weights do not run there either, which is told
    for artifact, name in _fp4_caches(deployment):
        values = {"gpu": machine_gpu_words(machine), "path": server_place(artifact), "verb": "cannot compute"}
        if sm >= FIRST_FP4:
            values["verb"] = "is not listed for"
        severity = Severity.WARNING if sm >= FIRST_FP4 else None
        evidence = artifact.evidence(name) + machine.evidence("gpu.sm")
        yield Violation(evidence, values, severity, 0.6 if severity else 0.9)
        return


def _fp4_caches(deployment: Deployment) -> Iterator[tuple[Artifact, str]]:
    """Yield what asks for an NVFP4 cache: a server, or the model itself where no server says otherwise."""
    asking_servers = [
        server for server in serving_artifacts(deployment) if server.text("runtime.kv_cache_dtype") not in ("", "auto")
    ]
    for server in asking_servers:
        if server.text("runtime.kv_cache_dtype").lower() == "nvfp4":
            yield server, "runtime.kv_cache_dtype"
    for model in deployment.of_kinds("hf") if not asking_servers else ():
        if model.text("quant.kv_algo").upper() == "NVFP4":
            yield model, "quant.kv_algo"
