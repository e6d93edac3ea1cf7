"""Robometer's client speaks the server's form, and reads its answers; what is no answer is no score."""

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

import httpx2
import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.interfaces.sim import Array, Camera
from embodied_rl.judge.scorers.robometer import RobometerConfig, RobometerScorer
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import score

URL = "http://server.example"
ONE = replace(SPEC, cameras=(Camera("front", 8, 8),))
HEALTH = {"status": "healthy", "available_gpus": 1, "total_gpus": 1}


def read_form(sent: httpx2.Request) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the fields of a form, as a server's parser finds them."""
    head = f"Content-Type: {sent.headers['Content-Type']}\r\n\r\n".encode()
    arrays: dict[str, Array] = {}
    fields: dict[str, str] = {}
    for part in BytesParser(policy=HTTP).parsebytes(head + sent.content).iter_parts():
        name, body = str(part.get_param("name", header="content-disposition")), part.get_payload(decode=True)
        assert isinstance(body, bytes)
        if part.get_filename():
            assert str(part.get_filename()).endswith(".npy"), "the server skips other files"
            arrays[name] = np.load(io.BytesIO(body), allow_pickle=False)
        else:
            fields[name] = body.decode()
    return arrays, fields


def serve(sent: httpx2.Request) -> dict[str, Any]:
    """Answers as eval_server.py does: progress = brightness of each frame, success = its square.

    Without `use_frame_steps` shorter videos of a batch are filled up with 0, as its collator does.
    """
    arrays, fields = read_form(sent)
    each_frame = fields.pop("use_frame_steps") == "true"
    found = []
    for place in range(len(fields)):
        sample = json.loads(fields[f"sample_{place}"])
        trajectory = sample["trajectory"]
        assert sample["sample_type"] == "progress" and trajectory["task"]
        frames = arrays[trajectory["frames"]["__numpy_file__"]]
        assert frames.dtype == np.uint8 and list(frames.shape) == trajectory["frames_shape"] and frames.ndim == 4
        found.append([float(frame.mean()) / 255 for frame in frames])
    longest = max(map(len, found))
    if not each_frame:
        found = [each + [0.0] * (longest - len(each)) for each in found]
    return {
        "outputs_preference": None,
        "outputs_progress": {"progress_pred": found},
        "outputs_success": {"success_probs": [[value**2 for value in each] for each in found]},
    }


def make_request(*codes: int, kind: Any = "absolute") -> ScoreRequest:
    frames = np.stack([np.full((8, 8, 3), code, np.uint8) for code in codes])
    return ScoreRequest(1, 2, kind, "stack the cups", {"front": frames}, {"front": frames[0]}, np.zeros(3, np.float32))


def ask(
    answer: Callable[[httpx2.Request], Any], requests: Sequence[ScoreRequest], check: bool = False, **config: Any
) -> Sequence[Score]:
    calls: list[httpx2.Request] = []

    def reply(sent: httpx2.Request) -> httpx2.Response:
        if sent.url.path == "/health":
            return httpx2.Response(200, json=HEALTH)
        assert str(sent.url) == f"{URL}/evaluate_batch_npy"
        calls.append(sent)
        said = answer(sent)
        return said if isinstance(said, httpx2.Response) else httpx2.Response(200, json=said)

    scorer = RobometerScorer(RobometerConfig(url=URL, **config), ONE, httpx2.MockTransport(reply))
    return score(scorer, *requests, check=check)


def test_the_last_frame_counts() -> None:
    (score,) = ask(serve, [make_request(0, 51, 204)], check=True)
    assert score.value == pytest.approx(0.8) and score.done == pytest.approx(0.64) and score.values == ()


def test_requests_of_other_lengths_do_not_mix() -> None:
    """In one call the server would fill up the shorter video, and its last number would not be its own."""
    asked = [
        make_request(0, 102),
        make_request(0, 0, 153),
        make_request(0, 204),
        make_request(0, 255, kind="trajectory"),
    ]
    scores = ask(serve, asked)
    assert [score.value for score in scores] == pytest.approx([0.4, 0.6, 0.8, 1.0])


