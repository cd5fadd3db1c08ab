"""Whatever is asked, the answer is a plan or an error somebody can act on, never a traceback."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from support.make_configs import FAMILIES
from trtdx.errors import TrtdxError
from trtdx.host import RecordedHost
from trtdx.memory.advice.target import parse_target
from trtdx.memory.ledger.plan import plan_memory
from trtdx.memory.question.flags import MEMORY_FLAGS, artifact_from_flags
from trtdx.memory.question.setup import MemoryRequest, resolve_setup

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([0, 1, 7, 8, 64, 4096, 2**31, 10**12, 10**30, 0.5, -1.0]),
    st.text(max_size=6),
    st.lists(st.integers(-1, 9), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
WORDS = st.one_of(
    st.sampled_from([f"--{name}" for name in MEMORY_FLAGS]),
    st.sampled_from(["1", "8", "auto", "0.5", "-1"]),
    st.text(max_size=8),
)
NAMES = st.sampled_from(sorted(FAMILIES))


def answered(config: dict[str, object], words: list[str]) -> None:
    host = RecordedHost({"model/config.json": json.dumps(config).encode()})
    with contextlib.suppress(TrtdxError):
        setup = resolve_setup(
            host, MemoryRequest(model="model", flags=artifact_from_flags({}, words), gpu="H100")
        ).setup
        ledger = plan_memory(setup)
        assert all(rank.total_bytes.value >= 0 for rank in ledger.ranks)
        assert all(each.bytes.low <= each.bytes.value <= each.bytes.high for each in ledger.tightest_rank.components)


@settings(max_examples=100, deadline=None)
@given(name=NAMES, data=st.data())
def test_a_config_may_say_anything(name, data):
    config = dict(FAMILIES[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config[key] = data.draw(VALUES)
    answered(config, [])


@settings(max_examples=60, deadline=None)
@given(name=NAMES, words=st.lists(WORDS, max_size=6))
def test_flags_may_say_anything(name, words):
    answered(FAMILIES[name], words)


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="abtchseq=, 0123456789k_-", max_size=30))
def test_dims_and_targets_may_say_anything(text):
    host = RecordedHost()
    with contextlib.suppress(TrtdxError):
        resolve_setup(host, MemoryRequest(dims=text))
    with contextlib.suppress(TrtdxError):
        resolve_setup(host, MemoryRequest(dims=f"num_layers={text}"))
    setup = resolve_setup(host, MemoryRequest(model="Llama-3.1-8B")).setup
    with contextlib.suppress(TrtdxError):
        assert parse_target(text, setup).batch >= 1
