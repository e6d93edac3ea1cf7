"""A scorer behind Robometer's own server (`robometer/evals/eval_server.py` of github.com/robometer/robometer, MIT).

It estimates progress and the probability of done for each frame of a video. Pictures are sent as arrays in a form, the
server's `ProgressSample`, to `/evaluate_batch_npy`; a sample names the form's file that holds its array.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreKind, ScoreRequest, ScorerError, ScorerTraits, list_scored_cameras
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import Address, SecretName, Text
from embodied_rl.judge.scorers.http_json import ServerScorer, check_url

ROUNDING = 1e-3
"""Numbers may lie outside of 0…1 by so much."""


@dataclass(frozen=True)
class RobometerConfig:
    """The settings of `RobometerScorer`."""

    url: Address | None = None
    """of the server, such as http://127.0.0.1:8000."""
    camera: Text | None = None
    """camera of the sent pictures; null takes the only one."""
    frames: int = 8
    """frames of the episode so far that are sent, evenly; the model was trained with 8."""
    batch: int = 4
    """requests of one call."""
    key_variable: SecretName | None = None
    """environment variable that holds a key, where something before the server wants one."""

    def __post_init__(self) -> None:
        check_url(self.url, "http://127.0.0.1:8000")
        if not 1 <= self.frames <= 64 or self.batch < 1:
            raise UserError(
                "reward.frames must be within 1 … 64, and reward.batch at least 1.", code="value-out-of-range"
            )


class RobometerScorer(ServerScorer):
    """Asks Robometer about the episode so far, or about each frame of one."""

    Config = RobometerConfig

    def __init__(
        self, config: RobometerConfig, spec: SimulatorSpec, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(config.url, config.key_variable, transport)
        self._config, self._camera = config, choose_camera(config.camera, spec)
        identity = f"Robometer at {config.url}, camera {self._camera}, {config.frames} frames"
        self.traits = ScorerTraits(
            ("absolute", "trajectory"), identity, batch=config.batch, judges_done=True, frames=config.frames,
            span="episode",
        )  # fmt: skip

    async def check(self) -> None:
        """Check the server's health, and score grey pictures once, or raise `UserError`."""
        frames = np.full((2, 32, 32, 3), 128, np.uint8)
        asked = ScoreRequest(
            0, 0, "absolute", "nothing", {self._camera: frames}, {self._camera: frames[0]}, np.zeros(0, np.float32)
        )
        try:
            said = await self._server.send("GET", "health")
            (score,) = await self.score([asked])
        except ScorerError as error:
            raise UserError(f"reward.url={self._config.url}: {error}", code=f"scorer-{error.reason}") from None
        if said.get("status") != "healthy" or not score.valid:
            raise UserError(
                f"reward.url={self._config.url} did not answer as a Robometer server: {score.detail or said}.",
                code="scorer-refused",
            )

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer requests; those of one kind and length share a call, because the server fills up shorter ones."""
        groups: dict[tuple[ScoreKind, int], list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault((request.kind, len(request.frames[self._camera])), []).append(place)
        scores: dict[int, Score] = {}
        for (kind, count), places in groups.items():
            each_frame = kind == "trajectory"
            forms, files = {"use_frame_steps": "true" if each_frame else "false"}, {}
            for number, place in enumerate(places):
                request, file = requests[place], io.BytesIO()
                name, frames = f"sample_{number}_trajectory_frames", request.frames[self._camera]
                np.save(file, np.ascontiguousarray(frames), allow_pickle=False)
                files[name] = (f"{name}.npy", file.getvalue(), "application/octet-stream")
                trajectory = {
                    "frames": {"__numpy_file__": name},
                    "frames_shape": list(frames.shape),
                    "task": request.instruction,
                    "id": f"{request.episode}/{request.decision}",
                    "metadata": {"subsequence_length": len(frames)},
                    "video_embeddings": None,
                }
                forms[f"sample_{number}"] = json.dumps({"sample_type": "progress", "trajectory": trajectory})
            answer = await self._server.send("POST", "evaluate_batch_npy", data=forms, files=files)
            found = read_scores(answer, len(places), count if each_frame else None)
            scores |= dict(zip(places, found, strict=True))
        return [scores[place] for place in range(len(requests))]


def choose_camera(name: str | None, spec: SimulatorSpec) -> str:
    """Return the camera of a scorer that looks through one, or raise `UserError`."""
    known = list_scored_cameras(spec)
    if name is None and len(known) != 1:
        raise UserError(f"reward.camera is missing: choose one of {', '.join(known)}.", code="camera-missing")
    if name is not None and name not in known:
        raise UserError(
            f"reward.camera: no scored camera is called '{name}'.{suggest_name(name, known)}", code="camera-unknown"
        )
    return name or known[0]


def read_scores(answer: dict[str, Any], count: int, frames: int | None) -> list[Score]:
    """Return the scores of an answer about `count` samples.

    Args:
        answer: of the server.
        count: number of samples.
        frames: of each of them, if a number was asked for each; the last number of a sample counts in any case.
    """
    try:
        progress = answer["outputs_progress"]["progress_pred"]
        success = (answer.get("outputs_success") or {}).get("success_probs")
        lists = [_read_numbers(each) for each in progress]
        dones = [_read_numbers(each) for each in success] if success else [[] for _ in lists]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return [Score.invalid("unreadable", f"not an answer of Robometer ({error})")] * count
    if len(lists) != count or len(dones) != count:
        return [Score.invalid("unreadable", f"{len(lists)} answers to {count} questions")] * count
    scores: list[Score] = []
    for values, done in zip(lists, dones, strict=True):
        if not values or (frames is not None and len(values) != frames):
            scores.append(Score.invalid("unreadable", f"{len(values)} numbers for {frames or 'at least 1'} frames"))
        else:
            each = tuple(values) if frames is not None else ()
            scores.append(Score(values[-1], done[-1] if done else None, values=each).checked("absolute"))
    return scores


def _read_numbers(values: Any) -> list[float]:
    """Return numbers, those within rounding of 0…1 put back, or raise `TypeError` or `ValueError`."""
    if not isinstance(values, list) or any(
        isinstance(each, bool) or not isinstance(each, int | float) for each in values
    ):
        raise TypeError(f"{values!r:.40} are not numbers")
    if not all(math.isfinite(each) for each in values):
        raise ValueError("a number is not finite")
    return [min(max(each, 0.0), 1.0) if -ROUNDING <= each <= 1 + ROUNDING else float(each) for each in values]
