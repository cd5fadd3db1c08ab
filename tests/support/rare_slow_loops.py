"""More slownesses for the loop of `slow_loops`: thought up without a look at what finds them, to measure that.

Each has the codes that a person would accept as the answer; the first is the best one.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import logging
import queue
import re
import threading
import time
import zlib
from pathlib import Path

import torch  # noqa: TID253
from torch import nn  # noqa: TID253
from torch.profiler import record_function  # noqa: TID253

from support.slow_loops import (
    BATCH,
    HIDDEN,
    PLANTED_S,
    Decoder,
    annotate_modules,
    in_hook,
    long_prefill,
    skewed_experts,
    small_chunks,
    spin,
)

REQUESTS = [{"id": number, "tokens": list(range(40)), "state": {"text": "x" * 50}} for number in range(120)]
TEXT = b"".join(b"token %d " % number for number in range(60_000))


def encode_json(step):
    for _ in range(4):
        json.loads(json.dumps(REQUESTS))


def compress_text(step):
    zlib.compress(TEXT, 3)


def hash_prompts(step):
    for _ in range(12):
        hashlib.sha256(TEXT).digest()


def copy_requests(step):
    copy.deepcopy(REQUESTS[:30])


def read_file(step):
    with Path(torch.__file__).parent.joinpath("lib/libtorch_python.so").open("rb") as file:
        while file.read(1 << 16):
            pass


def log_to_file(step):
    logger = logging.getLogger("planted-file")
    if not logger.handlers:
        logger.addHandler(logging.FileHandler("/dev/null"))
        logger.propagate = False
    for number in range(300):
        logger.error("request %d of %d", number, step)


def decode_text(step):
    pieces = re.compile(r"token (\d+)")
    until = time.perf_counter() + PLANTED_S
    while time.perf_counter() < until:
        "".join(match.group(1) for match in pieces.finditer("token 12 " * 300))


def wait_for_queue(loop):
    loop.stacks = True
    answers: queue.Queue[int] = queue.Queue()

    def answer():
        time.sleep(PLANTED_S)
        answers.put(1)

    def act(step):
        with loop.cost():
            threading.Thread(target=answer).start()
            answers.get(timeout=5)

    loop.hooks["loop"] = act


def collect_now_and_then(loop):
    opened = []
    gc.freeze()
    heap = [[number] for number in range(150_000)]
    loop.steps = 16

    def mark(phase, info):
        if phase == "start":
            opened.append((record_function("Python GC").__enter__(), time.perf_counter()))
        elif opened:
            range_, begin = opened.pop()
            loop.planted_s += time.perf_counter() - begin
            range_.__exit__(None, None, None)

    def act(step):
        if step % 3 == 1:
            gc.callbacks.append(mark)
            gc.collect()
            gc.callbacks.remove(mark)
        heap.append([step])
        if step == loop.steps - 1:
            gc.unfreeze()

    loop.hooks["respond"] = act


def compile_three_times(loop):
    function = torch.compile(lambda x: torch.relu(x) * 2 + 1, backend="eager", dynamic=False)
    torch._dynamo.reset()
    loop.steps = 12

    def act(step):
        rows = torch.randn(3 + step // 4, 4)
        with loop.cost():
            function(rows)

    loop.hooks["forward"] = act


def check_for_nan(loop):
    """Every layer's output is checked, as a debug build does."""

    def act(x):
        with record_function("check_finite"), loop.cost():
            for _ in range(40):
                if not torch.isfinite(x).all():
                    raise ValueError
        return x

    for layer in loop.model.layers:
        layer.extra = act


def compare_floats(loop):
    values = torch.randn(500)

    def act(step):
        with loop.cost():
            sum(float(value) for value in values)

    loop.hooks["sample"] = act


def reorder_cache(loop):
    cache = torch.randn(BATCH, 40, 768)
    order = torch.arange(BATCH).flip(0)

    def act(step):
        nonlocal cache
        with loop.cost():
            for _ in range(6):
                cache = cache.index_select(0, order)

    loop.hooks["forward"] = act


