"""The embedded critic behind the server, the scorer `vlm` that reads it, and the command."""

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from embodied_rl.cli.main import main
from embodied_rl.config.assets import find_asset
from embodied_rl.critic.critic_file import load_critic
from embodied_rl.critic.network import ProgressCritic
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from embodied_rl.serving import embedded_critic
from embodied_rl.serving.embedded_critic import EmbeddedCritic, split_bins
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.collecting import SPEC
from tests.support.running import started
from tests.support.scoring import score
from tests.support.serving import FakeCritic, make_critic, make_picture, running
from tests.support.tiny_vlms import save_idefics

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


def ask(
    url: str, requests: list[ScoreRequest], spec: SimulatorSpec = SPECIFICATION, check: bool = True, **config: Any
) -> list[Score]:
    return score(VlmScorer(VlmConfig(url=url, **config), spec), *requests, check=check)


@pytest.mark.parametrize("cameras", [("base",), ("wrist",), ("base", "wrist")])
def test_progress_is_what_the_critic_says(cameras: tuple[str, ...]) -> None:
    """Whichever of the simulator's cameras it looks at; the answer depends on every pixel, word and number."""
    requests = [make_request(seed) for seed in range(12)]
    with running(make_critic(cameras=cameras)) as server:
        found = ask(server.url, requests, prompt="embedded")
    wanted = [float(judge(FakeCritic(cameras=cameras), each).progress[0]) for each in requests]
    assert all(each.valid for each in found)
    assert [each.value for each in found] == pytest.approx(wanted, abs=1e-6)
    assert np.ptp(wanted) > 0.1


@pytest.mark.thorough
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
            found += ask(server.url, [each], check=False, prompt="embedded", model="critic")
            located.append(critic.located)
    assert all(row.base is None for row in model._starts.values()), "no row keeps its whole batch in memory"
    assert located == [1, 2, 3, 3, 3, 3, 4, 4, 5], "the fourth one drove out the first"
    wanted = [float(judge(FakeCritic(cameras=CAMERAS), each).progress[0]) for each in asked]
    assert [each.value for each in found] == pytest.approx(wanted, abs=1e-6)


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
        ask(server.url, [], prompt="progress_digit")


def test_a_camera_that_the_simulator_lacks_is_named() -> None:
    with running(make_critic(cameras=("ceiling",))) as server, pytest.raises(UserError, match="shows no 'ceiling'"):
        ask(server.url, [], prompt="embedded")


TABLETOP = spec_of(TabletopConfig())


@pytest.fixture(scope="module")
def shipped() -> ProgressCritic:
    """The one that is shipped."""
    return load_critic(find_asset("tabletop_critic.safetensors"))


def make_tabletop_request(shipped: ProgressCritic, seed: int) -> ScoreRequest:
    random = np.random.default_rng(seed)
    cameras = {camera.name: (camera.height, camera.width, 3) for camera in TABLETOP.cameras}
    words = list(shipped.vocabulary)
    text = " ".join(random.choice(words, 3))
    frames = {name: random.integers(0, 256, (1, *size), np.uint8) for name, size in cameras.items()}
    first = {name: random.integers(0, 256, size, np.uint8) for name, size in cameras.items()}
    return ScoreRequest(
        seed, 0, "absolute", text, frames, first, random.normal(size=len(TABLETOP.state_names)).astype(np.float32)
    )


@pytest.mark.thorough
def test_the_scorer_reads_what_the_network_says(shipped: ProgressCritic) -> None:
    """Progress and done, of batches, to a millionth."""
    requests = [make_tabletop_request(shipped, seed) for seed in range(16)]
    judged = shipped(
        {name: np.concatenate([each.frames[name] for each in requests]) for name in shipped.cameras},
        {name: np.stack([each.first[name] for each in requests]) for name in shipped.cameras},
        [each.instruction for each in requests],
        np.stack([each.state for each in requests]),
    )
    with running(EmbeddedCritic(shipped, "critic")) as server:
        found = ask(server.url, requests, TABLETOP, prompt="embedded", done_prompt="embedded_done")
    assert [each.value for each in found] == pytest.approx(judged.progress.tolist(), abs=2e-6)
    assert [each.done for each in found] == pytest.approx(judged.done.tolist(), abs=2e-6)
    assert np.ptp(judged.progress) > 0.01


