from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtdx.diagnose.calibrate import MEASURED_ACCURACY, calibrated_confidence


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_belief_is_never_less_confidence(one, other):
    low, high = sorted((one, other))
    assert 0 <= calibrated_confidence(low) <= calibrated_confidence(high) < 1


def test_the_measured_points_are_met():
    assert [calibrated_confidence(belief) for belief, _ in MEASURED_ACCURACY] == [
        share for _, share in MEASURED_ACCURACY
    ]
