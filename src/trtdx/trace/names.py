"""What a span's name tells: its phase, its module, the step it is, and a cause of lost time."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from trtdx.trace.nouns import SpanKind, SpanName, StepWords


class CausePattern(NamedTuple):
    """Names that stand for one cause; a specific one outranks what it calls."""

    code: str
    pattern: re.Pattern[str]
    is_specific: bool = True


# NVTX ranges and annotations are TensorRT-LLM's own (facts: _torch/pyexecutor at 1.2.1 and 1.3.0rc22), the others are
# Python functions as torch's profiler writes them with stacks: "file.py(12): function", "<built-in function sleep>".
CAUSE_PATTERNS = tuple(
    CausePattern(code, re.compile(pattern), is_specific)
    for code, pattern, is_specific in (
        ("DX1501", r"^Python GC\b|<built-in function collect>|\bgc\.py\b", True),
        ("DX1502", r"(?i)tokeniz(?:e|ing|ation|er)|apply_chat_template|chat_stream_post_processor", True),
        ("DX1503", r"(?i)_compile\.compile_inner|dynamo_timed|CompileFx|cuModuleLoad|triton[/.]compiler|nvrtcCompile|cudaGraphInstantiate|\bautotun", True),
        ("DX1504", r"Guided?Decoder\.|(?i:xgrammar|llguidance|outlines)", True),
        ("DX1505", r"(?i)logits?_?(?:post_)?processors?\b", True),
        ("DX1506", r"_fetch_new_requests|_?broadcast_(?:new_)?requests", True),
        ("DX1507", r"_handle_responses|_enqueue_responses|handle_response\b|await_response", True),
        ("DX1508", r"_prepare_inputs|_prepare_tp_inputs", True),
        ("DX1509", r"^_schedule$|prepare_resources|update_resources", True),
        ("DX1510", r"_recv_disagg_gen_cache|_send_disagg_ctx_cache|_send_kv_async", True),
        ("DX1511", r"(?i)pickle|<built-in function (?:dumps|loads)>|deepcopy|copy\.py\(\d+\)|json/(?:__init__|encoder|decoder|scanner)\.py|msgpack|zmq", False),
        ("DX1512", r"<built-in method (?:read|write|readinto|flush|close|__exit__) of _io\.|<built-in function (?:open|fsync|read|write|pread|unlink|remove|stat)>|torch/serialization\.py|safetensors", False),
        ("DX1513", r"logging/__init__\.py|<built-in function print>|loguru|logger\.py", True),
        ("DX1514", r"<built-in function sleep>", False),
        ("DX1515", r"<built-in method acquire of _thread|threading\.py\(\d+\): (?:wait|join|acquire)|<built-in function start_new_thread>|queue\.py\(\d+\): get", False),
        ("DX1516", r"(?i)detect_anomaly|assert_all_finite|nan_?check|check_?(?:for_?)?(?:nan|inf|finite)|has_?nan|aten::is(?:nan|finite|inf)$|dump_tensor|debug_?dump|isfinite_all", True),
    )
)  # fmt: skip
PHASES = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"_sample_async|fast_greedy_sample|sample_batched_by_strategy|_write_finish_reasons|_update_requests|decoderStepAsync|decoderSync|^sampl", "sampling"),
        (r"_fetch_new_requests|broadcast_(?:new_)?requests|^_schedule$|prepare_resources|update_resources|_prepare_inputs|_pad_attention_dp", "scheduling"),
        (r"_recv_disagg|_send_disagg|_send_kv_async", "transfer"),
        (r"_handle_responses|_enqueue_responses|handle_response|post_processor", "responses"),
        (r"executeContext", "prefill"),
    )
)  # fmt: skip
FORWARD_STEP = re.compile(
    r"\[Executor\] _forward_step (\d+): (\d+) ctx reqs, (?:(\d+) ctx tokens, )?(\d+) gen reqs"
)  # 1.2.1, and with the tokens 1.3.0rc22
PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)$")
COMMUNICATION = re.compile(
    r"(?i)nccl(?:Dev)?Kernel|ncclKernel|^nccl:|^gloo:|^mpi:|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|allReduceKernel|moeAllToAll"
)
COPY_OPERATORS = frozenset({
    "aten::copy_", "aten::_to_copy", "aten::to", "aten::clone", "aten::contiguous", "aten::cat", "aten::item",
    "aten::_local_scalar_dense", "aten::is_nonzero", "aten::index_copy_", "aten::index_select", "aten::stack", "aten::repeat",
    "MemcpyToHost", "MemcpyFromHost", "Memcpy", "Transpose", "Cast", "Concat",
})  # fmt: skip
# What these call inside is theirs: the lookup of an embedding selects rows, a drawn sample reads a value back.
WHOLE_OPERATORS = frozenset({"aten::embedding", "aten::multinomial", "aten::allclose", "aten::equal"})
SYNC_CALLS = re.compile(r"Synchronize|cudaMemcpy$|cuMemcpy(?:DtoH|HtoD)(?:_v2)?$|EventQuery")
_LAYERWISE = re.compile(r"^\{.*'Module':")
_NESTED_MODULE = re.compile(r"^nn\.Module: (.+)$")
_LAYER_IN_NAME = re.compile(r"(?:^|[/.\s\[(])((?:[\w-]+[/.])*?(?:layers|h|blocks?)[./]\d+(?:[/.][\w.-]+)*)")


def name_from_text(text: str, kind: SpanKind) -> SpanName:
    """Return what a name tells."""
    if kind not in (SpanKind.HOST, SpanKind.OPERATOR, SpanKind.LAUNCH, SpanKind.SYNC):
        return SpanName(text, kind, operator=text)
    pattern = next((known for known in CAUSE_PATTERNS if known.pattern.search(text)), None)
    if kind is not SpanKind.HOST:
        return SpanName(
            text,
            kind,
            operator=text,
            cause=pattern.code if pattern else "",
            is_specific=bool(pattern and pattern.is_specific),
        )
    step = step_from_name(text)
    module, is_nested = module_from_annotation(text)
    return SpanName(
        text,
        kind,
        phase=(step.phase if step else "") or phase_from_name(text),
        module=module,
        is_nested_module=is_nested,
        cause=pattern.code if pattern and not module else "",
        is_specific=bool(pattern and pattern.is_specific),
        step=step,
    )


def phase_from_name(text: str) -> str:
    """Return the phase that a range of the executor belongs to; empty for other names."""
    return next((phase for pattern, phase in PHASES if pattern.search(text)), "")


def step_from_name(text: str) -> StepWords | None:
    """Return what a step's name says; None for the names of other things."""
    if match := FORWARD_STEP.search(text):
        index, requests, tokens, generation = match.groups()
        return StepWords(int(index), int(requests), -1 if tokens is None else int(tokens), int(generation))
    if match := PROFILER_STEP.match(text):
        return StepWords(int(match[1]))
    return None


def module_from_annotation(text: str) -> tuple[str, bool]:
    """Return a module's path, and whether it is only a class below the modules around it."""
    if text.startswith("module:"):
        return text.removeprefix("module:"), False
    if match := _NESTED_MODULE.match(text):
        return match[1], True
    if _LAYERWISE.match(text):  # layerwise_nvtx_marker.py writes the repr of a dict
        try:
            return str(ast.literal_eval(text).get("Module", "")), False
        except (ValueError, SyntaxError):
            return "", False
    return "", False


def module_from_node(text: str) -> str:
    """Return the path of the module that a node of ONNX or a layer of TensorRT belongs to."""
    if text.startswith("/"):  # torch's exporter: /model/layers.3/mlp/gate_proj/MatMul
        *modules, _ = text.strip("/").split("/")
        return ".".join(modules).removeprefix("model.")
    if match := _LAYER_IN_NAME.search(text):
        parts = match[1].replace("/", ".").split(".")
        return ".".join(parts[:-1] if len(parts) > 2 and not parts[-1].isdigit() else parts).removeprefix("model.")
    return ""
