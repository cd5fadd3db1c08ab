"""Reports of benchmarks: trtllm-bench, benchmark_serving.py, AIPerf and GenAI-Perf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.trace.nouns import BenchmarkFigures
from trtdx.trace.readers.figures import mapping_from, number_from

if TYPE_CHECKING:
    from collections.abc import Mapping


def figures_from(document: Mapping[str, Any], path: str) -> BenchmarkFigures | None:
    """Return the figures of a report, or None where it is none that is known."""
    if "performance" in document and "request_info" in document:
        return _from_trtllm_bench(document, path)
    if "mean_ttft_ms" in document:
        return _from_benchmark_serving(document, path)
    if isinstance(document.get("time_to_first_token") or document.get("request_latency"), dict):
        return _from_aiperf(document, path)
    return None


def _from_trtllm_bench(document: Mapping[str, Any], path: str) -> BenchmarkFigures:
    world, requests = mapping_from(document.get("world_info")), mapping_from(document["request_info"])
    performance = mapping_from(document["performance"])
    streaming = mapping_from(document.get("streaming_metrics"))
    latency, total = _figure(performance, "avg_request_latency_ms"), _figure(performance, "total_latency_ms")
    count = int(_figure(requests, "num_requests"))
    return BenchmarkFigures(
        tool="trtllm-bench",
        path=path,
        ttft_ms=_figure(streaming, "avg_ttft_ms"),
        ttft_p99_ms=_figure(mapping_from(streaming.get("ttft_percentiles")), "p99"),
        tpot_ms=_figure(streaming, "avg_tpot_ms"),
        request_latency_ms=latency,
        output_tokens_per_s=_figure(performance, "system_output_throughput_tok_s"),
        requests=count,
        input_length=_figure(requests, "avg_input_length"),
        output_length=_figure(requests, "avg_output_length"),
        concurrency=count * latency / total if min(count, latency, total) > 0 else -1,
        tp=int(_figure(world, "tp_size")),
        pp=int(_figure(world, "pp_size")),
        max_batch_size=int(_figure(world, "max_batch_size")),
    )


def _from_benchmark_serving(document: Mapping[str, Any], path: str) -> BenchmarkFigures:
    return BenchmarkFigures(
        tool="benchmark_serving.py",
        path=path,
        ttft_ms=_figure(document, "mean_ttft_ms"),
        ttft_p99_ms=_figure(document, "p99_ttft_ms"),
        tpot_ms=_figure(document, "mean_tpot_ms"),
        request_latency_ms=_figure(document, "mean_e2el_ms"),
        output_tokens_per_s=_figure(document, "output_throughput"),
        requests=int(_figure(document, "completed")),
        concurrency=_figure(document, "max_concurrency"),
    )


def _from_aiperf(document: Mapping[str, Any], path: str) -> BenchmarkFigures:
    def figure(metric: str, name: str = "avg") -> float:
        value = document.get(metric)
        return _figure(value, name) * _to_ms(value) if isinstance(value, dict) else -1

    return BenchmarkFigures(
        tool="AIPerf or GenAI-Perf",
        path=path,
        ttft_ms=figure("time_to_first_token"),
        ttft_p99_ms=figure("time_to_first_token", "p99"),
        tpot_ms=figure("inter_token_latency"),
        request_latency_ms=figure("request_latency"),
        output_tokens_per_s=figure("output_token_throughput"),
        input_length=figure("input_sequence_length"),
        output_length=figure("output_sequence_length"),
    )


def _to_ms(metric: Mapping[str, Any]) -> float:
    return {"ns": 1e-6, "us": 1e-3, "s": 1e3, "sec": 1e3}.get(str(metric.get("unit", "ms")), 1.0)


def _figure(record: Mapping[str, Any], name: str) -> float:
    return number_from(record.get(name))