def clone_cache(loop):
    cache = torch.randn(500, 2000)

    def act(step):
        with loop.cost():
            for _ in range(6):
                cache.clone()

    loop.hooks["forward"] = act


def halve_weights(loop):
    def act(x, layer):
        with loop.cost():
            for _ in range(4):
                layer.mlp.up.weight.to(torch.bfloat16).to(torch.float32)
        return x

    for layer in loop.model.layers:
        layer.extra = lambda x, layer=layer: act(x, layer)


def sample_each_request(loop):
    logits = torch.randn(BATCH, 8000)

    def act(step):
        with loop.cost():
            for row in logits:
                values, places = torch.topk(torch.softmax(row, -1), 2000)
                places[torch.multinomial(values, 1)]

    loop.hooks["sample"] = act


def slow_first_layer(loop):
    def act(x):
        with loop.cost():
            scores = torch.softmax(x.repeat(24, 1) @ x.repeat(24, 1).t(), -1)
            return x + (scores @ x.repeat(24, 1))[: len(x)]

    loop.model.layers[0].extra = act


def sleep_in_layer(loop):
    def act(x):
        with loop.cost():
            time.sleep(PLANTED_S)
        return x

    loop.model.layers[2].extra = act


def two_popular_experts(loop):
    skewed_experts(loop)
    for layer in loop.model.layers:
        layer.mlp.routing = [0, 256, 0, 256, 0, 0, 0, 0]
        for expert in (1, 3):
            forward = type(layer.mlp.experts[expert]).forward

            def timed(x, part=layer.mlp.experts[expert], forward=forward):
                with loop.cost(6 / 8 if len(x) else 0):
                    return forward(part, x)

            layer.mlp.experts[expert].forward = timed


def growing_history(loop):
    """The whole history is gone through in Python in each step."""
    loop.steps = 16
    costs = []

    def act(step):
        begin = time.perf_counter()
        spin(0.001 * (step + 1))
        costs.append(time.perf_counter() - begin)
        loop.planted_s = sum(costs) - min(costs) * len(costs)

    loop.hooks["prepare"] = act


def host_stall_now_and_then(loop):
    loop.steps = 24

    def act(step):
        if step % 6 == 4:
            with loop.cost():
                spin(0.025)

    loop.hooks["loop"] = act


def cold_host(loop):
    loop.steps = 16

    def act(step):
        if step == 0:
            with loop.cost():
                spin(0.05)

    loop.hooks["forward"] = act


def two_long_prompts(loop):
    long_prefill(loop)
    loop.steps = 26
    loop.context_tokens = lambda step: 600 if step in (7, 17) else 0
    decode, long = [], []

    def act(loop, step, x):
        begin = time.perf_counter()
        logits = loop.model(x)
        (long if step in (7, 17) else decode).append(time.perf_counter() - begin)
        loop.planted_s = sum(long) - len(long) * sum(decode) / len(decode) if decode else 0.0
        return logits

    loop.wrap_model = act


