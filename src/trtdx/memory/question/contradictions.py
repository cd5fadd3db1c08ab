"""Finds layouts, limits and formats that contradict each other, whatever the memory.

The rules of `trtdx inspect` cover most of this: they check the set-up as a model and the command line that serves it.
What no rule covers is DX894.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtdx.inspect.agreements import agreement_table
from trtdx.inspect.agreements.agreement import judge_findings
from trtdx.inspect.facts.artifact import Artifact, Deployment, FactCollector
from trtdx.knowledge.versions import gpus_with_sm
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.model.backend_support import find_missing_support, unread_quant_method
from trtdx.memory.model.dims import DIMS_OF_FACTS
from trtdx.memory.model.format_names import KV_LEAST_SM, WEIGHT_FORMATS
from trtdx.memory.question.gpu_support import lacks_fused_attention, must_disable_fused_attention
from trtdx.memory.question.setup_facts import facts_from_setup
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtdx.memory.nouns import Setup
    from trtdx.memory.question.setup import ResolvedSetup
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

    Problem = tuple[Any, ...]  # a key of `Setup.said`, what is wrong, what to do, and a severity of its own

# Of the agreements, those that speak of the layout, the limits and the GPU; the rest is for `trtdx inspect`.
CHECKED_RULES = {
    "DX096", "DX850", "DX858", "DX465", "DX852", "DX853", "DX860", "DX097", "DX102", "DX325", "DX158", "DX060",
    "DX875", "DX873", "DX871", "DX878",
}  # fmt: skip
IMPOSSIBLE_SETUP, NO_KERNELS = "DX894", "DX060"
MODEL_FACTS = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "intermediate_size", "vocab_size",
    "num_experts", "moe_intermediate_size", "kv_lora_rank",
)  # fmt: skip
# What the set-up's own facts are known by in `Setup.said`.
COMMAND_FACTS = {
    "tp_size": "tp", "pp_size": "pp", "cp_size": "cp", "moe_ep_size": "ep", "moe_tp_size": "moe_tp",
    "max_batch_size": "max_batch_size", "max_num_tokens": "max_num_tokens", "max_seq_len": "max_seq_len",
    "tokens_per_block": "tokens_per_block", "runtime.kv_cache_dtype": "kv", "runtime.backend": "backend",
    "runtime.command": "command",
}  # fmt: skip


def find_contradictions(resolved: ResolvedSetup, book: RuleBook) -> list[Finding]:
    """Return the findings about a set-up that cannot run as asked, graver ones first."""
    missing = _findings_from_problems(resolved.setup, _find_missing_model(resolved), book)
    return [*find_setup_contradictions(resolved.setup, book), *missing, *_find_unread_method(resolved, book)]


def find_setup_contradictions(setup: Setup, book: RuleBook) -> list[Finding]:
    """Return what contradicts itself in a set-up alone, whatever it was resolved from."""
    artifacts = (_setup_model_artifact(setup), _setup_command_artifact(setup), *_machine_artifacts(setup))
    rows = tuple(row for row in agreement_table() if row.code in CHECKED_RULES)
    findings = judge_findings(rows, Deployment(artifacts), book)
    impossible = _findings_from_problems(setup, _find_setup_violations(setup), book)
    return [*(_downgrade_assumed_release(setup, finding) for finding in findings), *impossible]


def _findings_from_problems(setup: Setup, problems: Iterable[Problem], book: RuleBook) -> list[Finding]:
    page = book.get(IMPOSSIBLE_SETUP)
    return [finding_from(page, _make_violation(setup, *problem)) for problem in problems]


def _downgrade_assumed_release(setup: Setup, finding: Finding) -> Finding:
    """Return a finding about a release as a warning where nobody said which one it is."""
    if finding.code == NO_KERNELS and setup.is_assumed("version"):
        return replace(finding, severity=Severity.WARNING)
    return finding


def _find_missing_model(resolved: ResolvedSetup) -> Iterator[Problem]:
    for what, remedy in find_missing_support(resolved):
        yield "backend", what, remedy


def _find_unread_method(resolved: ResolvedSetup, book: RuleBook) -> Iterator[Finding]:
    setup = resolved.setup
    is_named = setup.said.get("weights", "").startswith("the name ")
    if is_named and setup.running.backend == "pytorch" and setup.formats.weights == "W4A16_AWQ":
        what = "the PyTorch backend reads AWQ weights that ModelOpt wrote; a checkpoint of AutoAWQ does not load"
        remedy = "look for hf_quant_config.json in the model's folder, or quantise it with ModelOpt's hf_ptq.py"
        violation = _make_violation(setup, "weights", what, remedy, Severity.WARNING)
        yield finding_from(book.get(IMPOSSIBLE_SETUP), violation)
    method, model = unread_quant_method(resolved), resolved.model.artifact
    if method:
        values = {"method": method, "path": shlex.quote(resolved.model.name)}
        yield finding_from(book.get("DX093"), Violation(model.evidence("quant.method"), values))


def _setup_model_artifact(setup: Setup) -> Artifact:
    facts = FactCollector()
    fields = {name: DIMS_OF_FACTS[name] for name in MODEL_FACTS} | {"max_positions": "max_positions"}
    for name, field in fields.items():
        value = getattr(setup.dims, field)
        if value:
            facts.put(name, value, setup.said.get(field, setup.model))
    facts.put("dtype", setup.formats.dtype, setup.said.get("dtype", ""))
    facts.put("quant.algo", setup.formats.weights or None, setup.said.get("weights", ""))
    if setup.formats.weights:
        facts.put("quant.group_size", setup.formats.group_size, setup.said.get("group_size", ""))
    return Artifact("hf", setup.model, facts.to_dict())


def _setup_command_artifact(setup: Setup) -> Artifact:
    values = facts_from_setup(setup) | {
        "cp_size": setup.layout.cp,
        "tokens_per_block": setup.limits.tokens_per_block,
        "runtime.backend": "pytorch",  # the agreements cut a model as a server does
        "runtime.command": "trtllm-serve",
    }
    facts = FactCollector()
    for name, key in COMMAND_FACTS.items():
        facts.put(name, values[name], setup.said.get(key, "the command line"))
    return Artifact("command", "the command line", facts.to_dict())


def _machine_artifacts(setup: Setup) -> Iterator[Artifact]:
    if setup.device is not None and setup.device.sm:
        facts = FactCollector()
        facts.put("gpu.name", setup.device.name, "--gpu")
        facts.put("gpu.sm", setup.device.sm, "--gpu")
        facts.put("gpu.runtime", setup.running.version or None, setup.said.get("version", ""))
        yield Artifact("machine", "this machine", facts.to_dict())


def _find_setup_violations(setup: Setup) -> Iterator[Problem]:
    """Yield the problems that no rule of inspect covers."""
    limits, layout, formats = setup.limits, setup.layout, setup.formats
    sm = setup.sm
    partition = layout.pp_partition
    if partition and (len(partition) != layout.pp or sum(partition) != setup.dims.num_layers):
        yield (
            "pp",
            f"pp_partition {list(partition)} does not deal {setup.dims.num_layers} layers to {layout.pp} stages",
            f"give {layout.pp} numbers whose sum is {setup.dims.num_layers}",
        )
    if formats.kv == "int8" and setup.running.backend == "pytorch":
        yield (
            "kv",
            "the PyTorch backend has no key/value cache in INT8",
            "use --kv_cache_dtype fp8, or engines: --backend tensorrt",
        )
    least = KV_LEAST_SM.get(formats.kv, 0)
    if sm and sm < least and formats.kv != "nvfp4":
        yield (
            "kv",
            f"{setup.device.name if setup.device else 'the GPU'} has no kernels for a key/value cache in {formats.kv}",
            f"leave --kv_cache_dtype out, or use {gpus_with_sm(str(least))}",
        )
    yield from _find_attention_violations(setup)
    form = WEIGHT_FORMATS.get(formats.weights)
    if form is not None and setup.running.backend not in form.backends:
        yield (
            "weights",
            f"the {setup.running.backend} backend does not have {form.algo}",
            f"use --backend {form.backends[0]}, or another format",
        )
    if limits.max_seq_len <= limits.max_input_len and not setup.is_assumed("max_input_len"):
        yield (
            "max_input_len",
            f"max_input_len {limits.max_input_len} leaves no room for an answer in max_seq_len {limits.max_seq_len}",
            "max_seq_len is prompt and answer together",
            Severity.WARNING,
        )


def _find_attention_violations(setup: Setup) -> Iterator[Problem]:
    """Yield a problem where the GPU has no attention kernels for the backend."""
    device = setup.device
    if device is None or not lacks_fused_attention(device, setup.running.version):
        return
    if setup.running.backend == "pytorch" and "attn_backend" not in setup.said:
        yield (
            "gpu",
            f"the PyTorch backend has no attention kernels for {device.name} (compute capability {device.sm / 10:g})",
            f"use {gpus_with_sm('80')}, or an engine of an older release: --backend tensorrt --trtllm-version 0.15.0",
        )
    elif must_disable_fused_attention(setup) and "fused_attention" in setup.said:
        yield (
            "gpu",
            f"fused attention has no kernels for {device.name} (compute capability {device.sm / 10:g}), and "
            f"{setup.running.version} refuses to build it",
            "build with trtllm-build --context_fmha disable; it is planned without",
            Severity.WARNING if setup.is_assumed("fused_attention") else None,
        )


def _make_violation(setup: Setup, key: str, problem: str, remedy: str, severity: Severity | None = None) -> Violation:
    where = setup.said.get(key, "the command line")
    return Violation(
        (Evidence(where, problem),), {"what": problem, "remedy": remedy}, severity=severity, confidence=0.9
    )
