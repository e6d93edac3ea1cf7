"""Clients of other projects are answered.

openpi's and the harness vla-eval's run from their packages, in an environment of their own. RoboArena's and
vLLM-Omni's are in no package on PyPI: what they sent to this server is recorded, and the test checks what they need of
its answers.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from embodied_rl.deployment.policy_client.request import WireNames
from embodied_rl.deployment.policy_client.wire import unpack
from tests.support.policy_serving import (
    DEADLINE,
    SPEC,
    ask,
    expect,
    make_observation,
    running_policy,
)
from tests.support.recorded_messages import ROBOARENA, VLLM_OMNI_RESET

CODE = """
import json, sys
import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.runtime.agents.policy_agent import PolicyAgent
from openpi_client.runtime.environment import Environment
from openpi_client.runtime.runtime import Runtime
from openpi_client.websocket_client_policy import WebsocketClientPolicy
given = np.load(sys.argv[2], allow_pickle=False)
observation = {name: given[name] for name in given.files if name != "prompt"} | {"prompt": str(given["prompt"])}
policy = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]), api_key=sys.argv[3])
answers = [policy.infer(observation) for _ in range(2)]

class Robot(Environment):
    applied = []
    def reset(self): self.steps = 0
    def is_episode_complete(self): return self.steps == 6
    def get_observation(self): return observation
    def apply_action(self, action):
        self.steps += 1
        self.applied.append(action["actions"].tolist())

broker = ActionChunkBroker(policy, action_horizon=policy.get_server_metadata()["horizon"])
Runtime(Robot(), PolicyAgent(broker), [], num_episodes=2).run()
try:
    policy.infer({"prompt": "go left"})
    said = ""
except RuntimeError as error:
    said = str(error)
print(json.dumps({"numpy": np.__version__, "actions": [answer["actions"].tolist() for answer in answers],
                  "dtype": str(answers[0]["actions"].dtype), "said": said, "applied": Robot.applied,
                  "timing": sorted(answers[1]["server_timing"]),
                  "names": policy.get_server_metadata()["action_names"]}))
"""

HARNESS = """
import asyncio, json, sys
import numpy as np
from vla_eval.connection import Connection
from vla_eval.protocol.numpy_codec import set_image_format
given = np.load(sys.argv[2], allow_pickle=False)
images = {name.partition("/")[2]: given[name] for name in given.files if name.startswith("images/")}
payload = {"images": images, "state": given["state"], "task_description": str(given["prompt"])}
async def run(form):
    set_image_format(form)
    async with Connection(f"ws://127.0.0.1:{sys.argv[1]}/vla-eval", timeout=60.0) as connection:
        await connection.start_episode({"task": {"name": "go"}})
        actions = [(await connection.act(payload))["actions"] for _ in range(4)]
        await connection.end_episode({"metrics": {"success": True}})
        try:
            await connection.act({"images": {}})
            said = ""
        except RuntimeError as error:
            said = str(error)
        spec = connection.server_info["action_spec"]["actions"]
        return {"actions": [action.tolist() for action in actions], "said": said, "dims": spec["dims"]}
print(json.dumps([asyncio.run(run(form)) for form in ("raw", "png")]))
"""


DROID = WireNames(
    {
        "images/front": "observation/exterior_image_0_left",
        "images/wrist": "observation/wrist_image_left",
        "state": "observation/joint_position+observation/gripper_position",
    },
    ("observation/cartesian_position",),
)
CONFIGURATION = {
    "image_resolution": [4, 5],
    "needs_wrist_camera": True,
    "n_external_cameras": 1,
    "needs_stereo_camera": False,
    "needs_session_id": True,
    "action_space": "joint_position",
}
"""Of RoboArena's server: scripts around its client, and DreamZero's, take these metadata and no others."""


@pytest.mark.parametrize(
    ("path", "reset", "acknowledged"),
    [
        ("", ROBOARENA["reset"], "reset successful"),
        ("/v1/realtime/robot/openpi", VLLM_OMNI_RESET, {"status": "reset successful"}),
    ],
    ids=["roboarena", "vllm-omni"],
)
def test_recorded_clients_are_answered(path: str, reset: str, acknowledged: Any) -> None:
    expected = expect(make_observation(), whole=True)
    with (
        running_policy(names=DROID, metadata=CONFIGURATION) as running,
        connect(running.url + path, proxy=None) as connection,
    ):
        assert unpack(connection.recv(DEADLINE)) == CONFIGURATION
        for _ in range(2):
            answer = ask(connection, bytes.fromhex(ROBOARENA["infer"]))
            actions = answer if path else answer["actions"]
            assert actions.dtype == np.float32 and np.array_equal(actions, expected)
            assert ask(connection, bytes.fromhex(reset)) == acknowledged


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with both clients, made with pip."""
    folder = tmp_path_factory.mktemp("others")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    install = [folder / "bin" / "pip", "install", "--quiet"]
    # openpi's client imports typing_extensions without asking for it; the harness's needs a part of what it asks for
    for packages in (
        ["openpi-client==0.1.2", "typing_extensions", "numpy<2", "anyio"],
        ["--no-deps", "vla-eval==0.8.0"],
    ):
        done = subprocess.run([*install, *packages], capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"{packages} cannot be installed here: {done.stderr[-300:]}")
    return folder / "bin" / "python"


@pytest.mark.network
@pytest.mark.process
def test_openpis_client_is_answered(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = make_observation()
    np.savez(tmp_path / "given.npz", **given)
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    with running_policy(token_variable="TOKEN") as running:
        command = [python, "-c", CODE, str(running.port), tmp_path / "given.npz", "0123456789abcdef"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    expected = expect(given, whole=True)
    assert np.array_equal(np.array(said["applied"], np.float32), [*expected, *expected[:2]] * 2), (
        "a chunk, then the next"
    )
    assert said["numpy"].startswith("1.") and said["dtype"] == "float32"
    assert all((np.array(actions, np.float32) == expected).all() for actions in said["actions"])
    assert "lacks 'images/front'" in said["said"]
    assert said["timing"] == ["infer_ms", "prev_total_ms"] and said["names"] == list(SPEC.action_names)


@pytest.mark.network
@pytest.mark.process
def test_the_harness_is_answered(python: Path, tmp_path: Path) -> None:
    given = make_observation()
    np.savez(tmp_path / "given.npz", **given)
    with running_policy() as running:
        command = [python, "-c", HARNESS, str(running.port), tmp_path / "given.npz"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    chunk = expect(given)
    for said in json.loads(done.stdout):
        assert np.array_equal(np.array(said["actions"], np.float32), [*chunk, chunk[0]]), "a chunk, then the next one"
        assert "lacks 'images/front'" in said["said"] and said["dims"] == 2
