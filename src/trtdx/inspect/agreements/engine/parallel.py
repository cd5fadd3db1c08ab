"""What must divide for a model to be cut over ranks, with the sizes that would work."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trtdx.inspect.agreements.agreement import make_agreement
from trtdx.inspect.agreements.lineage import is_older_release, loading_servers
from trtdx.inspect.agreements.serving import names_artifact, served_models
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment

PARALLEL_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)  # of which those that work are named
UNEVEN_STAGES_SINCE = "0.19.0rc0"  # mapping.py: before, pp_layers left the remainder out
# What a rank's slice must be a multiple of: blocks of FP8 scales, the packing of FP4, groups of INT4 scales.
SCALE_ALIGNMENT = {
    "FP8_BLOCK_SCALES": 128,
    "NVFP4": 32,
    "W4A8_NVFP4_FP8": 32,
}  # experts in MXFP4 are filled up to whole blocks on each rank (fused_moe/quantization.py, 1.1.0 to 1.3.0rc21)
GROUPED_ALGORITHMS = ("W4A16_AWQ", "W4A8_AWQ", "W4A16_GPTQ", "W8A16_GPTQ")
# Embeddings whose converters do not fill up a vocabulary that does not divide (1.2.1: falcon, gemma).
NEVER_PADDED = ("Falcon", "RW", "Gemma")


MAPPED = ("checkpoint|engine|llm-args|command",)
CUT_SIDES = ("hf|checkpoint|engine", *MAPPED)  # a model alone is not cut yet


class ModelCut(NamedTuple):
    """A model and the artifact that says over how many ranks it is cut."""

    model: Artifact
    mapping: Artifact

    def parallel_size(self, name: str) -> int:
        return self.mapping.integer(name) or 1

    @property
    def served_name(self) -> str:
        """Return the model as a command names it; capitals where only what was made from it is at hand."""
        named = self.mapping.text("runtime.model") or (self.model.path if self.model.kind == "hf" else "")
        return shlex.quote(named) if named else "MODEL"

    @property
    def is_pytorch(self) -> bool:
        return self.mapping.kind in ("llm-args", "command")


def model_cuts(deployment: Deployment) -> Iterator[ModelCut]:
    """Yield every model that is cut: engines and checkpoints by themselves, models by who serves them."""
    built = [artifact for artifact in deployment.of_kinds("engine", "checkpoint") if artifact.has("num_heads")]
    yield from (ModelCut(artifact, artifact) for artifact in built)
    for server, model in served_models(deployment):
        if server.text("runtime.backend") not in ("", "pytorch"):
            continue
        if not built or names_artifact(server, "runtime.model", model):  # else it serves what was made from the model
            yield ModelCut(model, server)


def parallel_divisors(number: int) -> list[int]:
    return [size for size in PARALLEL_SIZES if number % size == 0]


@make_agreement("DX096", "hf", "checkpoint", "engine", "llm-args", "command", needs=CUT_SIDES)
def tensor_parallel(deployment: Deployment) -> Iterator[Violation]:
    """Heads, key/value heads and inner sizes can be dealt out to the ranks of tensor parallelism."""
    reported: list[tuple[int, ...]] = []
    for cut in model_cuts(deployment):
        tp_size = cut.parallel_size("tp_size")
        broken = [name for name in _cut_dimensions(cut) if not _divides_evenly(cut, name, tp_size)]
        key = (tp_size, *(cut.model.get(name) for name in broken))
        if not broken or key in reported:
            continue
        reported.append(key)
        works = [
            size for size in PARALLEL_SIZES if all(_divides_evenly(cut, name, size) for name in _cut_dimensions(cut))
        ]
        best = max((size for size in works if tp_size % size == 0), default=1)
        yield Violation(
            cut.model.evidence(*broken) + cut.mapping.evidence("tp_size"),
            {
                "what": join_words([f"{name} {cut.model.get(name)}" for name in broken]),
                "tp_size": tp_size,
                "works": join_words(works, "or"),
                "best": best,
                "rest": tp_size // best,
                "model": cut.served_name,
            },
        )


def _cut_dimensions(cut: ModelCut) -> list[str]:
    """Return the dimensions that are cut; attention data parallelism cuts none, MLA shares its latent keys."""
    if cut.mapping.get("attention_dp") is True:
        return []
    names = ["num_heads"]
    if not cut.model.has("kv_lora_rank"):
        names.append("num_kv_heads")
        # Models with experts may cut their dense layers otherwise (DeepSeek takes a common divisor).
        names += [] if cut.model.has("num_experts") else ["intermediate_size"]
    return [name for name in names if (cut.model.integer(name) or 0) > 0]


def _divides_evenly(cut: ModelCut, name: str, tp_size: int) -> bool:
    """Return whether a dimension divides; fewer key/value heads than ranks are duplicated."""
    number = cut.model.integer(name) or 0
    if name == "num_kv_heads" and number < tp_size:
        return tp_size % number == 0
    return number % tp_size == 0


@make_agreement("DX850", "hf", "checkpoint", "engine", "llm-args", "command", needs=CUT_SIDES)
def expert_parallel(deployment: Deployment) -> Iterator[Violation]:
    """Experts can be dealt out to the ranks of expert parallelism."""
    for cut in model_cuts(deployment):
        count, ep_size = cut.model.integer("num_experts"), cut.parallel_size("moe_ep_size")
        balanced = "load_balancer" in str(cut.mapping.family_facts("option"))  # EPLB deals out slots instead
        if count and count % ep_size and not balanced:
            yield Violation(
                cut.model.evidence("num_experts") + cut.mapping.evidence("moe_ep_size"),
                {
                    "experts": count,
                    "ep_size": ep_size,
                    "works": join_words(parallel_divisors(count), "or"),
                    "tp_size": cut.parallel_size("tp_size"),
                    "best": math.gcd(count, cut.parallel_size("tp_size")),
                    "model": cut.served_name,
                },
            )
            return


@make_agreement("DX858", "hf", "checkpoint", "engine", "llm-args", "command", needs=CUT_SIDES)
def expert_inner_size(deployment: Deployment) -> Iterator[Violation]:
    """The inner size of an expert can be cut by the tensor parallelism of the experts."""
    for cut in model_cuts(deployment):
        size = cut.model.integer("moe_intermediate_size")
        ways = _expert_pieces(cut)
        if size and ways > 1 and size % ways:
            works = parallel_divisors(size)
            yield Violation(
                cut.model.evidence("moe_intermediate_size") + cut.mapping.evidence("tp_size", "moe_ep_size"),
                {
                    "size": size,
                    "ways": ways,
                    "works": join_words(works, "or"),
                    **_expert_sizes_that_work(cut, works),
                },
            )
            return


def _expert_sizes_that_work(cut: ModelCut, works: list[int]) -> dict[str, object]:
    """Return the expert parallelism that leaves each expert in one of the numbers of pieces that work."""
    tp_size, count = cut.parallel_size("tp_size"), cut.model.integer("num_experts") or 1
    fitting = [size for size in parallel_divisors(tp_size) if count % size == 0 and tp_size // size in works]
    return {"tp_size": tp_size, "ep_size": fitting[0] if fitting else tp_size, "model": cut.served_name}


def _expert_pieces(cut: ModelCut) -> int:
    """Return over how many ranks an expert is cut: stated, or what expert parallelism leaves of tp."""
    stated = cut.mapping.integer("moe_tp_size")
    if stated:
        return stated
    tp_size, ep_size = cut.parallel_size("tp_size"), cut.parallel_size("moe_ep_size")
    return tp_size // ep_size if tp_size % ep_size == 0 else 1


@make_agreement("DX465", "checkpoint", "engine", "llm-args", "command", needs=MAPPED)
def world_size_product(deployment: Deployment) -> Iterator[Violation]:
    """The ranks are tensor times pipeline times context parallelism."""
    for artifact in deployment.of_kinds("checkpoint", "engine", "llm-args", "command"):
        sizes = [artifact.integer(name) or 1 for name in ("tp_size", "pp_size", "cp_size")]
        ranks = artifact.integer("world_size")
        if ranks is None or not artifact.has("tp_size") or ranks == math.prod(sizes):
            continue
        product = math.prod(sizes)
        yield Violation(
            artifact.evidence("world_size", "tp_size", "pp_size", "cp_size"),
            {
                "what": f"world_size {ranks} is not "
                f"tp_size {sizes[0]} * pp_size {sizes[1]} * cp_size {sizes[2]} = {product}",
                "remedy": f"world_size {product}, and as many ranks",
                "sizes": f"world_size={product}, tp_size={sizes[0]}, pp_size={sizes[1]}, cp_size={sizes[2]}",
            },
        )


@make_agreement("DX465", "checkpoint", "engine", "llm-args", "command", needs=MAPPED)
def expert_sizes_product(deployment: Deployment) -> Iterator[Violation]:
    """The two ways of cutting experts make up the tensor parallelism together."""
    for artifact in deployment.of_kinds("checkpoint", "engine", "llm-args", "command"):
        tp_size, moe_tp, moe_ep = (artifact.integer(name) for name in ("tp_size", "moe_tp_size", "moe_ep_size"))
        if tp_size is None or (moe_tp is None and moe_ep is None) or (artifact.integer("cp_size") or 1) > 1:
            continue
        what = _expert_size_fault(tp_size, moe_tp, moe_ep)
        if what and not artifact.has("option.moe_cluster_parallel_size"):
            best = math.gcd(moe_ep or 1, tp_size)
            yield Violation(
                artifact.evidence("tp_size", "moe_tp_size", "moe_ep_size"),
                {
                    "what": what,
                    "remedy": f"moe_ep_size {best} with moe_tp_size {tp_size // best}",
                    "sizes": f"world_size={tp_size}, tp_size={tp_size}, moe_ep_size={best}",
                },
            )


def _expert_size_fault(tp_size: int, moe_tp: int | None, moe_ep: int | None) -> str:
    """Return what is wrong; where only one size is stated, the other is what it leaves of tp_size."""
    if moe_tp and moe_ep:
        words = f"moe_tp_size {moe_tp} * moe_ep_size {moe_ep} is not tp_size {tp_size}"
        return "" if moe_tp * moe_ep == tp_size else words
    name, size = ("moe_tp_size", moe_tp) if moe_tp else ("moe_ep_size", moe_ep or 1)
    return "" if tp_size % (size or 1) == 0 else f"{name} {size} does not divide tp_size {tp_size}"


@make_agreement("DX851", "checkpoint", "engine")
def even_stages(deployment: Deployment) -> Iterator[Violation]:
    """Layers divide by the stages of the pipeline where a release cannot do otherwise.

    Before 0.19 every stage takes layers // pp_size and the rest is in no stage (`Mapping.pp_layers`).
    """
    for artifact in deployment.of_kinds("engine", "checkpoint"):
        layers, stages = artifact.integer("num_layers"), artifact.integer("pp_size") or 1
        if layers is None or layers % stages == 0:
            continue
        if is_older_release(artifact.text("version"), UNEVEN_STAGES_SINCE):
            yield Violation(
                artifact.evidence("num_layers", "pp_size", "version"),
                {
                    "layers": layers,
                    "pp_size": stages,
                    "lost": layers % stages,
                    "version": artifact.text("version"),
                    "works": join_words(parallel_divisors(layers), "or"),
                },
            )
            return


@make_agreement("DX852", "hf", "checkpoint", "engine", "llm-args", "command", needs=CUT_SIDES)
def stages_with_layers(deployment: Deployment) -> Iterator[Violation]:
    """Every stage of the pipeline has a layer."""
    for cut in model_cuts(deployment):
        layers, stages = cut.model.integer("num_layers"), cut.parallel_size("pp_size")
        if layers and stages > layers:
            yield Violation(
                cut.model.evidence("num_layers") + cut.mapping.evidence("pp_size"),
                {"layers": layers, "pp_size": stages, "model": cut.served_name},
            )
            return


@make_agreement("DX853", "hf", "checkpoint", "engine", "llm-args", "command", needs=CUT_SIDES)
def context_parallel(deployment: Deployment) -> Iterator[Violation]:
    """Heads can be dealt out to tensor and context parallelism together (Ulysses, the default kind)."""
    for cut in model_cuts(deployment):
        heads, tp_size, cp_size = (
            cut.model.integer("num_heads"),
            cut.parallel_size("tp_size"),
            cut.parallel_size("cp_size"),
        )
        if not heads or cp_size == 1 or heads % tp_size or _is_not_ulysses(cut.mapping):
            continue
        if heads % (tp_size * cp_size):
            works = [size for size in parallel_divisors(heads) if heads % (tp_size * size) == 0]
            yield Violation(
                cut.model.evidence("num_heads") + cut.mapping.evidence("tp_size", "cp_size"),
                {"heads": heads, "tp_size": tp_size, "cp_size": cp_size, "works": join_words(works, "or")},
            )
            return


def _is_not_ulysses(mapping: Artifact) -> bool:
    """Return whether another kind of context parallelism is asked for than Ulysses."""
    cp_settings = [
        str(fact.value) for name, fact in mapping.family_facts("option").items() if name.startswith("cp_config")
    ]
    return any(kind in " ".join(cp_settings).upper() for kind in ("HELIX", "STAR", "RING"))


@make_agreement("DX854", "checkpoint", "engine", "llm-args", "command", needs=MAPPED)
def tensor_parallel_in_node(deployment: Deployment) -> Iterator[Violation]:
    """Tensor parallelism stays within one machine."""
    for artifact in deployment.of_kinds("engine", "llm-args", "command"):
        tp_size, here = artifact.integer("tp_size"), artifact.integer("gpus_per_node")
        if tp_size and here and tp_size > here:
            yield Violation(
                artifact.evidence("tp_size", "gpus_per_node"),
                {"tp_size": tp_size, "gpus": here, "pp_size": math.ceil(tp_size / here)},
                confidence=0.8,
            )
            return


@make_agreement("DX856", "checkpoint", "engine")
def embedding_parallel(deployment: Deployment) -> Iterator[Violation]:
    """An embedding that is cut divides by the ranks along the axis it is cut."""
    for artifact in deployment.of_kinds("engine", "checkpoint"):
        tp_size = artifact.integer("tp_size") or 1
        name = "hidden_size" if artifact.integer("embedding_sharding_dim") == 1 else "vocab_size"
        size = artifact.integer(name)
        if artifact.get("use_parallel_embedding") is not True or not size or size % tp_size == 0:
            continue
        if name == "vocab_size" and not artifact.text("architecture").startswith(NEVER_PADDED):
            continue
        yield Violation(
            artifact.evidence(name, "tp_size", "use_parallel_embedding"),
            {
                "what": name,
                "size": size,
                "tp_size": tp_size,
                "works": join_words(parallel_divisors(size), "or"),
                "other_axis": 0 if name == "hidden_size" else 1,
            },
        )
        return


@make_agreement("DX857", "llm-args", "command")
def attention_data_parallel(deployment: Deployment) -> Iterator[Violation]:
    """Attention data parallelism has ranks to spread requests over, and what builds on it is on with it."""
    for server in loading_servers(deployment):
        if server.get("attention_dp") is True and server.integer("tp_size") == 1:
            yield Violation(
                server.evidence("attention_dp", "tp_size"),
                {"what": "attention data parallelism is on, but tp_size is 1"},
                Severity.NOTE,
            )
        elif server.get("option.enable_lm_head_tp_in_adp") is True and not server.get("attention_dp"):
            yield Violation(
                server.evidence("option.enable_lm_head_tp_in_adp", "attention_dp"),
                {"what": "enable_lm_head_tp_in_adp is on, but attention data parallelism is off"},
                Severity.ERROR,
            )


@make_agreement("DX860", "hf", "llm-args", "command")
def scale_blocks(deployment: Deployment) -> Iterator[Violation]:
    """A rank's slice of quantised weights ends where a block of scales ends."""
    for cut in model_cuts(deployment):
        unit = SCALE_ALIGNMENT.get(cut.model.text("quant.algo"), 0)
        yield from _misaligned_slices(cut, unit)


