"""Progress from changes stays within its bounds, and keeps their order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.judge.reward.score_table import advance

NAN = np.nan
CHANGE = st.one_of(st.just(NAN), st.floats(-1, 1))


@given(progress=st.floats(0, 1), change=CHANGE, other=st.floats(-1, 1))
def test_bounds_and_order(progress: float, change: float, other: float) -> None:
    after = float(advance(np.array(progress), np.array(change)))
    assert 0 <= after <= 1
    if np.isnan(change):
        assert after == progress
    else:
        assert (after >= progress) if change >= 0 else (after <= progress)
        if other >= change:
            assert float(advance(np.array(progress), np.array(other))) >= after - 1e-12


def test_a_change_is_a_share_of_what_was_left_or_reached() -> None:
    found = [0.0]
    for change in (0.5, 0.5, -0.5, NAN, 1.0, -1.0):
        found.append(float(advance(np.array(found[-1]), np.array(change))))
    assert found == [0.0, 0.5, 0.75, 0.375, 0.375, 1.0, 0.0]
