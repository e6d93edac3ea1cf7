"""Control steps, outcomes and requests in JSON are exact and validated."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.deployment.recording.steps import ControlStep, EpisodeOutcome, StepError, read_request
from embodied_rl.interfaces.sim import Source
from tests.support.refusals import refuses

ACTIONS = st.none() | st.lists(st.floats(allow_nan=False, width=64, min_value=-1e299, max_value=1e299), max_size=4).map(
    tuple
)


@pytest.mark.thorough
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
def test_a_step_survives_a_round_trip(step: ControlStep) -> None:
    assert ControlStep.from_json(step.to_json()) == step


def test_undefined_entries_are_null() -> None:
    text = ControlStep(1, 0, 0, "run", Source.POLICY, executed=(1.0, math.nan, math.inf)).to_json()
    assert json.loads(text)["executed"] == [1.0, None, None]
    executed = ControlStep.from_json(text).executed
    assert executed is not None and executed[0] == 1.0 and all(map(math.isnan, executed[1:]))


STEP = {"time_ns": 1, "episode": 0, "step": 0, "mode": "run", "source": "policy", "executed": [0.0]}


@pytest.mark.parametrize(
    ("changed", "data"),
    [
        ({"time_ns": None}, "time_ns=None"),
        ({"time_ns": 1.5}, "time_ns=1.5"),
        ({"episode": True}, "episode=True"),
        ({"step": 2**63}, "step=9223372036854775808"),
        ({"source": "me"}, "source='me' is none of policy, human, replay, safety, hold"),
        ({"executed": ["1"]}, "executed"),
        ({"executed": [True]}, "executed"),
        ({"executed": [1e308]}, "executed"),
        ({"executed": [math.nan]}, "executed"),
        ({"executed": 1.0}, "executed"),
        ({"executed": [0] * 1025}, "1024"),
        ({"why": "x" * 5000}, "4096"),
        ({"label": "great"}, "'great'"),
        ({"mode": 3}, "mode"),
        ({"observed": ["/a"]}, "observed"),
        ({"observed": {"/a": -1}}, "observed"),
        ({"padding": "x" * 2**20}, str(2**20)),
    ],
)
def test_invalid_steps_are_refused(changed: dict[str, Any], data: str) -> None:
    assert ControlStep.from_json(json.dumps(STEP | {"latency": 3})).step == 0  # other keys are ignored
    code = {"label": "label-unknown", "padding": "message-too-large"}.get(next(iter(changed)), "step-invalid")
    with refuses(code, "/policy_bridge/steps", data, kind=StepError):
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
def test_invalid_outcomes_and_requests_are_refused(text: str) -> None:
    with pytest.raises(StepError, match="/outcome"):
        EpisodeOutcome.from_json(text, "/outcome")
    if '"index": 1' not in text:
        with pytest.raises(StepError, match="/reset"):
            read_request(text, "/reset")
