"""Whatever a stranger sends as a request, it is understood, or refused by a message that a terminal can show."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.schema import FaultsNode
from embodied_rl.simulated_robot.requests import LONGEST, make_printable, read_episode, read_faults
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

SPEC = Tabletop.spec_of(TabletopConfig())
SPLITS = ("train", *SPEC.splits)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
EPISODES = st.dictionaries(st.sampled_from(["index", "task", "seed", "initial_state", "split"]) | st.text(), VALUES)
FAULTS = st.dictionaries(st.sampled_from(list(FaultsNode.__dataclass_fields__)) | st.text(max_size=8), VALUES)
SOUND = st.fixed_dictionaries(
    {"index": st.integers(0, 2**63 - 1), "task": st.integers(0, 6), "seed": st.integers(0, 2**63 - 1)},
    optional={"initial_state": st.none() | st.integers(0, 9), "split": st.sampled_from(SPLITS)},
)


@settings(max_examples=50)
@given(SOUND)
def test_what_is_sound_is_understood(told: dict) -> None:
    episode = read_episode(json.dumps(told), SPEC)
    assert episode == Episode(**{"split": "train", **told})


@settings(max_examples=50)
@given(st.text() | EPISODES.map(json.dumps) | VALUES.map(json.dumps))
@example('{"index": 0, "task": 0, "seed": 0, "split": "\\ud800"}')
@example('{"index": "\\u001b[2J", "task": 0, "seed": 0}')
def test_an_episode_is_understood_or_refused(text: str) -> None:
    try:
        episode = read_episode(text, SPEC)
    except UserError as error:
        assert make_printable(str(error)).isprintable()
        return
    assert len(text) <= LONGEST and 0 <= episode.task < len(SPEC.tasks) and episode.split in SPLITS
    assert all(type(each) is int and 0 <= each < 2**63 for each in (episode.index, episode.task, episode.seed))


@settings(max_examples=50)
@given(st.text() | FAULTS.map(json.dumps) | VALUES.map(json.dumps))
@example('{"delay": 1e999}')
@example('{"clock_jump": NaN}')
def test_faults_are_understood_or_refused(text: str) -> None:
    faults = FaultsNode()
    with suppress(UserError):
        faults = read_faults(text)
    assert 0 <= faults.share <= 1 and 0 <= faults.delay <= 60 and 0 <= faults.restart <= 60
    assert abs(faults.clock_jump) <= 1e6 and 0 <= faults.command_delay <= 60


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ü", "plain – ü"),
        ("\x1b[2Jx", "\\x1b[2Jx"),
        ("a\nb", "a\\nb"),
        ("\ud800", "\\ud800"),
        ("x" * 400, "x" * 300 + "…"),
    ],
)
def test_what_is_shown_cannot_steer_a_terminal(text: str, shown: str) -> None:
    assert make_printable(text) == shown
