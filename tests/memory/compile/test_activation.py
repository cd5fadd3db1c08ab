"""Activation memory from TensorRT's own compiler."""

from __future__ import annotations

import msgspec
import pytest

from support.make_setups import DEEPSEEK, make_setup
from trtdx.errors import InputError, MissingExtraError
from trtdx.host import RealHost
from trtdx.memory.compile import activation as compiling
from trtdx.memory.compile.activation import COMPILED_SOURCE, blocks_from_setup, compile_activation
from trtdx.memory.compile.cache import CompileCache
from trtdx.memory.ledger.plan import formula_activation
from trtdx.memory.nouns import Dims, Setup

SMALL = Dims(
    num_layers=4, hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64, intermediate_size=688, vocab_size=2000
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def small(tokens: int = 1024, dims: Dims = SMALL, **more: object) -> Setup:
    limits = {"max_batch_size": 4, "max_num_tokens": tokens, "max_seq_len": 512}
    running = {"backend": "tensorrt", "gemm_plugin": False, "attention_plugin": False} | more
    return make_setup(dims, limits=limits, dtype="float16", **running)  # type: ignore[arg-type]


class TestWithTheCompiler:
    @pytest.fixture(autouse=True)
    def needs_it(self) -> None:
        pytest.importorskip("tensorrt_rtx")

    @pytest.mark.heavy
    def test_the_formula_is_near_it(self) -> None:
        setup = small(4096)
        compiled = compile_activation(setup, tokens=(256, 1024))
        assert compiled.figure.source == COMPILED_SOURCE
        for point in compiled.points:
            limits = msgspec.structs.replace(setup.limits, max_num_tokens=point.tokens)
            formula = formula_activation(msgspec.structs.replace(setup, limits=limits), 0).bytes
            assert formula.value == pytest.approx(point.bytes, rel=0.10)

    @pytest.mark.heavy
    def test_growth_is_a_curve_and_progress_is_told(self) -> None:
        told: list[float] = []
        compiled = compile_activation(small(), tokens=(256,), progress=lambda each: told.append(each.fraction))
        assert [point.tokens for point in compiled.points] == [256, 1024]
        assert compiled.points[0].bytes < compiled.points[1].bytes == compiled.figure.value
        assert told == sorted(told)
        assert told[-1] > 0.5

    def test_what_was_compiled_is_not_compiled_again(self) -> None:
        first, second = compile_activation(small()), compile_activation(small())
        assert [point.cached for point in (*first.points, *second.points)] == [False, True]
        assert first.figure == second.figure

    @pytest.mark.heavy
    def test_more_layers_need_no_more(self) -> None:
        blocks = blocks_from_setup(small(), 1024)
        cache = CompileCache(RealHost())
        sizes = [
            compiling.compile_point(msgspec.structs.replace(blocks, layers=layers), cache, (*compiling.installed_tensorrt(), "8.9"), None, None).bytes
            for layers in (2, 4)
        ]  # fmt: skip
        assert sizes[0] == sizes[1]

    def test_where_plugins_do_the_work_the_band_holds_the_formula(self) -> None:
        setup = small(gemm_plugin=True, attention_plugin=True)
        figure = compile_activation(setup).figure
        formula = formula_activation(setup, 0).bytes
        assert figure.low <= formula.value <= figure.high

    def test_logits_that_are_larger_than_a_layer_count(self) -> None:
        setup = small(64, msgspec.structs.replace(SMALL, vocab_size=4_000_000))
        assert compile_activation(setup).figure.value > 4 * 4_000_000 * 2


def test_a_batch_is_sequences_of_the_longest_prompt() -> None:
    blocks = blocks_from_setup(small(), 1024)
    assert (blocks.sequences, blocks.length, blocks.tokens) == (2, 512, 1024)


def test_a_rank_has_its_share_of_heads() -> None:
    setup = make_setup(SMALL, layout={"tp": 4}, dtype="float16", backend="tensorrt")
    blocks = blocks_from_setup(setup, 64)
    assert (blocks.heads, blocks.kv_heads, blocks.inner) == (1, 1, 172)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (DEEPSEEK, "experts cannot be compiled"),
        (msgspec.structs.replace(SMALL, kv_lora_rank=64), "latent attention cannot"),
        (msgspec.structs.replace(SMALL, state_layers=2), "only decoders with attention"),
        (msgspec.structs.replace(SMALL, num_kv_heads=3), "4 heads cannot share 3"),
        (
            msgspec.structs.replace(SMALL, hidden_size=65536, intermediate_size=65536),
            "too large to be compiled",
        ),
    ],
)
def test_what_cannot_be_compiled_is_said(dims: Dims, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        blocks_from_setup(make_setup(dims, backend="tensorrt"), 64)
    assert "--compile" in raised.value.fix


def test_without_a_compiler_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "PACKAGES", ("no_such_package",))
    with pytest.raises(MissingExtraError, match="one is needed to compile"):
        compile_activation(small())
