"""Questions show earlier frames of their own episode: the latest, or some of all, in bounded memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.interfaces.scorer import Span
from embodied_rl.judge.reward.scoring_requests import FrameHistory
from embodied_rl.judge.scorers.shared_images import Picture
from tests.support.collecting import SPEC


def draw(code: int) -> dict[str, Picture]:
    return {"top": Picture(np.full((8, 8, 3), code % 256, np.uint8))}


def make(frames: int, span: Span, num_envs: int = 2) -> FrameHistory:
    return FrameHistory(SPEC, ["top"], num_envs, frames, span)


def look(history: FrameHistory, code: int, column: int = 1) -> list[int]:
    shown = history.show(column, draw(code))["top"]
    assert shown.dtype == np.uint8 and shown.shape[1:] == (8, 8, 3)
    return shown[:, 0, 0, 0].tolist()


def test_the_latest_frames_with_the_present_one_last() -> None:
    history = make(3, "latest")
    seen = []
    for code in range(5):
        seen.append(look(history, code))
        history.add(1, draw(code))
    assert seen == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert look(history, 9, column=0) == [9] and not history.has_earlier(0), "environments do not mix"


def test_an_episode_forgets_the_one_before() -> None:
    for span in ("latest", "episode"):
        history = make(4, span)
        for code in range(40):
            history.add(1, draw(code))
        assert history.has_earlier(1)
        history.begin(1)
        assert look(history, 50) == [50] and not history.has_earlier(1)
        history.add(1, draw(60))
        history.add(1, draw(61))
        assert look(history, 62) == [60, 61, 62], "none is left out at first"


@given(frames=st.integers(2, 9), length=st.integers(0, 200))
def test_an_episode_is_shown_evenly(frames: int, length: int) -> None:
    history = make(frames, "episode")
    for code in range(length):
        history.add(1, draw(code))
    shown = look(history, length)
    assert shown[-1] == length and len(shown) <= frames and shown == sorted(set(shown))
    assert shown[0] == 0
    if length >= frames:
        assert len(shown) == frames
        assert np.diff(shown).max() <= 4 * length / frames + 1, "no part is left out"


def test_one_frame_keeps_nothing() -> None:
    history = make(1, "latest")
    history.add(1, draw(3))
    assert look(history, 4) == [4] and history.state() == {}
    history.load({})


@pytest.mark.parametrize("span", ["latest", "episode"])
def test_a_state_restores_all(span: Span) -> None:
    history, other = make(3, span), make(3, span)
    for code in range(17):
        history.add(1, draw(code))
    state = history.state()
    other.load(state)
    assert look(other, 20) == look(history, 20)
    for code in range(17, 40):
        history.add(1, draw(code))
        other.add(1, draw(code))
    assert look(other, 41) == look(history, 41)
    again = make(3, span)
    again.load(state)
    assert look(again, 20) != look(history, 20), "a state is a copy"


@pytest.mark.parametrize("span", ["latest", "episode"])
def test_requests_share_their_pictures(span: Span) -> None:
    """A prompt over 16 frames of an episode costs each request no copy of them."""
    history, shown, made = make(16, span), [], []
    for code in range(100):
        made.append(draw(code))
        shown.append(history.show(1, made[-1]))
        history.add(1, made[-1])
    pictures = {id(each) for request in shown for each in request.pictures["top"]}
    assert pictures <= {id(each["top"]) for each in made}
    assert sum(len(request["top"]) for request in shown) > 10 * len(pictures)
