"""The scorer `vlm` against the server: it reads what the critic says."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.interfaces.sim import Camera
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from embodied_rl.serving import embedded_critic
from embodied_rl.serving.embedded_critic import split_bins
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.serving import FakeCritic, Running, make_critic, make_picture, running

CAMERAS = ("wrist", "base")
KNOWN = {"words": ("", "pick", "red", "cube"), "state_names": ("x", "y", "z")}
SPECIFICATION = replace(SPEC, cameras=tuple(Camera(name, 16, 12) for name in CAMERAS), **KNOWN)


def make_request(seed: int, words: str = "pick red cube") -> ScoreRequest:
    frames = {name: make_picture(seed + number)[None] for number, name in enumerate(CAMERAS)}
    first = {name: make_picture(100 + seed + number) for number, name in enumerate(CAMERAS)}
    state = np.random.default_rng(seed).normal(size=3).astype(np.float32)
    return ScoreRequest(seed, 0, "absolute", words, frames, first, state)


def judge(critic: FakeCritic, request: ScoreRequest) -> Any:
    first = {name: request.first[name][None] for name in critic.cameras}
    frames = {name: request.frames[name] for name in critic.cameras}
    return critic.judge(frames, first, [request.instruction], request.state[None])


def score(server: Running, requests: list[ScoreRequest], check: bool = True, **config: Any) -> list[Score]:
    async def run() -> list[Score]:
        scorer = VlmScorer(VlmConfig(url=server.url, **config), SPECIFICATION)
        await scorer.open()
        try:
            if check:
                await scorer.check()
            return [found for each in await asyncio.gather(*(scorer.score([r]) for r in requests)) for found in each]
        finally:
            await scorer.close()

    return asyncio.run(run())


@pytest.mark.parametrize("cameras", [("base",), ("wrist",), ("base", "wrist")])
def test_progress_is_what_the_critic_says(cameras: tuple[str, ...]) -> None:
    """Whichever of the simulator's cameras it looks at; the answer depends on every pixel, word and number."""
    requests = [make_request(seed) for seed in range(12)]
    with running(make_critic(cameras=cameras)) as server:
        found = score(server, requests, prompt="embedded")
    wanted = [float(judge(FakeCritic(cameras=cameras), each).progress[0]) for each in requests]
    assert all(each.valid for each in found)
    assert [each.value for each in found] == pytest.approx(wanted, abs=1e-6)
    assert np.ptp(wanted) > 0.1


def test_done_is_what_the_critic_says() -> None:
    requests = [make_request(seed) for seed in range(6)]
    with running(make_critic(cameras=CAMERAS)) as server:
        found = score(server, requests, prompt="embedded_done")
    wanted = [float(judge(FakeCritic(cameras=CAMERAS), each).done[0]) for each in requests]
    assert [each.value for each in found] == pytest.approx(wanted, abs=1e-6)


def test_an_episode_s_first_picture_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each instruction; and again where too many others were asked about since. Answers are the same."""
    monkeypatch.setattr(embedded_critic, "KEPT_STARTS", 3)
    episodes = [make_request(seed) for seed in range(3)] + [make_request(0, "pick red")]
    later = [replace(make_request(10 + number), first=each.first, instruction=each.instruction)
             for number, each in enumerate(episodes)]  # fmt: skip
    model = make_critic(cameras=CAMERAS)
    critic: Any = model._critic
    with running(model) as server:
        asked = [*episodes[:3], *later[:3], episodes[3], later[3], later[0]]
        found, located = [], []
        for each in asked:
            found += score(server, [each], check=False, prompt="embedded", model="critic")
            located.append(critic.located)
    assert all(row.base is None for row in model._starts.values()), "no row keeps its whole batch in memory"
    assert located == [1, 2, 3, 3, 3, 3, 4, 4, 5], "the fourth one drove out the first"
    wanted = [float(judge(FakeCritic(cameras=CAMERAS), each).progress[0]) for each in asked]
    assert [each.value for each in found] == pytest.approx(wanted, abs=1e-6)


def test_a_question_alone_waits_for_nobody() -> None:
    """However long it might wait for others."""
    with running(make_critic(cameras=CAMERAS), wait=600.0) as server:
        began = time.monotonic()
        assert score(server, [make_request(0)], check=False, prompt="embedded", model="critic")[0].valid
        assert time.monotonic() - began < 60


@pytest.mark.parametrize("count", [21, 11, 10, 2])
def test_digits_keep_the_expectation_of_the_bins(count: int) -> None:
    """For random bins, and for all mass in one bin, which goes to at most two digits."""
    random = np.random.default_rng(0)
    for bins in [*random.dirichlet(np.full(count, 0.2), 50), *np.eye(count)]:
        digits = split_bins(bins)
        assert digits.sum() == pytest.approx(1, abs=1e-12) and (digits >= 0).all()
        assert digits @ np.arange(10) / 9 == pytest.approx(bins @ np.linspace(0, 1, count), abs=1e-12)
    assert all((split_bins(bins) > 1e-12).sum() <= 2 for bins in np.eye(count))


def test_other_prompts_are_refused_with_the_right_one() -> None:
    with running(make_critic(cameras=("base",))) as server, pytest.raises(UserError, match=r"reward\.prompt=embedded"):
        score(server, [], prompt="progress_digit")


def test_a_camera_that_the_simulator_lacks_is_named() -> None:
    with running(make_critic(cameras=("ceiling",))) as server, pytest.raises(UserError, match="shows no 'ceiling'"):
        score(server, [], prompt="embedded")


def test_a_picture_size_is_refused_where_pictures_travel_as_they_are() -> None:
    with refuses("key-unused", "reward.picture_size"):
        VlmScorer(VlmConfig(url="http://127.0.0.1:1/v1", prompt="embedded", picture_size=64), SPECIFICATION)
