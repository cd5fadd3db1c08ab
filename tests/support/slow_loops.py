"""Slownesses made for real: a small decoder in a loop like TensorRT-LLM's, under torch's profiler, with one fault each.

What a fault costs is measured with a clock of its own while the trace is written, so that the share of time which the
analysis finds can be held against it. The names of the loop's ranges are TensorRT-LLM's (`_torch/pyexecutor`).
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import pickle
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch  # noqa: TID253
from torch import nn  # noqa: TID253
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: TID253

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN, LAYERS, BATCH, VOCABULARY = 384, 6, 16, 2000
PLANTED_S = 0.006


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Experts(nn.Module):
    """Eight experts; `routing` says how many of the rows each gets."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(8))
        self.routing = [4] * 8

    def forward(self, x):
        rows = x.repeat(2, 1)
        parts, at = [], 0
        for expert, count in zip(self.experts, self.routing, strict=True):
            parts.append(expert(rows[at : at + count]))
            at += count
        return torch.vstack(parts)[: len(x)]


class Layer(nn.Module):
    def __init__(self, is_sparse):
        super().__init__()
        self.attn = nn.Linear(HIDDEN, HIDDEN)
        self.mlp = Experts() if is_sparse else Expert()
        self.extra = None

    def forward(self, x):
        x = x + self.attn(x)
        x = x + self.mlp(x)
        return self.extra(x) if self.extra else x


class Decoder(nn.Module):
    def __init__(self, is_sparse=False):
        super().__init__()
        self.layers = nn.ModuleList(Layer(is_sparse) for _ in range(LAYERS))
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


@dataclass
class Loop:
    """The hooks of one run, and what its fault has cost so far."""

    model: nn.Module
    stacks: bool = False
    steps: int = 10
    context_tokens: Callable[[int], int] = lambda step: 0
    hooks: dict[str, Callable[[int], None]] = field(default_factory=dict)
    wrap_model: Callable | None = None
    planted_s: float = 0.0
    wall_s: float = 0.0
    undisturbed: float = 0.0  # the share of the time outside the fault in which this thread had a processor
    _inside: list = field(default_factory=lambda: [0.0, 0.0])

    @contextlib.contextmanager
    def cost(self, share=1.0):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        yield
        took = time.perf_counter() - begin
        self.planted_s += share * took
        self._inside[0] += took
        self._inside[1] += time.thread_time() - begin_cpu

    def hook(self, name, step):
        if name in self.hooks:
            self.hooks[name](step)


def annotate_modules(model):
    for path, module in model.named_modules():
        if not path:
            continue
        opened = []

        def enter(module, inputs, path=path, opened=opened):
            opened.append(record_function(f"module:{path}").__enter__())

        def leave(module, inputs, output, opened=opened):
            opened.pop().__exit__(None, None, None)

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


