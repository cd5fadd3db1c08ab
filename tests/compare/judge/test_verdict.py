"""A difference is wrong where it is more than precision explains, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from support.verdict_pairs import runs_of, wrong
from trtdx.capture.store.format import CaptureHeader
from trtdx.capture.store.writer import CaptureWriter
from trtdx.compare.align.align import align_sides
from trtdx.compare.judge.error_model import accumulated_error, dtype_rounding_error, tensor_role
from trtdx.compare.judge.metrics import has_same_hash, measure_pair
from trtdx.compare.judge.noise_limits import (
    LOCAL_ALIKE,
    NoiseLimits,
    is_rounding_elsewhere,
    limits_for,
    weigh_error,
)
from trtdx.compare.judge.tolerance import Tolerances
from trtdx.compare.judge.verdict import judge_pairs
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.sides.side import ComparisonQuestion, Side, SideSpec
from trtdx.tensors.statistics import source_from_array
from trtdx.tensors.taps import Place

TOKENS, WIDTH, LAYERS = 12, 64, 6
rng = np.random.default_rng(1)


def capture(folder, tensors, engine="torch"):
    """Write a capture of one step: module outputs in their order."""
    with CaptureWriter(folder, CaptureHeader(run="made", engine=engine), parquet=False) as writer:
        ids = source_from_array(np.arange(TOKENS)[None])
        writer.add(0, Place("", "in", 0, "input_ids", "Input", "input_ids"), ids, values=True)
        for name, array in tensors.items():
            path, _, port = name.partition(":")
            writer.add(0, Place(path, port, 0, "", "Module"), source_from_array(array), values=True)
    return Side(SideSpec("capture", str(folder)), folder)


def stack(noise=0.0, mistake=None, dtype="float32"):
    """Return the tensors of a made-up model: each layer multiplies, and precision blurs as it goes."""
    made, state = {}, np.random.default_rng(5).standard_normal((1, TOKENS, WIDTH))
    blur = np.random.default_rng(6 if noise else 0)
    for layer in range(LAYERS):
        for part in ("attn", "mlp"):
            name = f"model.layers.{layer}.{part}"
            made[f"{name}:in"] = state.astype(dtype)
            state = np.tanh(state @ np.random.default_rng(layer).standard_normal((WIDTH, WIDTH)) / 8)
            state = state * (1 + noise * blur.standard_normal(state.shape))
            if mistake and mistake[0] == name:
                state = mistake[1](state)
            made[f"{name}:out"] = state.astype(dtype)
    return made


def compared(tmp_path, ours, theirs, **more):
    one, other = capture(tmp_path / "a", ours), capture(tmp_path / "b", theirs)
    pairs = align_sides(one, other).pairs
    runs = runs_of(one, other, tmp_path / "runs", question=ComparisonQuestion())
    return judge_pairs(pairs, one, other, runs=runs, **more)


def test_a_capture_is_the_same_as_itself_without_a_value_read(tmp_path):
    one, other = capture(tmp_path / "a", stack()), capture(tmp_path / "b", stack())
    pairs = align_sides(one, other).pairs
    for each in tmp_path.glob("*/rank0.values"):
        each.write_bytes(b"")
    assert all(has_same_hash(pair) for pair in pairs)


@pytest.mark.parametrize("noise", [1e-7, 1e-6])
def test_noise_of_the_type_is_no_mistake(tmp_path, noise):
    judged = compared(tmp_path, stack(), stack(noise))
    assert {each.verdict for each in judged} <= {PairVerdict.SAME, PairVerdict.NOISE}


def test_the_first_jump_is_wrong_and_what_follows_is_poisoned(tmp_path):
    judged = compared(tmp_path, stack(), stack(1e-7, ("model.layers.3.mlp", lambda state: state * 1.01)))
    first = wrong(judged)[0]
    assert first.pair.name == "model.layers.3.mlp:out"
    assert first.basis.startswith("error model")
    later = [each for each in judged if each.pair.position > first.pair.position]
    assert PairVerdict.POISONED in {each.verdict for each in later}
    assert len(wrong(judged)) == 1


def test_one_token_alone_is_found_by_its_position(tmp_path):
    def mistake(state):
        state = state.copy()
        state[0, 7] += 0.05
        return state

    judged = compared(tmp_path, stack(), stack(1e-7, ("model.layers.2.attn", mistake)))
    first = wrong(judged)[0]
    assert first.pair.name == "model.layers.2.attn:out"
    assert first.tokens[0] == 7


def test_nan_that_the_reference_has_not_is_wrong_at_its_token(tmp_path):
    def mistake(state):
        state = state.copy()
        state[0, 4, 3] = np.nan
        return state

    judged = compared(tmp_path, stack(), stack(0.0, ("model.layers.1.mlp", mistake)))
    first = wrong(judged)[0]
    assert first.pair.name == "model.layers.1.mlp:out"
    assert first.tokens == (4,)
    assert first.observed == float("inf")


def test_integers_and_masks_have_to_be_equal(tmp_path):
    def made(position, hidden):
        mask = np.zeros((1, 1, TOKENS, TOKENS), "f4")
        mask[..., TOKENS // 2 :] = hidden
        return {"model.position_ids:in": np.arange(TOKENS)[None] + position, "model.mask:in": mask}

    judged = compared(tmp_path, made(0, -1e9), made(1, np.finfo("f4").min))
    verdicts = {each.pair.name: each.verdict for each in judged}
    assert verdicts["model.position_ids:in"] is PairVerdict.WRONG
    assert verdicts["model.mask:in"] is PairVerdict.SAME, "how far down a mask presses does not matter"


def test_a_tolerance_of_the_user_is_taken_at_its_word(tmp_path):
    ours, theirs = stack(), stack(1e-4)
    generous = compared(tmp_path / "one", ours, theirs, tolerance=Tolerances(rtol=0.1, atol=0.1))
    assert not wrong(generous)
    strict = compared(tmp_path / "two", ours, theirs, tolerance=Tolerances(relative_l2=1e-9))
    assert wrong(strict)
    assert wrong(strict)[0].basis == "tolerance: relative_l2 1e-09"


def test_statistics_alone_never_acquit(tmp_path):
    def left_out(folder, tensors):
        with CaptureWriter(folder, CaptureHeader(engine="torch"), parquet=False) as writer:
            for name, array in tensors.items():
                path, _, port = name.partition(":")
                writer.add(0, Place(path, port, 0, "", "M"), source_from_array(array), values=False)
        return Side(SideSpec("capture", str(folder)), folder)

    one = left_out(tmp_path / "a", stack())
    other = left_out(tmp_path / "b", stack(1e-7, ("model.layers.3.mlp", lambda state: state * 1.5)))
    runs = runs_of(one, other, tmp_path / "runs", question=ComparisonQuestion())
    judged = judge_pairs(align_sides(one, other).pairs, one, other, runs=runs)
    if judged:  # an alignment may leave out what has no values
        assert PairVerdict.NOISE not in {each.verdict for each in judged}


def test_logits_tell_which_token_is_chosen(tmp_path):
    ours = rng.standard_normal((1, TOKENS, 32)).astype("f4")
    theirs = ours.copy()
    theirs[0, 3] = -theirs[0, 3]
    one, other = (
        capture(tmp_path / "a", {"lm_head:out": ours}),
        capture(tmp_path / "b", {"lm_head:out": theirs}),
    )
    pair = next(each for each in align_sides(one, other).pairs if each.name == "lm_head:out")
    logits = measure_pair(pair, one, other, logits=True).logits
    assert logits.rows == TOKENS
    assert logits.top1 == pytest.approx(1 - 1 / TOKENS)
    assert logits.kl_max > 0.5 > logits.kl_mean
    assert logits.gap > 0


def measured(tmp_path, name, ours, theirs):
    one, other = (
        capture(tmp_path / f"{name}a", {"x:out": ours}),
        capture(tmp_path / f"{name}b", {"x:out": theirs}),
    )
    return measure_pair(next(each for each in align_sides(one, other).pairs if each.name == "x:out"), one, other)


def test_the_ratio_of_an_honest_run_is_one_and_a_louder_row_stands_out(tmp_path):
    truth = rng.standard_normal((1, TOKENS, WIDTH))
    honest = truth + 1e-3 * rng.standard_normal(truth.shape)
    fine = truth + 1e-3 * rng.standard_normal(truth.shape)
    loud = fine.copy()
    loud[0, 5] = truth[0, 5] + 5e-3 * rng.standard_normal(WIDTH)
    expected = measured(tmp_path, "h", truth, honest)
    healthy = weigh_error(measured(tmp_path, "f", truth, fine), [expected], "bfloat16", LOCAL_ALIKE, chance=6)
    assert not healthy.is_wrong
    louder = measured(tmp_path, "l", truth, loud)
    assert not weigh_error(louder, [expected], "float8_e4m3fn", LOCAL_ALIKE, chance=6).is_wrong, (
        "its own rounding is louder"
    )
    found = weigh_error(louder, [expected], "float16", LOCAL_ALIKE, chance=6)
    assert found.is_wrong
    assert found.rows == (5,)


def test_code_that_rounds_more_often_in_every_layer_is_no_mistake(tmp_path):
    truth = rng.standard_normal((1, TOKENS, WIDTH))
    honest = measured(tmp_path, "h", truth, truth + 1e-3 * rng.standard_normal(truth.shape))
    noisier = measured(tmp_path, "n", truth, truth + 2e-3 * rng.standard_normal(truth.shape))
    scaled = measured(tmp_path, "s", truth, truth * 1.002)
    limits = NoiseLimits(1.2, 1.35)
    found = weigh_error(noisier, [honest], "float32", limits, chance=6)
    assert found.is_wrong
    assert is_rounding_elsewhere(found, [2.0, 2.1])
    assert not is_rounding_elsewhere(found, [1.0, 1.0]), "it is louder here than in other layers"
    assert not is_rounding_elsewhere(found, [])
    leaning = weigh_error(scaled, [honest], "float32", limits, chance=6)
    assert leaning.is_wrong
    assert not is_rounding_elsewhere(leaning, [2.0, 2.0]), "rounding does not lean with the values"


def test_limits_widen_where_honest_runs_do():
    assert limits_for("bfloat16", local=True, alike=True) < limits_for("bfloat16", local=True, alike=False)
    assert limits_for("bfloat16", local=True, alike=False, ranks=16) > limits_for("bfloat16", local=True, alike=False)
    alike, other = (limits_for("float32", local=True, alike=each) for each in (True, False))
    assert alike == other, "in float32 the same code sums in another order for another batch"


def test_errors_grow_with_type_and_length():
    assert dtype_rounding_error("bfloat16") / dtype_rounding_error("float16") == 8
    assert dtype_rounding_error("int64") == 0
    assert accumulated_error("float32", 4096) > accumulated_error("float32", 64) > dtype_rounding_error("float32")
    assert tensor_role("model.layers.12.mlp:out") == tensor_role("model.layers.3.mlp:out")