def chunks_of_sixteen(loop):
    small_chunks(loop)
    chunks, whole = 16, 256
    loop.context_tokens = lambda step: whole if step % 8 == 5 else chunks
    costs = {chunks: [], whole: []}
    opened = []

    def end(step):
        costs[loop.context_tokens(step)].append(time.perf_counter() - opened.pop())
        if step == loop.steps - 1:
            per_token = sorted(costs[whole])[len(costs[whole]) // 2] / whole
            loop.planted_s = sum(costs[chunks]) - len(costs[chunks]) * chunks * per_token

    loop.hooks["fetch"], loop.hooks["respond"] = lambda step: opened.append(time.perf_counter()), end


def many_small_tensors(loop):
    def act(step):
        with loop.cost():
            for number in range(1500):
                torch.tensor([number, step])

    loop.hooks["prepare"] = act


def heads_one_by_one(loop):
    """Rotary embedding of each head and row by itself."""

    def act(x):
        with loop.cost():
            for head in x[:, :256].split(4, dim=1):
                torch.cos(head) * head + torch.sin(head) * head
        return x

    for layer in loop.model.layers:
        layer.extra = act


def bitmask_in_python(loop):
    logits = torch.randn(BATCH, 2000)

    def act(step):
        with record_function("GuidedDecoder.apply_bitmask"), loop.cost():
            spin(PLANTED_S / 2)
            for _ in range(40):
                logits.masked_fill(logits > 0, -1.0)

    loop.hooks["sample"] = act


RARE_FAULTS = {
    "JSON in the loop": (("DX1511",), in_hook("loop", encode_json, stacks=True)),
    "compressing": (("DX1500",), in_hook("loop", compress_text, stacks=True)),
    "hashing prompts while scheduling": (("DX1509",), in_hook("schedule", hash_prompts)),
    "copies of requests while scheduling": (("DX1509",), in_hook("schedule", copy_requests, stacks=True)),
    "reading a file": (("DX1512",), in_hook("loop", read_file, stacks=True)),
    "logging to a file": (("DX1513",), in_hook("loop", log_to_file, stacks=True)),
    "decoding text for responses": (("DX1507", "DX1502"), in_hook("respond", decode_text, stacks=True)),
    "sleep while fetching": (("DX1506",), in_hook("fetch", lambda step: time.sleep(PLANTED_S))),
    "waiting for a queue": (("DX1515",), wait_for_queue),
    "garbage now and then": (("DX1501",), collect_now_and_then),
    "three compilations": (("DX1503",), compile_three_times),
    "finite checks of every layer": (("DX1516",), check_for_nan),
    "floats compared one by one": (("DX1522",), compare_floats),
    "cache reordered": (("DX1520",), reorder_cache),
    "cache cloned": (("DX1520",), clone_cache),
    "weights of layers converted": (("DX1521",), halve_weights),
    "requests sampled one by one": (("DX1525",), sample_each_request),
    "first layer slow": (("DX1523",), slow_first_layer),
    "sleep in one layer": (("DX1523", "DX1500"), sleep_in_layer),
    "two experts have all tokens": (("DX1524",), two_popular_experts),
    "history gone through in Python": (("DX1527", "DX1508"), growing_history),
    "host stalls now and then": (("DX1529",), host_stall_now_and_then),
    "host cold at first": (("DX1528",), cold_host),
    "two long prompts": (("DX1531",), two_long_prompts),
    "chunks of sixteen": (("DX1530",), chunks_of_sixteen),
    "many small tensors made": (("DX1508", "DX1526"), many_small_tensors),
    "heads one by one": (("DX1526",), heads_one_by_one),
    "bitmask in Python": (("DX1504",), bitmask_in_python),
}


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)))
        self.head = nn.Linear(8 * 24 * 16, 100)

    def forward(self, x):
        return self.head(self.stages(x.view(BATCH // 4, 8, -1)[:, :, :384].view(-1, 8, 24, 16)).flatten(1))


def _other_batches(loop):
    loop.steps = 20
    loop.wrap_model = lambda loop, step, x: loop.model(x.repeat(1 + step % 3, 1))


class BrainDecoder(Decoder):
    def forward(self, x):
        return super().forward(x.to(torch.bfloat16))


def _brain_floats(loop):
    loop.model = BrainDecoder().to(torch.bfloat16)
    annotate_modules(loop.model)


def _many_steps(loop):
    loop.steps = 60


def _convolutions(loop):
    loop.model = Convolutions()
    annotate_modules(loop.model)
    rows = torch.randn(BATCH // 4, 8 * HIDDEN)
    loop.wrap_model = lambda loop, step, x: loop.model(rows)


RARE_HEALTHY = {
    "batches of several sizes": _other_batches,
    "bfloat16": _brain_floats,
    "sixty steps": _many_steps,
    "convolutions": _convolutions,
}
