"""What the bridge says of a control step travels as JSON, to the bit, and is checked where it is read."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.deployment.recording.steps import ControlStep, EpisodeOutcome, StepError, read_request
from embodied_rl.interfaces.sim import Source

ACTIONS = st.none() | st.lists(st.floats(allow_nan=False, width=64, min_value=-1e299, max_value=1e299), max_size=4).map(
    tuple
)


@given(
    st.builds(
        ControlStep,
        time_ns=st.integers(0, 2**62),
        episode=st.integers(-1, 2**31),
        step=st.integers(0, 2**31),
        mode=st.sampled_from(["run", "hold", "estop"]),
        source=st.sampled_from(Source),
        proposed=ACTIONS,
        executed=ACTIONS,
        command=ACTIONS,
        why=st.text(max_size=20),
        instruction=st.text(max_size=20),
        label=st.sampled_from(["", "success", "failure", "abort"]),
        observed=st.dictionaries(st.text(max_size=5), st.integers(0, 2**62), max_size=3),
    )
)
def test_a_step_is_read_as_it_was_written(step: ControlStep) -> None:
    assert ControlStep.from_json(step.to_json()) == step


def test_what_means_nothing_is_null() -> None:
    text = ControlStep(1, 0, 0, "run", Source.POLICY, executed=(1.0, math.nan, math.inf)).to_json()
    assert json.loads(text)["executed"] == [1.0, None, None]
    executed = ControlStep.from_json(text).executed
    assert executed is not None and executed[0] == 1.0 and all(map(math.isnan, executed[1:]))


STEP = {"time_ns": 1, "episode": 0, "step": 0, "mode": "run", "source": "policy", "executed": [0.0]}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"time_ns": None}, "time_ns=None is no whole number"),
        ({"time_ns": 1.5}, "time_ns=1.5 is no whole number"),
        ({"episode": True}, "episode=True is no whole number"),
        ({"step": 2**63}, "step=9223372036854775808 is no whole number"),
        ({"source": "me"}, "source='me' is none of policy, human, replay, safety, hold"),
        ({"executed": ["1"]}, "executed holds something else than numbers"),
        ({"executed": [True]}, "executed holds something else than numbers"),
        ({"executed": [1e308]}, "executed holds something else than numbers"),
        ({"executed": 1.0}, "executed must be a list"),
        ({"executed": [0] * 1025}, "executed must be a list of up to 1024"),
        ({"why": "x" * 5000}, "why must be a text of up to 4096"),
        ({"label": "great"}, "label 'great'"),
        ({"mode": 3}, "mode must be a text"),
        ({"observed": ["/a"]}, "observed must map topics to nanoseconds"),
        ({"observed": {"/a": -1}}, "observed must map topics to nanoseconds"),
        ({"padding": "x" * 2**20}, "at most are read"),
    ],
)
def test_what_is_no_step_is_refused(changed: dict[str, Any], reason: str) -> None:
    assert ControlStep.from_json(json.dumps(STEP | {"latency": 3})).step == 0  # further keys are left to others
    with pytest.raises(StepError, match=f"/policy_bridge/steps.*{reason}"):
        ControlStep.from_json(json.dumps(STEP | changed))


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ({"success": True, "failure": ""}, "success"),
        ({"success": False, "failure": "dropped", "truncated": False}, "failure"),
        ({"success": False, "failure": True}, "failure"),
        ({"success": False, "failure": "time is up", "truncated": True}, ""),
        ({"success": False, "failure": None}, ""),
    ],
)
def test_an_outcome_has_a_label(said: dict[str, Any], label: str) -> None:
    assert EpisodeOutcome.from_json(json.dumps({"index": 3, **said}), "/outcome").label == label


@pytest.mark.parametrize("text", ["{}", '{"index": 1}', '{"index": 1, "success": "yes"}', "3", '{"index": "1"}'])
def test_what_is_no_outcome_or_request_is_refused(text: str) -> None:
    with pytest.raises(StepError, match="/outcome"):
        EpisodeOutcome.from_json(text, "/outcome")
    if '"index": 1' not in text:
        with pytest.raises(StepError, match="/reset"):
            read_request(text, "/reset")
