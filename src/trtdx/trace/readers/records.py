"""Records of iterations (`/metrics`, `--iteration_log`) and of requests (`/perf_metrics`), as lists or JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtdx.trace.nouns import Iteration, RequestTimes
from trtdx.trace.readers.figures import count_from, mapping_from, number_from, time_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Record = dict[str, Any]


def iterations_from(records: Sequence[Record], path: str) -> Iterator[Iteration]:
    """Yield iterations from the executor's statistics (`jsonSerialization.cpp`, `base_worker.py`)."""
    for number, record in enumerate(records):
        if "iterLatencyMS" not in record:
            continue
        batch = mapping_from(record.get("inflightBatchingStats") or record.get("staticBatchingStats"))
        cache = mapping_from(record.get("kvCacheStats"))
        drafts = mapping_from(record.get("specDecodingStats"))
        host_ms = record.get("hostStepTimeMS", record["iterLatencyMS"])
        yield Iteration(
            index=count_from(record.get("iter", number)),
            rank=max(count_from(record.get("attentionDpRank")), 0),
            host_ms=number_from(host_ms),
            device_ms=number_from(record.get("gpuForwardTimeMS") or record.get("prevDeviceStepTimeMS")),
            scheduled=_count(batch, "numScheduledRequests"),
            context_requests=_count(batch, "numContextRequests"),
            context_tokens=_count(batch, "numCtxTokens"),
            generation_requests=_count(batch, "numGenRequests"),
            paused=max(_count(batch, "numPausedRequests"), 0),
            queued=_count(record, "numQueuedRequests"),
            active=_count(record, "numActiveRequests"),
            max_active=_count(record, "maxBatchSizeRuntime", "maxNumActiveRequests"),
            kv_used=_count(cache, "usedNumBlocks"),
            kv_max=_count(cache, "maxNumBlocks"),
            reused_blocks=_count(cache, "reusedBlocks"),
            missed_blocks=_count(cache, "missedBlocks"),
            max_tokens=_count(record, "maxNumTokensRuntime"),
            drafted=max(_count(drafts, "numDraftTokens"), 0),
            accepted=max(_count(drafts, "numAcceptedTokens"), 0),
            acceptance_length=number_from(drafts.get("acceptanceLength")),
            where=f"{path}: record {number}",
        )


def requests_from(records: Sequence[Record], path: str) -> Iterator[RequestTimes]:
    """Yield requests from what `/perf_metrics` answers; those that never got a token are left out."""
    for number, record in enumerate(records):
        metrics = mapping_from(record.get("perf_metrics"))
        times = mapping_from(metrics.get("timing_metrics"))
        needed = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
        if any(time_from(times.get(name)) is None for name in needed):
            continue
        blocks = mapping_from(metrics.get("kv_cache_metrics"))
        yield RequestTimes(
            name=str(record.get("request_id", number)),
            arrival=float(times["arrival_time"]),
            scheduled=float(times["first_scheduled_time"]),
            first_token=float(times["first_token_time"]),
            last_token=float(times["last_token_time"]),
            server_arrival=number_from(times.get("server_arrival_time")),
            server_first_token=number_from(times.get("server_first_token_time")),
            transfer_start=number_from(times.get("kv_cache_transfer_start")),
            transfer_end=number_from(times.get("kv_cache_transfer_end")),
            reused_blocks=_count(blocks, "num_reused_blocks"),
            missed_blocks=_count(blocks, "num_missed_blocks"),
            acceptance_rate=number_from(mapping_from(metrics.get("speculative_decoding")).get("acceptance_rate")),
            where=f"{path}: record {number}",
        )


def _count(record: Mapping[str, Any], *names: str) -> int:
    """Return the first of some counts that is told, or -1."""
    return next((count_from(record[name]) for name in names if time_from(record.get(name)) is not None), -1)
