"""`embodied-rl serve` as a user starts and ends it, and `eval` that measures what it serves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.assembly.build import load_backbone
from embodied_rl.assembly.policy_factory import find_policy_file, load_deployed
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.cli.main import main
from embodied_rl.config.assets import find_asset
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.wire import pack
from embodied_rl.interfaces.sim import Observation
from embodied_rl.policy_server import served
from tests.support.faulty_policy_server import faulty_server
from tests.support.refusals import refuses

DEADLINE = 120.0
ASSET = "asset:tabletop_base.safetensors"
EVAL = ("episodes=8", "sim.num_envs=8", "plan.slices=1", "video.episodes=0", "video.best=0", "video.worst=0")


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command, and yield its process and the server's address; kill it at the end."""
    command = [sys.executable, "-m", "embodied_rl", "serve", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert " at ws://" in first, first + process.stdout.read()
        yield process, first.partition(" at ")[2].partition(";")[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def observe(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    image = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    return {"images/front": image, "state": random.normal(0, 0.1, 7), "prompt": "pick up the red cube"}


def episodes(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "report.json").read_text())["episodes"]


@pytest.mark.thorough
@pytest.mark.process
def test_what_is_served_is_measured_to_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ASSET, "port=0") as (process, url):
        served, here = tmp_path / "served", tmp_path / "here"
        assert main(["eval", url, "sim=tabletop", *EVAL, f"out={served}"]) == 0
        assert main(["eval", ASSET, *EVAL, f"out={here}"]) == 0
        assert episodes(served) == episodes(here), "roughness of the actions included"
        delayed = ("delay=1", "strategy=replacement", "replan=2", *EVAL)
        assert main(["eval", url, "sim=tabletop", *delayed, f"out={tmp_path / 'one'}"]) == 0
        assert main(["eval", ASSET, *delayed, f"out={tmp_path / 'other'}"]) == 0
        assert episodes(tmp_path / "one") == episodes(tmp_path / "other") != episodes(here)
        report = json.loads((served / "report.json").read_text())["metadata"]
        assert report["policies"][0]["policy"] == url and report["served"][url]["policy"] == "pocket"
        assert len(report["served"][url]["sha256"]) == 64
        assert main(["eval", url, "sim=tabletop", "sim.image_size=32", *EVAL, f"out={tmp_path / 'small'}"]) == 2
        assert "camera 'front' at (64, 64)" in capsys.readouterr().err
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 128 + signal.SIGINT
        assert "The server has ended." in process.stdout.read()  # type: ignore[union-attr]


@pytest.mark.thorough
@pytest.mark.process
def test_the_newest_weights_of_a_run_are_followed(tmp_path: Path) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"

    def write(step: int) -> Path:
        folder = checkpoints / f"{step:08d}"
        folder.mkdir(parents=True)
        file, asset = folder / "policy.safetensors", find_asset("tabletop_base.safetensors")
        network, robot = load_backbone(asset)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1 + 0.001 * step)
        said = read_metadata(asset)
        save_backbone(file, network, robot, said.policy, said.config, extra=said.extra)
        pointer = checkpoints / ".last"
        pointer.write_text(folder.name)
        pointer.replace(checkpoints / "last")
        return file

    first = write(1)
    with serving(str(tmp_path / "run"), "follow=true", "port=0") as (process, url):
        with PolicyClient(url, deadline=DEADLINE) as client:
            assert (client.act(observe(0)) == expect(first)).all() and client.version == 1
            third = write(3)
            line = ""
            while "Weights" not in line:
                line = process.stdout.readline()  # type: ignore[union-attr]
                assert line, "the server says what it swaps in"
            assert "Weights are now version 3" in line
            assert (client.act(observe(0)) == expect(third)).all() and client.version == 3
            assert (expect(first) != expect(third)).any()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE) == 128 + signal.SIGTERM


def expect(policy: Path) -> Any:
    given = observe(0)
    seen = Observation(
        {"front": given["images/front"][None]}, given["state"].astype(np.float32)[None], (given["prompt"],)
    )
    return load_deployed(str(policy)).infer(seen)[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent/none"], "no file or folder absent/none"),
        ([ASSET, "host=0.0.0.0"], "a token is needed"),
        ([ASSET, "follow=true"], "[run-missing]"),
        (["begun", "follow=true"], "has no checkpoint yet"),
        (["ws://127.0.0.1:1"], "policy-not-a-file"),
        (["expert"], "[policy-not-a-file]"),
        (["random"], "[policy-not-a-file]"),
        ([ASSET, "ports=1"], "ports"),
        ([ASSET, "token_variable=NONE_SUCH"], "at least 16 printable"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments, "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_names_that_the_policy_lacks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", ASSET, "port=0", "keys={images/wrist: observation/wrist_image}"]) == 2
    assert "the policy has no 'images/wrist'" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.process
def test_a_server_of_others_is_measured_and_what_nobody_checks_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[dict[str, Any]] = []

    def answer(number: int, asked: dict[str, Any]) -> bytes:
        seen.append(asked)
        return pack({"actions": np.zeros((5, 4), np.float32)})

    keys = "server.keys={images/front: observation/image, state: observation/state}"
    with faulty_server(answer, pack({})) as url:
        assert main(["eval", url, "sim=tabletop", *EVAL, keys, f"out={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert "cameras and their sizes, state names and units, action names" in said
    assert set(seen[0]) == {"observation/image", "observation/state", "prompt"} and len(seen) >= 8 * 10


def test_nobody_at_the_address_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["eval", "ws://127.0.0.1:9", "sim=tabletop", *EVAL, f"out={tmp_path}"]) != 0
    error = capsys.readouterr().err
    assert "ws://127.0.0.1:9" in error and "embodied-rl serve" in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "said"), [([ASSET, "server.deadline=3", "--dry-run"], "[key-unused]"), (["ws://127.0.0.1:9"], "sim")]
)
def test_an_evaluation_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys of a server without a server, and a server without a simulator."""
    assert main(["eval", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_play_asks_no_server() -> None:
    with refuses("policy-not-a-file"):
        find_policy_file("ws://127.0.0.1:9")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "find_spec", lambda name: None)
    with refuses("package-missing", "embodied-rl[serve]"):
        served.check_settings(served.PolicyServerSettings())
