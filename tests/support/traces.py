"""Traces written by tests: of a GPU in the schemas that Kineto and Nsight Systems document, since none can be made here."""

from __future__ import annotations

import json
import sqlite3


def span(name, start, duration, category="user_annotation", process=1, thread=1, **arguments):
    """Return one event as Kineto writes it."""
    event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": duration}
    return event | ({"args": arguments} if arguments else {})


def write_kineto(path, events, **head):
    """Write a Chrome trace with these events."""
    path.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": events}, indent=1))
    return path


def kernel_step(step, start, *, kernels, kernel_us, gap_us, graph=False, requests=8, prefix=""):
    """Return a decode step on a GPU: launches on the host, kernels behind them; with a graph only one launch."""
    length = kernels * (kernel_us + gap_us)
    events = [span(f"[Executor] _forward_step {step}: 0 ctx reqs, {requests} gen reqs", start, length)]
    link = step * 10_000
    if graph:
        length = kernels * kernel_us + 20
        events = [span(f"[Executor] _forward_step {step}: 0 ctx reqs, {requests} gen reqs", start, length)]
        events.append(span("cudaGraphLaunch", start + 1, 8, "cuda_runtime", correlation=link + 1))
    at = start + 10
    for number in range(kernels):
        correlation = link + 1 + (0 if graph else number)
        if not graph:
            events.append(span("cudaLaunchKernel", at - 8, 5, "cuda_runtime", correlation=correlation))
        name = f"{prefix}gemm_{number % 4}"
        events.append(span(name, at, kernel_us, "kernel", process=0, thread=7, correlation=correlation))
        at += kernel_us + (0 if graph else gap_us)
    return events, start + length


def write_nsight(path, *, kernels, copies=(), calls=(), ranges=()):
    """Write an SQLite export in the documented schema: rows are (start, end, name, link), times in nanoseconds."""
    texts: dict[str, int] = {}

    def text(name):
        return texts.setdefault(name, len(texts) + 1)

    process = 77 << 24
    with sqlite3.connect(path) as base:
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER)"
        )
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER)"
        )
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
        )
        base.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, domainId INTEGER)"
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,7,?,?,?,?)",
            [(a, b, link, process, text(name), text(name)) for a, b, name, link in kernels],
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,0,7,?,?,4096,?)",
            [(a, b, link, process, kind) for a, b, kind, link in copies],
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)",
            [(a, b, process + 1, link, text(name)) for a, b, name, link in calls],
        )
        base.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,NULL,?,0)", [(a, b, name, process + 1) for a, b, name in ranges]
        )
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany("INSERT INTO StringIds VALUES (?,?)", [(number, name) for name, number in texts.items()])
    return path