def test_what_does_not_fit_is_named(shipped: ProgressCritic) -> None:
    request = make_tabletop_request(shipped, 0)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"instruction": "sing a song"}, "does not know the word 'sing'"),
        ({"state": np.zeros(2, np.float32)}, "state entries"),
        ({"frames": {n: p[:, :16, :16] for n, p in request.frames.items()},
          "first": {n: p[:16, :16] for n, p in request.first.items()}}, "takes pictures of"),
    ]  # fmt: skip
    with running(EmbeddedCritic(shipped, "critic")) as server:
        for change, says in changes:
            with pytest.raises(ScorerError, match=says):
                ask(server.url, [ScoreRequest(**{**vars(request), **change})], TABLETOP, prompt="embedded")


@pytest.mark.thorough
@pytest.mark.process
def test_the_command(tmp_path: Path, shipped: ProgressCritic) -> None:
    """It says where it listens and what to type; what it says to type works; Ctrl-C ends it."""
    with started(tmp_path, "critic", "serve", "asset:tabletop_critic.safetensors", "port=0") as process:
        assert process.wait_until(lambda: "Ask it:" in process.output())
        said = process.output()
        assert shipped.identity in said and "tabletop_critic" in said
        typed = re.search(r"reward\.url=(\S+) reward\.prompt=(\S+)", said)
        assert typed is not None, said
        (found,) = ask(typed[1], [make_tabletop_request(shipped, 1)], TABLETOP, prompt=typed[2])
        assert found.valid
        process.process.send_signal(signal.SIGINT)
        code, said = process.finish()
        assert code == 128 + signal.SIGINT and "The server has ended." in said and "Traceback" not in said


@pytest.mark.thorough
@pytest.mark.process
def test_the_command_with_a_folder_and_a_token(tmp_path: Path) -> None:
    save_idefics(tmp_path / "tiny")
    words = ("critic", "serve", "tiny", "port=0", "token_variable=CRITIC_TOKEN", "name=judge")
    with started(tmp_path, *words, CRITIC_TOKEN="0123456789abcdefghij") as process:
        assert process.wait_until(lambda: "Ask it:" in process.output())
        said = process.output()
        assert "0123456789abcdefghij" not in said and "reward.key_variable=CRITIC_TOKEN" in said
        found = re.search(r"reward\.url=(\S+)", said)
        assert found is not None
        models = lambda headers: httpx2.get(f"{found[1]}/models", headers=headers, timeout=60)  # noqa: E731
        assert models({}).status_code == 401
        listed = models({"Authorization": "Bearer 0123456789abcdefghij"}).json()["data"]
        assert [each["id"] for each in listed] == ["judge"]
        process.process.send_signal(signal.SIGTERM)
        assert process.finish()[0] == 128 + signal.SIGTERM


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words, says",
    [
        (["model=nowhere.safetensors"], "there is no such file or folder"),
        (["model=asset:tabletop_base.safetensors"], "no critic of this library"),
        (["model=asset:tabletop_critic.safetensors", "device=quantum"], "device=quantum is unknown"),
        (["model=asset:tabletop_critic.safetensors", "host=0.0.0.0"], "a token is needed"),
        (["model=asset:tabletop_critic.safetensors", "port=70000"], "port"),
        (["model=empty"], r"config\.json"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_mistakes_are_told_before_anything_listens(
    words: list[str], says: str, dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embodied_rl.serving.listening.serve", lambda *_: pytest.fail("it listens"))
    assert main(["critic", "serve", *words, *(["--dry-run"] if dry else [])]) == 2
    assert re.search(says, capsys.readouterr().err)
