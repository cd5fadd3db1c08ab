"""What trtdx calls valid and invalid is valid and invalid to the real TensorRT.

Executing an engine needs a GPU, so `setInputShape` itself cannot be asked. What the CPU-only builder can be asked,
and what that proves:

- The profiles trtdx derives are put into a network with the same inputs and dimension names. TensorRT finds each
  valid, accepts it beside the others (inputs that share a dimension must have the same range) and builds a plan:
  the derived profiles can be those of an engine.
- Each shape of a request is put into a profile as OPT between the derived MIN and MAX. TensorRT finds the profile
  valid exactly when the shape lies between them: its own comparison decides, number by number, and must agree with
  trtdx. At run time `satisfyProfile` compares the same numbers.
- All shapes of a step that fit are built together as the only shapes of a profile: the builder's shape analysis
  finds them consistent with one another (equal where dimensions have the same name).

It does not prove that the shapes are the ones the runtime sets: those were read in TensorRT-LLM's source.
"""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys

import pytest

from support.paths import SUPPORT
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.profiles.engine_profiles import engine_profiles, inputs_of_rank, settings_from_engine
from trtdx.inspect.requests.request_shapes import RequestChecker
from trtdx.inspect.requests.requests import Request

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorrt_rtx") is None,
        reason="the real builder, tensorrt-rtx, is not installed",
    ),
]
VERSIONS = ("0.9.0", "0.12.0", "0.16.0", "0.20.0", "1.2.1")
ENGINES, REQUESTS = 40, 6


def some_engine(choice: random.Random) -> Artifact:
    """Return the facts of an engine with settings drawn at random, as its config.json would state them."""
    version = choice.choice(VERSIONS)
    prompt = choice.choice((1, 128, 1024, 4000))
    packed, plugin = choice.random() < 0.6, choice.random() < 0.8
    facts = {
        "version": version,
        "architecture": "LlamaForCausalLM",
        "max_batch_size": choice.choice((1, 8, 64)),
        "max_beam_width": choice.choice((1, 1, 4)),
        "max_input_len": prompt,
        "max_seq_len": prompt + choice.choice((1, 512, 2048)),
        "max_num_tokens": choice.choice((128, 2048, 8192)),
        "max_draft_len": choice.choice((0, 0, 4)),
        "max_prompt_table": choice.choice((0, 0, 100)),
        "kv_cache_type": choice.choice(("paged", "continuous")),
        "multiple_profiles": choice.random() < 0.3,
        "gather_context_logits": choice.random() < 0.2,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "hidden_size": 64,
        "dtype": "float16",
        "plugin.remove_input_padding": packed,
        "plugin.gpt_attention_plugin": "float16" if plugin or packed else False,
        "plugin.gemm_plugin": choice.choice(("auto", False)),
        "plugin.lora_plugin": choice.choice((False, False, "auto")),
        "lora.target_modules": ["attn_q", "attn_v"],
        "speculative_mode": "LOOKAHEAD_DECODING",
    }
    collected = FactCollector()
    for name, value in facts.items():
        collected.put(name, value, "config.json")
    return Artifact("engine", "engine", collected.to_dict())


def some_request(choice: random.Random, engine: Artifact) -> Request:
    """Return a request around the engine's limits: each size inside, at the bound, or beyond it."""

    def around(limit: int) -> int:
        return max(1, choice.choice((1, limit // 2, limit - 1, limit, limit + 1, 2 * limit)))

    prompt, longest = engine.get("max_input_len"), engine.get("max_seq_len")
    return Request(
        batch=around(engine.get("max_batch_size")),
        input_len=around(prompt),
        output_len=around(longest - prompt),
        beam=around(engine.get("max_beam_width")),
        prompt_table=choice.choice((0, 1, 200)) if engine.get("max_prompt_table") else 0,
    )


def case_of(engine: Artifact, requests: list[Request]) -> dict[str, object]:
    inputs = [tensor for tensor in inputs_of_rank(settings_from_engine(engine)) if tensor.mode == "in"]
    profiles = engine_profiles(engine)
    steps = []
    for request in requests:
        by_step: dict[tuple[str, int], list] = {}
        for fit in RequestChecker(engine).input_fits(request):
            row = (fit.tensor, fit.low, fit.shape, fit.high)
            by_step.setdefault((fit.step, fit.profile), []).append(row)
        steps += [{"shapes": rows} for rows in by_step.values()]
    return {
        "inputs": [
            (
                tensor.name,
                tensor.dtype,
                [axis.name if axis.is_dynamic else axis.spans[0][2] for axis in tensor.axes],
            )
            for tensor in inputs
        ],
        "profiles": [{span.tensor: (span.min, span.opt, span.max) for span in p.ranges} for p in profiles],
        "steps": steps,
    }


@pytest.fixture(scope="module")
def asked():
    """Return random cases and TensorRT's answers to them, from one child process: the builder may crash."""
    choice = random.Random(20)
    cases = []
    for _ in range(ENGINES):
        engine = some_engine(choice)
        cases.append(case_of(engine, [some_request(choice, engine) for _ in range(REQUESTS)]))
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "ask_tensorrt.py")],
        input=json.dumps(cases).encode(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return list(zip(cases, json.loads(done.stdout), strict=True))


def test_tensorrt_accepts_the_derived_profiles(asked):
    refused = [case["profiles"] for case, answer in asked if not all(answer["profiles"])]
    assert refused == []


def test_tensorrt_builds_an_engine_with_the_derived_inputs_and_profiles(asked):
    assert [case for case, answer in asked if not answer["built"]] == []


def test_tensorrt_finds_the_same_shapes_inside_the_profile(asked):
    different, inside, outside = [], 0, 0
    for case, answer in asked:
        for step, verdicts in zip(case["steps"], answer["inside"], strict=True):
            for (name, low, shape, high), verdict in zip(step["shapes"], verdicts, strict=True):
                is_within = all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))
                different += [(name, low, shape, high)] if is_within != verdict else []
                inside, outside = inside + verdict, outside + (not verdict)
    assert different == []
    assert inside > 1000
    assert outside > 300


def test_tensorrt_finds_the_shapes_of_a_step_that_fits_consistent(asked):
    verdicts = [
        (step, verdict)
        for case, answer in asked
        for step, verdict in zip(case["steps"], answer["together"], strict=True)
    ]
    assert [step for step, verdict in verdicts if verdict is False] == []
    assert sum(verdict is True for _, verdict in verdicts) > 50