def run_loop(loop, path):
    """Run the loop under the profiler and write its trace; the share of its fault comes back."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, HIDDEN)
    with torch.no_grad():
        for _ in range(2):
            loop.model(x)  # warm
        with profile(activities=[ProfilerActivity.CPU], with_stack=loop.stacks) as profiler:
            time.sleep(0.001)
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            for step in range(loop.steps):
                one_step(loop, step, x)
            loop.wall_s = time.perf_counter() - begin
            cpu_s = time.thread_time() - begin_cpu
    outside, outside_cpu = loop.wall_s - loop._inside[0], cpu_s - loop._inside[1]
    loop.undisturbed = outside_cpu / outside if outside > 0.002 else 1.0
    profiler.export_chrome_trace(str(path))
    return loop.planted_s / loop.wall_s


def one_step(loop, step, x):
    tokens = loop.context_tokens(step)
    with record_function(f"ProfilerStep#{step}"):
        with record_function("_fetch_new_requests"):
            loop.hook("fetch", step)
        with record_function("_schedule"):
            loop.hook("schedule", step)
        loop.hook("loop", step)
        requests = f"{int(tokens > 0)} ctx reqs, {tokens} ctx tokens, {0 if tokens else BATCH} gen reqs"
        with record_function(f"[Executor] _forward_step {step}: {requests}"):
            with record_function("_prepare_inputs"):
                loop.hook("prepare", step)
            rows = torch.randn(tokens, HIDDEN) if tokens else x
            logits = loop.wrap_model(loop, step, rows) if loop.wrap_model else loop.model(rows)
            loop.hook("forward", step)
        with record_function("_sample_async"):
            logits.argmax(-1)
            loop.hook("sample", step)
        with record_function("_handle_responses"):
            loop.hook("respond", step)


def spin(seconds=PLANTED_S):
    """Python that takes its time."""
    until = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < until:
        count += 1
    return count


# ---------------------------------------------------------------------------------------------- the faults


def in_hook(name, work, *, stacks=False, annotation=""):
    """Return a fault that does some work in one hook of each step."""

    def plant(loop):
        loop.stacks = stacks

        def act(step):
            with record_function(annotation) if annotation else contextlib.nullcontext(), loop.cost():
                work(step)

        loop.hooks[name] = act

    return plant


def tokenize_text(step):
    words = re.compile(r"\w+|\W")
    until = time.perf_counter() + PLANTED_S
    while time.perf_counter() < until:
        words.findall("the quick brown fox " * 200)


PAYLOAD = [{"token": number, "text": str(number)} for number in range(4000)]


def pickle_payload(step):
    for _ in range(3):
        pickle.loads(pickle.dumps(PAYLOAD))


BLOCK = os.urandom(4 << 20)


def write_file(step):
    path = Path(f"/tmp/trtdx-planted-{os.getpid()}")
    with path.open("wb") as file:
        for _ in range(2):
            file.write(BLOCK)
            file.flush()
    path.unlink()


def log_much(step):
    logger = logging.getLogger("planted")
    logger.handlers, logger.propagate = [logging.StreamHandler(io.StringIO())], False
    for number in range(250):
        logger.warning("request %s has token %s", number, step)


def collect_garbage(loop):
    opened = []

    def mark(phase, info):
        if phase == "start":
            opened.append((record_function("Python GC").__enter__(), time.perf_counter()))
        elif opened:
            range_, begin = opened.pop()
            loop.planted_s += time.perf_counter() - begin
            range_.__exit__(None, None, None)

    gc.freeze()  # torch's own objects would take most of the time
    heap = [[number] for number in range(60_000)]

    def act(step):
        gc.callbacks.append(mark)
        gc.collect()
        gc.callbacks.remove(mark)
        heap.append([step])
        if step == loop.steps - 1:
            gc.unfreeze()

    loop.hooks["loop"] = act


def wait_for_lock(loop):
    loop.stacks = True
    lock = threading.Lock()

    def act(step):
        held = threading.Event()

        def hold():
            with lock:
                held.set()
                time.sleep(PLANTED_S)

        with loop.cost():
            thread = threading.Thread(target=hold)
            thread.start()
            held.wait(5)
            lock.acquire()
            lock.release()
            thread.join(5)

    loop.hooks["loop"] = act


def recompile(loop):
    function = torch.compile(lambda x: torch.relu(x) * 2 + 1, backend="eager", dynamic=False)
    torch._dynamo.reset()
    loop.steps = 5

    def act(step):
        rows = torch.randn(3 + step, 4)
        with loop.cost():
            function(rows)

    loop.hooks["forward"] = act


def grow_cache(loop):
    cache = [torch.zeros(20_000)]  # small enough not to be mapped anew each time

    def act(step):
        with loop.cost():
            for _ in range(300):
                cache[0] = torch.cat([cache[0], torch.zeros(1)])

    loop.hooks["forward"] = act


def convert_weights(loop):
    weights = [torch.randn(1000, 1000, dtype=torch.float64) for _ in range(6)]

    def act(step):
        with loop.cost():
            for weight in weights:
                weight.to(torch.float32)

    loop.hooks["forward"] = act


def read_scalars(loop):
    values = torch.randn(600)

    def act(step):
        with loop.cost():
            for at in range(600):
                values[at].item()

    loop.hooks["sample"] = act


def slow_layer(loop):
    extra = nn.Linear(HIDDEN, 24 * HIDDEN), nn.Linear(24 * HIDDEN, HIDDEN)

    def act(x):
        with loop.cost():
            return extra[1](extra[0](x))

    loop.model.layers[3].extra = act


def skewed_experts(loop):
    loop.model = Decoder(is_sparse=True)
    annotate_modules(loop.model)
    for layer in loop.model.layers:
        layer.mlp.routing = [0, 0, 0, 512, 0, 0, 0, 0]

    def act(loop, step, x):
        return loop.model(x.repeat(16, 1))

    loop.wrap_model = act

    def cost_of(expert):
        forward = expert.forward

        def timed(x):
            with loop.cost(7 / 8 if len(x) else 0):
                return forward(x)

        expert.forward = timed

    for layer in loop.model.layers:
        cost_of(layer.mlp.experts[3])


def sort_vocabulary(loop):
    logits = torch.randn(BATCH, 12_000)

    def act(step):
        with loop.cost():
            probabilities = torch.softmax(logits, -1)
            ordered, _ = torch.sort(probabilities, descending=True)
            torch.cumsum(ordered, -1)

    loop.hooks["sample"] = act


def many_small_operators(loop):
    values = [torch.randn(8) for _ in range(16)]

    def act(step):
        with loop.cost():
            for _ in range(900):
                for value in values[:4]:
                    torch.add(value, value)

    loop.hooks["forward"] = act


def no_cache(loop):
    loop.steps = 16
    costs = []

    def act(loop, step, x):
        begin = time.perf_counter()
        logits = loop.model(x.repeat(1 + step, 1))[: len(x)]
        costs.append(time.perf_counter() - begin)
        loop.planted_s = sum(costs) - min(costs) * len(costs)
        return logits

    loop.wrap_model = act


def cold_first_step(loop):
    def act(step):
        if step == 0:
            with loop.cost():
                torch.randn(1500, 1500) @ torch.randn(1500, 1500)

    loop.hooks["forward"] = act


def occasional_slow_steps(loop):
    loop.steps = 24

    def act(step):
        if step % 8 == 5:
            with loop.cost():
                torch.randn(900, 900) @ torch.randn(900, 900)

    loop.hooks["forward"] = act


def small_chunks(loop):
    """Prompts of 160 tokens, most of them in chunks of 8: each step pays for what every step costs."""
    loop.steps = 24
    loop.context_tokens = lambda step: 160 if step % 6 == 2 else 8
    costs = {8: [], 160: []}
    opened = []

    def begin(step):
        opened.append((len(costs), time.perf_counter()))

    def end(step):
        costs[loop.context_tokens(step)].append(time.perf_counter() - opened.pop()[1])
        if step == loop.steps - 1:
            per_token = sorted(costs[160])[len(costs[160]) // 2] / 160
            loop.planted_s = sum(costs[8]) - len(costs[8]) * 8 * per_token

    loop.hooks["fetch"], loop.hooks["respond"] = begin, end


def long_prefill(loop):
    loop.steps = 20
    loop.context_tokens = lambda step: 800 if step == 9 else 0
    decode = []

    def act(loop, step, x):
        begin = time.perf_counter()
        logits = loop.model(x)
        took = time.perf_counter() - begin
        if step == 9:
            loop.planted_s = took - sum(decode) / len(decode)
        else:
            decode.append(took)
        return logits

    loop.wrap_model = act


FAULTS = {
    "host code without a name": ("DX1500", in_hook("loop", lambda step: spin())),
    "sleep in the host path": ("DX1514", in_hook("loop", lambda step: time.sleep(PLANTED_S), stacks=True)),
    "garbage collection": ("DX1501", collect_garbage),
    "tokenising in the loop": ("DX1502", in_hook("loop", tokenize_text, stacks=True)),
    "recompilation": ("DX1503", recompile),
    "guided decoding": ("DX1504", in_hook("forward", lambda step: spin(), annotation="GuidedDecoder.build")),
    "logits processor": ("DX1505", in_hook("forward", lambda step: spin(), annotation="_execute_logit_post_processors")),
    "fetching requests": ("DX1506", in_hook("fetch", lambda step: spin())),
    "writing responses": ("DX1507", in_hook("respond", lambda step: spin())),
    "preparing inputs": ("DX1508", in_hook("prepare", lambda step: spin())),
    "scheduling": ("DX1509", in_hook("schedule", lambda step: spin())),
    "pickling": ("DX1511", in_hook("loop", pickle_payload, stacks=True)),
    "writing a file": ("DX1512", in_hook("loop", write_file, stacks=True)),
    "logging": ("DX1513", in_hook("loop", log_much, stacks=True)),
    "waiting for a lock": ("DX1515", wait_for_lock),
    "debug checks": ("DX1516", in_hook("forward", lambda step: spin(), annotation="assert_all_finite")),
    "cache concatenated in each step": ("DX1520", grow_cache),
    "weights converted in each step": ("DX1521", convert_weights),
    "a scalar read back for each value": ("DX1522", read_scalars),
    "one slow layer": ("DX1523", slow_layer),
    "one expert has all tokens": ("DX1524", skewed_experts),
    "sampler sorts the vocabulary": ("DX1525", sort_vocabulary),
    "many small operators": ("DX1526", many_small_operators),
    "no cache of keys and values": ("DX1527", no_cache),
    "a cold first step": ("DX1528", cold_first_step),
    "now and then a slow step": ("DX1529", occasional_slow_steps),
    "small chunks of the prompt": ("DX1530", small_chunks),
    "a long prompt between decode steps": ("DX1531", long_prefill),
}  # fmt: skip
HEALTHY = {
    "plain": lambda loop: None,
    "with stacks": lambda loop: setattr(loop, "stacks", True),
    "with experts": lambda loop: _with_experts(loop),
    "prompts in chunks of a good size": lambda loop: setattr(loop, "context_tokens", lambda step: 128 if step % 4 == 0 else 0),
}  # fmt: skip


def _with_experts(loop):
    loop.model = Decoder(is_sparse=True)
    annotate_modules(loop.model)


def run_fault(plant, path, tries=6):
    """Plant one fault into a fresh loop, run it, and return its share of the wall time, and how undisturbed it was.

    Other processes on the machine make any step slow now and then, which is a fault nobody planted: a run in which
    the loop had to wait for a processor is made again, and the least disturbed one counts.
    """
    torch.set_num_threads(1)
    best = 0.0
    for _ in range(tries):
        loop = _fresh_loop(plant)
        attempt = f"{path}.attempt"
        share = run_loop(loop, attempt)
        if loop.undisturbed > best:
            best, kept = loop.undisturbed, share
            Path(attempt).replace(path)
        if best > 0.97:
            break
    return kept, best


def _fresh_loop(plant):
    loop = Loop(Decoder())
    annotate_modules(loop.model)
    plant(loop)
    return loop
