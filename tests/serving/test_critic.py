"""The network of an embedded critic behind the server, and the command."""

import asyncio
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from embodied_rl.cli.main import main
from embodied_rl.config.assets import find_asset
from embodied_rl.critic.critic_file import load_critic
from embodied_rl.critic.network import ProgressCritic
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from embodied_rl.serving.embedded_critic import EmbeddedCritic
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.running import started
from tests.support.serving import running
from tests.support.tiny_vlms import save_idefics

SPEC = spec_of(TabletopConfig())


@pytest.fixture(scope="module")
def critic() -> ProgressCritic:
    """The one that is shipped."""
    return load_critic(find_asset("tabletop_critic.safetensors"))


def make_request(critic: ProgressCritic, seed: int) -> ScoreRequest:
    random = np.random.default_rng(seed)
    cameras = {camera.name: (camera.height, camera.width, 3) for camera in SPEC.cameras}
    words = list(critic.vocabulary)
    text = " ".join(random.choice(words, 3))
    frames = {name: random.integers(0, 256, (1, *size), np.uint8) for name, size in cameras.items()}
    first = {name: random.integers(0, 256, size, np.uint8) for name, size in cameras.items()}
    return ScoreRequest(
        seed, 0, "absolute", text, frames, first, random.normal(size=len(SPEC.state_names)).astype(np.float32)
    )


def score(url: str, requests: list[ScoreRequest], **config: Any) -> list[Score]:
    async def run() -> list[Score]:
        scorer = VlmScorer(VlmConfig(url=url, **config), SPEC)
        await scorer.open()
        try:
            await scorer.check()
            return [each for found in await asyncio.gather(*(scorer.score([r]) for r in requests)) for each in found]
        finally:
            await scorer.close()

    return asyncio.run(run())


def test_the_scorer_reads_what_the_network_says(critic: ProgressCritic) -> None:
    """Progress and done, of batches, to a millionth."""
    requests = [make_request(critic, seed) for seed in range(16)]
    judged = critic(
        {name: np.concatenate([each.frames[name] for each in requests]) for name in critic.cameras},
        {name: np.stack([each.first[name] for each in requests]) for name in critic.cameras},
        [each.instruction for each in requests],
        np.stack([each.state for each in requests]),
    )
    with running(EmbeddedCritic(critic, "critic")) as server:
        found = score(server.url, requests, prompt="embedded", done_prompt="embedded_done")
    assert [each.value for each in found] == pytest.approx(judged.progress.tolist(), abs=2e-6)
    assert [each.done for each in found] == pytest.approx(judged.done.tolist(), abs=2e-6)
    assert np.ptp(judged.progress) > 0.01


def test_what_does_not_fit_is_named(critic: ProgressCritic) -> None:
    request = make_request(critic, 0)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"instruction": "sing a song"}, "does not know the word 'sing'"),
        ({"state": np.zeros(2, np.float32)}, "state entries"),
        ({"frames": {n: p[:, :16, :16] for n, p in request.frames.items()},
          "first": {n: p[:16, :16] for n, p in request.first.items()}}, "takes pictures of"),
    ]  # fmt: skip
    with running(EmbeddedCritic(critic, "critic")) as server:
        for change, says in changes:
            with pytest.raises(ScorerError, match=says):
                score(server.url, [ScoreRequest(**{**vars(request), **change})], prompt="embedded")


@pytest.mark.process
def test_the_command(tmp_path: Path, critic: ProgressCritic) -> None:
    """It says where it listens and what to type; what it says to type works; Ctrl-C ends it."""
    with started(tmp_path, "critic", "serve", "asset:tabletop_critic.safetensors", "port=0") as process:
        assert process.wait_until(lambda: "Ask it:" in process.output())
        said = process.output()
        assert critic.identity in said and "tabletop_critic" in said
        typed = re.search(r"reward\.url=(\S+) reward\.prompt=(\S+)", said)
        assert typed is not None, said
        (found,) = score(typed[1], [make_request(critic, 1)], prompt=typed[2])
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