@make_agreement("DX097", "hf", "llm-args", "command")
def scale_groups(deployment: Deployment) -> Iterator[Violation]:
    """A rank's slice of INT4 weights is a whole number of groups.

    Engines are left out: their layers fill the slice up (WeightOnlyGroupwiseQuant*Linear, 1.2.1).
    """
    for cut in model_cuts(deployment):
        grouped = cut.model.text("quant.algo") in GROUPED_ALGORITHMS
        yield from _misaligned_slices(cut, (cut.model.integer("quant.group_size") or 0) if grouped else 0)


def _misaligned_slices(cut: ModelCut, block_size: int) -> Iterator[Violation]:
    """Yield the first inner size of which a rank's share is no multiple of a unit."""
    if not cut.is_pytorch or block_size < 2 or cut.mapping.get("attention_dp") is True:
        return
    for name, ways in (
        ("moe_intermediate_size", _expert_pieces(cut)),
        ("intermediate_size", cut.parallel_size("tp_size")),
    ):
        size = cut.model.integer(name)
        dense_beside_experts = name == "intermediate_size" and cut.model.has("num_experts")
        if not size or ways == 1 or size % ways or dense_beside_experts or (size // ways) % block_size == 0:
            continue
        works = [pieces for pieces in PARALLEL_SIZES if size % pieces == 0 and (size // pieces) % block_size == 0]
        yield Violation(
            cut.model.evidence(name, "quant.algo") + cut.mapping.evidence("tp_size"),
            {
                "what": name,
                "size": size,
                "ways": ways,
                "share": size // ways,
                "unit": block_size,
                "algo": cut.model.text("quant.algo"),
                "works": join_words(works, "or") or "none",
                "command": _working_cut_command(cut, name, works),
            },
            confidence=0.85,
        )
        return


def _working_cut_command(cut: ModelCut, name: str, works: list[int]) -> str:
    """Return the command that cuts a dimension in a number of pieces that works."""
    tp_size = cut.parallel_size("tp_size")
    if name == "moe_intermediate_size":
        return f"trtllm-serve model --tp_size {tp_size} --ep_size {_expert_sizes_that_work(cut, works)['ep_size']}"
    best = max((size for size in works if tp_size % size == 0), default=1)
    return f"trtllm-serve model --tp_size {best} --pp_size {tp_size // best}"