def test_each_frame_of_a_trajectory() -> None:
    steps: list[str] = []

    def note(sent: httpx2.Request) -> dict[str, Any]:
        steps.append(read_form(sent)[1]["use_frame_steps"])
        return serve(sent)

    (score,) = ask(note, [make_request(0, 51, 204, kind="trajectory")])
    ask(note, [make_request(0, 51, 204)])
    assert steps == ["true", "false"], "of a video alone it tells fewer numbers than frames"
    assert score.values == pytest.approx((0.0, 0.2, 0.8)) and score.value == score.values[-1]


def test_a_model_without_a_success_head_says_nothing_of_done() -> None:
    for missing in (None, {}, {"success_probs": []}):
        (score,) = ask(lambda sent, missing=missing: serve(sent) | {"outputs_success": missing}, [make_request(0, 51)])
        assert score.value == pytest.approx(0.2) and score.done is None


def test_rounding_is_forgiven_and_no_more() -> None:
    def say(value: Any) -> Score:
        return ask(lambda sent: {"outputs_progress": {"progress_pred": [[0.5, value]]}}, [make_request(0, 1)])[0]

    assert say(1.0000002).value == 1.0 and say(-1e-7).value == 0.0 and say(1).value == 1.0
    assert say(1.2).reason == "range"


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"outputs_progress": None}, {"outputs_progress": {"progress_pred": None}},
        {"outputs_progress": {"progress_pred": []}}, {"outputs_progress": {"progress_pred": [[]]}},
        {"outputs_progress": {"progress_pred": [[0.5], [0.5]]}}, {"outputs_progress": {"progress_pred": [["0.5"]]}},
        {"outputs_progress": {"progress_pred": [[True]]}}, {"outputs_progress": {"progress_pred": [[10**400]]}},
        {"outputs_progress": {"progress_pred": [[0.5]]}, "outputs_success": {"success_probs": [[0.5], [0.5]]}},
        {"outputs_progress": {"progress_pred": [[0.5]]}, "outputs_success": [0.5]},
    ],
)  # fmt: skip
def test_what_is_no_answer_is_no_score(answer: dict[str, Any]) -> None:
    (score,) = ask(lambda sent: answer, [make_request(0, 51)])
    assert score.reason == "unreadable" and math.isnan(score.value)


def test_a_trajectory_needs_a_number_for_each_frame() -> None:
    short = {"outputs_progress": {"progress_pred": [[0.5, 0.6]]}}
    (score,) = ask(lambda sent: short, [make_request(0, 51, 90, kind="trajectory")])
    assert score.reason == "unreadable" and "2 numbers for 3 frames" in score.detail


def test_trouble_is_told() -> None:
    with pytest.raises(ScorerError, match="500"):
        ask(lambda sent: httpx2.Response(500, text="CUDA out of memory"), [make_request(0)])
    with refuses("scorer-failed", "http://server.example", "CUDA"):
        ask(lambda sent: httpx2.Response(500, text="CUDA out of memory"), [make_request(0)], check=True)
    with refuses("scorer-refused"):
        ask(lambda sent: {}, [make_request(0)], check=True)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"url": None}, "reward.url is missing"), ({"url": "server"}, "http://"), ({"frames": 0}, "reward.frames"),
        ({"batch": 0}, "reward.batch"), ({"camera": "frnt"}, "'frnt'.*front"), ({}, "reward.camera is missing.*front"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    two = replace(SPEC, cameras=(Camera("front", 8, 8), Camera("wrist", 8, 8)))
    given: dict[str, Any] = {"url": URL} | settings
    with pytest.raises(UserError, match=says):
        RobometerScorer(RobometerConfig(**given), two)
