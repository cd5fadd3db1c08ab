"""What cannot be as it is asked for, whatever the memory: layouts, limits and formats that contradict each other.

`trtdx inspect` has rules for most of this. They are asked about the set-up as if it were a model and the command line
that serves it; what they do not know is DX894.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.inspect.agreements import table
from trtdx.inspect.agreements.agreement import findings_from
from trtdx.inspect.facts.artifact import Artifact, Deployment, Facts
from trtdx.knowledge.versions import gpus_with_sm
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.ledger.plan import is_assumed
from trtdx.memory.model.backend_support import missing_model, unread_method
from trtdx.memory.model.format_names import FORMATS, KV_LEAST_SM
from trtdx.memory.question.gpu_support import lacks_fused_attention, must_be_told
from trtdx.model import Evidence, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.memory.nouns import Setup
    from trtdx.memory.question.setup import Answer
    from trtdx.model import Finding
    from trtdx.rule import RuleBook

# Of the agreements, those that speak of the layout, the limits and the GPU; the rest is for `trtdx inspect`.
ASKED = {
    "DX096", "DX850", "DX858", "DX465", "DX852", "DX853", "DX860", "DX097", "DX102", "DX325", "DX158", "DX060",
    "DX875", "DX873", "DX871", "DX878",
}  # fmt: skip
IMPOSSIBLE, NO_KERNELS = "DX894", "DX060"
MODEL_FACTS = {
    "num_layers": "num_layers", "hidden_size": "hidden_size", "num_heads": "num_heads", "num_kv_heads": "num_kv_heads",
    "head_dim": "head_size", "intermediate_size": "intermediate_size", "vocab_size": "vocab_size",
    "num_experts": "num_experts", "moe_intermediate_size": "moe_intermediate_size", "kv_lora_rank": "kv_lora_rank",
    "max_positions": "max_positions",
}  # fmt: skip


def contradictions(answer: Answer, book: RuleBook) -> list[Finding]:
    """Return what is wrong with a set-up, graver things first."""
    deployment = Deployment((_model(answer.setup), _command(answer.setup), *_machine(answer.setup)))
    rows = tuple(row for row in table() if row.code in ASKED)
    found = [_less_sure(answer.setup, each) for each in findings_from(rows, deployment, book)]
    page = book.get(IMPOSSIBLE)
    own = [*_own(answer.setup), *_model_is_there(answer)]
    return [*found, *(finding_from(page, each) for each in own), *_method_is_read(answer, book)]


def _less_sure(setup: Setup, finding: Finding) -> Finding:
    """Return a finding about a release as a warning where nobody said which one it is."""
    if finding.code == NO_KERNELS and is_assumed(setup, "version"):
        return msgspec.structs.replace(finding, severity=Severity.WARNING)
    return finding


def _model_is_there(answer: Answer) -> Iterator[Violation]:
    for what, remedy in missing_model(answer):
        yield _violation(answer.setup, "backend", what, remedy)


def _method_is_read(answer: Answer, book: RuleBook) -> Iterator[Finding]:
    setup = answer.setup
    is_named = setup.said.get("weights", "").startswith("the name ")
    if is_named and setup.running.backend == "pytorch" and setup.formats.weights == "W4A16_AWQ":
        what = (
            "the PyTorch backend reads AWQ weights that ModelOpt wrote; a checkpoint of AutoAWQ does not load"
        )
        remedy = (
            "look for hf_quant_config.json in the model's folder, or quantise it with ModelOpt's hf_ptq.py"
        )
        violation = _violation(setup, "weights", what, remedy, Severity.WARNING)
        yield finding_from(book.get(IMPOSSIBLE), violation)
    method, model = unread_method(answer), answer.model.artifact
    if method:
        values = {"method": method, "path": shlex.quote(answer.model.name)}
        yield finding_from(book.get("DX093"), Violation(model.evidence("quant.method"), values))


def _model(setup: Setup) -> Artifact:
    facts = Facts()
    for field, name in MODEL_FACTS.items():
        value = getattr(setup.dims, field)
        if value:
            facts.put(name, value, setup.said.get(field, setup.model))
    facts.put("dtype", setup.formats.dtype, setup.said.get("dtype", ""))
    facts.put("quant.algo", setup.formats.weights or None, setup.said.get("weights", ""))
    if setup.formats.weights:
        facts.put("quant.group_size", setup.formats.group_size, setup.said.get("group_size", ""))
    return Artifact("hf", setup.model, facts.done())


def _command(setup: Setup) -> Artifact:
    facts, said = Facts(), setup.said
    values: dict[str, tuple[Any, str]] = {
        "tp_size": (setup.layout.tp, "tp"),
        "pp_size": (setup.layout.pp, "pp"),
        "cp_size": (setup.layout.cp, "cp"),
        "moe_ep_size": (setup.layout.ep or None, "ep"),
        "moe_tp_size": (setup.layout.moe_tp or None, "moe_tp"),
        "max_batch_size": (setup.limits.max_batch_size, "max_batch_size"),
        "max_num_tokens": (setup.limits.max_num_tokens, "max_num_tokens"),
        "max_seq_len": (setup.limits.max_seq_len, "max_seq_len"),
        "tokens_per_block": (setup.limits.tokens_per_block, "tokens_per_block"),
        "runtime.kv_cache_dtype": (setup.formats.kv or None, "kv"),
        "runtime.backend": ("pytorch", "backend"),  # the agreements cut a model as a server does
        "runtime.command": ("trtllm-serve", "command"),
    }
    for name, (value, key) in values.items():
        facts.put(name, value, said.get(key, "the command line"))
    return Artifact("command", "the command line", facts.done())


def _machine(setup: Setup) -> Iterator[Artifact]:
    if setup.device is not None and setup.device.sm:
        facts = Facts()
        facts.put("gpu.name", setup.device.name, "--gpu")
        facts.put("gpu.sm", setup.device.sm, "--gpu")
        facts.put("gpu.runtime", setup.running.version or None, setup.said.get("version", ""))
        yield Artifact("machine", "this machine", facts.done())


def _own(setup: Setup) -> Iterator[Violation]:
    """Yield what no other rule knows."""
    limits, layout, formats = setup.limits, setup.layout, setup.formats
    sm = setup.device.sm if setup.device else 0
    partition = layout.pp_partition
    if partition and (len(partition) != layout.pp or sum(partition) != setup.dims.num_layers):
        yield _violation(
            setup,
            "pp",
            f"pp_partition {list(partition)} does not deal {setup.dims.num_layers} layers to {layout.pp} stages",
            f"give {layout.pp} numbers whose sum is {setup.dims.num_layers}",
        )
    if formats.kv == "int8" and setup.running.backend == "pytorch":
        yield _violation(
            setup,
            "kv",
            "the PyTorch backend has no key/value cache in INT8",
            "use --kv_cache_dtype fp8, or engines: --backend tensorrt",
        )
    least = KV_LEAST_SM.get(formats.kv, 0)
    if sm and sm < least and formats.kv != "nvfp4":
        yield _violation(
            setup,
            "kv",
            f"{setup.device.name if setup.device else 'the GPU'} has no kernels for a key/value cache in {formats.kv}",
            f"leave --kv_cache_dtype out, or use {gpus_with_sm(str(least))}",
        )
    yield from _attention(setup)
    form = FORMATS.get(formats.weights)
    if form is not None and setup.running.backend not in form.backends:
        yield _violation(
            setup,
            "weights",
            f"the {setup.running.backend} backend does not have {form.algo}",
            f"use --backend {form.backends[0]}, or another format",
        )
    if limits.max_seq_len <= limits.max_input_len and not setup.said.get(
        "max_input_len", "default"
    ).startswith("default"):
        yield _violation(
            setup,
            "max_input_len",
            f"max_input_len {limits.max_input_len} leaves no room for an answer in max_seq_len {limits.max_seq_len}",
            "max_seq_len is prompt and answer together",
            Severity.WARNING,
        )


def _attention(setup: Setup) -> Iterator[Violation]:
    """Yield a GPU that has no kernels for the attention of a backend."""
    device = setup.device
    if device is None or not lacks_fused_attention(device, setup.running.version):
        return
    if setup.running.backend == "pytorch" and "attn_backend" not in setup.said:
        yield _violation(
            setup,
            "gpu",
            f"the PyTorch backend has no attention kernels for {device.name} (compute capability {device.sm / 10:g})",
            f"use {gpus_with_sm('80')}, or an engine of an older release: --backend tensorrt --trtllm-version 0.15.0",
        )
    elif must_be_told(setup) and "fused_attention" in setup.said:
        yield _violation(
            setup,
            "gpu",
            f"fused attention has no kernels for {device.name} (compute capability {device.sm / 10:g}), and "
            f"{setup.running.version} refuses to build it",
            "build with trtllm-build --context_fmha disable; it is planned without",
            Severity.WARNING if is_assumed(setup, "fused_attention") else None,
        )


def _violation(setup: Setup, key: str, what: str, remedy: str, severity: Severity | None = None) -> Violation:
    where = setup.said.get(key, "the command line")
    return Violation(
        (Evidence(where, what),), {"what": what, "remedy": remedy}, severity=severity, confidence=0.9
    )
