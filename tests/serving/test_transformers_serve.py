"""The scorer `vlm` against a real `transformers serve`, with a tiny model whose every answer is a digit."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from embodied_rl.serving.vision_language import load_model
from tests.serving.test_embedded_critic import SPECIFICATION, make_request
from tests.support.serving import running
from tests.support.tiny_vlms import save_idefics

pytestmark = [pytest.mark.process, pytest.mark.thorough]
DEADLINE = 240.0
STARTING = "from transformers.cli.transformers import main; main()"
REQUESTS = [make_request(seed) for seed in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that answers "3" or "8", by what it is asked: one direction of its last layer decides."""
    path = tmp_path_factory.mktemp("judge") / "digits"
    save_idefics(path)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096  # a letter is a token, and there are two pictures
    (path / "config.json").write_text(json.dumps(config))
    seen = find_features(path)
    difference, mean = seen[0] - seen[1], seen.mean(0)
    direction = difference - mean * (difference @ mean) / (mean @ mean)  # along which the questions' mean is 0
    tensors = load_file(path / "model.safetensors")
    rows, (low, high) = tensors["lm_head.weight"], AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(["3", "8"])
    rows.zero_()
    rows[low], rows[high] = -2000 * direction, 2000 * direction  # so that no other token is likely
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def find_features(path: Path) -> torch.Tensor:
    """What the last layer sees of each of the questions, [questions, width]."""
    model, seen = load_model(path, "digits", "cpu", "float32"), list[torch.Tensor]()
    network: Any = next(part for part in vars(model).values() if isinstance(part, torch.nn.Module))
    network.get_output_embeddings().register_forward_pre_hook(lambda _, told: seen.append(told[0][0, -1].double()))
    with running(model) as ours:
        score(ours.url, "digits", check=False, least_mass=0.0)
    assert len(seen) == len(REQUESTS)
    return torch.stack(seen).float()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server looks for models that were downloaded; it is not there yet."""
    return tmp_path_factory.mktemp("hub") / "cache"


@pytest.fixture(scope="module")
def url(folder: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of that folder alone, on a port that nobody else took meanwhile."""
    environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    for _ in range(5):
        log = tmp_path_factory.mktemp("server") / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = ["serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        command = [sys.executable, "-c", STARTING, *words, "--dtype", "float32"]
        with log.open("w") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as server:
            try:
                if listens(server, port, log):
                    yield f"http://127.0.0.1:{port}/v1"
                    return
            finally:
                server.kill()
    pytest.fail(log.read_text())


def listens(server: "subprocess.Popen[bytes]", port: int, log: Path) -> bool:
    """Wait until the server has the port; False where it ended, as it does where another process has it."""
    until = time.monotonic() + DEADLINE
    while f"running on http://127.0.0.1:{port}" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        if server.poll() is not None:
            return False
        time.sleep(0.1)
    return True


def score(url: str, model: str, check: bool = True, **config: Any) -> list[Score]:
    async def run() -> list[Score]:
        scorer = VlmScorer(VlmConfig(url=url, model=model, **config), SPECIFICATION)
        await scorer.open()
        try:
            if check:
                await scorer.check()
            return [found for each in REQUESTS for found in await scorer.score([each])]
        finally:
            await scorer.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[float]:
    """What our own server says of the same questions: 3/9 and 8/9."""
    with running(load_model(folder, "digits", "cpu", "float32")) as ours:
        found = [each.value for each in score(ours.url, "digits") if each.valid]
    assert len(found) == len(REQUESTS)
    likely = [3 / 9 if value < 5.5 / 9 else 8 / 9 for value in found]
    assert len(set(likely)) == 2, "the questions differ in their answers"
    return likely


def test_it_says_what_our_server_says(url: str, folder: Path, cache: Path, wanted: list[float]) -> None:
    """Without log-probabilities, the likeliest digit; and whether it can list no models, or others alone."""
    shutil.rmtree(cache, ignore_errors=True)
    assert httpx2.get(f"{url}/models").status_code == 500, "it has no cache"
    assert [each.value for each in score(url, str(folder))] == pytest.approx(wanted, abs=1e-6)
    put_into(cache, "somebody/another")
    assert [each["id"] for each in httpx2.get(f"{url}/models").json()["data"]] == ["somebody/another"]
    assert [each.value for each in score(url, str(folder))] == pytest.approx(wanted, abs=1e-6)


def test_a_model_that_it_does_not_serve(url: str) -> None:
    with pytest.raises(UserError, match="pinned to"):
        score(url, "somebody/third")


def put_into(cache: Path, name: str) -> None:
    """As `hf download` leaves a model."""
    place, revision = cache / f"models--{name.replace('/', '--')}", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision)
    (place / "snapshots" / revision).mkdir(parents=True)
    config = {"model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"]}
    (place / "snapshots" / revision / "config.json").write_text(json.dumps(config))
