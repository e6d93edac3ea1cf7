"""`embodied_rl.load_policy` and the policy that it returns."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embodied_rl
from embodied_rl.assembly import build
from embodied_rl.assembly.loaded import LoadedPolicy, hash_normalisation
from embodied_rl.assembly.policy_factory import load_deployed
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import read_observation
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl_sims.tabletop import Tabletop
from tests.support.refusals import refuses

ASSET = "asset:tabletop_base.safetensors"


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    return embodied_rl.load_policy(ASSET)


def observe(seed: int = 0, rows: int | None = None) -> dict[str, Any]:
    random, lead = np.random.default_rng(seed), () if rows is None else (rows,)
    return {
        "images/front": random.integers(0, 256, (*lead, 64, 64, 3), dtype=np.uint8),
        "state": random.normal(0, 0.1, (*lead, 7)),
        "prompt": "pick up the red cube" if rows is None else ["pick up the red cube"] * rows,
    }


def test_spec_equals_the_simulators(policy: LoadedPolicy) -> None:
    spec, simulator = policy.spec, Tabletop.spec_of(Tabletop.Config())
    spec.check_body(simulator.body, simulator.words)
    assert spec.control_hz == simulator.control_hz and spec.state_units == "SI"
    assert (spec.horizon, spec.executed, spec.prompt_length) == (5, 5, 8)
    assert set(spec.words) == {word.lower() for word in simulator.words}
    assert spec.normalisation == hash_normalisation(policy.actor.embodiment) and len(spec.normalisation) == 64


def test_one_observation_has_one_chunk_within_the_limits(policy: LoadedPolicy) -> None:
    actions = policy.act(observe())
    assert actions.shape == (5, 4) and actions.dtype == np.float32
    assert (actions >= policy.spec.action_low).all() and (actions <= policy.spec.action_high).all()
    assert (policy.act(observe()) == actions).all(), "the same observation has the same answer"
    assert (policy.act(observe(1)) != actions).any()


def test_rows_are_answered_by_the_policy_that_commands_use(policy: LoadedPolicy) -> None:
    given = observe(rows=4)
    seen, _ = read_observation(given, policy.spec)
    actions = policy.act(given)
    assert (actions == load_deployed(ASSET).infer(seen, None)).all()
    alone = policy.act({name: value[2] for name, value in given.items()})
    assert np.allclose(alone, actions[2], atol=1e-5)


def test_seed_draws_a_new_chunk_each_call() -> None:
    policy = embodied_rl.load_policy(ASSET, seed=3)
    seen, _ = read_observation(observe(), policy.spec)
    first, second = policy.act(observe()), policy.act(observe())
    assert (first != second).any()
    policy.reset()
    assert (policy.act(observe()) == first).all() and (policy.act(observe()) == second).all()
    zero = np.zeros(1, np.int64)
    assert (policy.actor.infer(seen, NoiseKeys(3, zero, zero + 1))[0] == second).all()
    assert (embodied_rl.load_policy(ASSET, seed=4).act(observe()) != first).any()


def test_committed_actions_are_returned(policy: LoadedPolicy) -> None:
    prefix = np.full((2, 4), 0.01, np.float32)
    assert (policy.act(observe(), prefix=prefix, strategy="replacement")[:2] == prefix).all()
    both = np.stack([prefix, prefix])
    rows = policy.act(observe(rows=2), prefix=both, committed=np.array([2, 0]), strategy="replacement")
    assert (rows[0, :2] == prefix).all() and not (rows[1, :2] == prefix).any()
    assert policy.act(observe(), whole=True).shape == (5, 4) and policy.spec.prefix_trained_to == 0
    with pytest.raises(UserError, match="trained to continue no committed actions"):
        policy.act(observe(), prefix=prefix)
    with pytest.raises(UserError, match="prefix"):
        policy.act(observe(), prefix=np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("given", "data"),
    [
        ({"prefix": np.zeros((2, 4)), "committed": 1.7}, "committed is 1.7"),
        ({"prefix": np.zeros((2, 4)), "committed": True}, "committed is True"),
        ({"prefix": np.zeros((2, 4)), "committed": "2"}, "committed is '2'"),
        ({"prefix": np.zeros((2, 4)), "committed": 2**70}, "committed is 1180"),
        ({"committed": 2}, "committed"),
        ({"prefix": "plan"}, "prefix is <U4"),
        ({"prefix": np.zeros((2, 4), complex)}, "prefix is complex128"),
        ({"prefix": [[0.0], [0.0, 0.0]]}, "prefix"),
        ({"prefix": np.full((2, 4), 1e300)}, "prefix"),
    ],
)
def test_invalid_prefixes_are_refused(policy: LoadedPolicy, given: dict[str, Any], data: str) -> None:
    with pytest.raises(UserError, match=re.escape(data)):
        policy.act(observe(), strategy="replacement", **given)


def test_strided_read_only_images_give_the_same_actions(policy: LoadedPolicy) -> None:
    plain = observe()
    swapped = np.ascontiguousarray(plain["images/front"][:, ::-1, ::-1])  # mirrored, and BGR
    swapped.flags.writeable = False
    assert (policy.act(plain | {"images/front": swapped[:, ::-1, ::-1]}) == policy.act(plain)).all()


def test_wrong_observations_are_refused_before_the_network_runs(
    policy: LoadedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy.actor, "infer", None)
    with pytest.raises(UserError, match=r"takes \[64, 64, 3\]"):
        policy.act(observe() | {"images/front": np.zeros((32, 32, 3), np.uint8)})
    with pytest.raises(UserError, match="does not know the word 'dance'"):
        policy.act(observe() | {"prompt": "dance"})


def test_paths_are_accepted(policy: LoadedPolicy) -> None:
    file = build.resolve_policy_file(ASSET)
    assert (embodied_rl.load_policy(Path(file)).act(observe()) == policy.act(observe())).all()


@pytest.mark.parametrize(
    ("text", "code", "data"),
    [
        ("expert", "policy-not-a-file", "'expert'"),
        ("ws://127.0.0.1:8000", "policy-not-a-file", "PolicyClient"),
        ("asset:tabletop_bas.safetensors", "asset-unknown", "'tabletop_base.safetensors'"),
        ("", "path-empty", "load_policy('')"),
        ("absent/none", "checkpoint-missing", "absent/none"),
    ],
)
def test_other_texts_are_refused(text: str, code: str, data: str) -> None:
    with refuses(code, data):
        embodied_rl.load_policy(text)


def test_missing_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("device-missing", "device=tpu"):
        embodied_rl.load_policy(ASSET, device="tpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with refuses("device-missing", "device=cuda:1", "device='cpu', device='cuda', device='cuda:0'"):
        embodied_rl.load_policy(ASSET, device="cuda:1")


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "3", True])
def test_invalid_seeds_are_refused(seed: Any) -> None:
    with refuses("seed-invalid"):
        embodied_rl.load_policy(ASSET, seed=seed)


@pytest.mark.parametrize("steps", [0, -1, None, "x", [4], float("inf"), True, 2**70])
def test_invalid_denoise_steps_are_refused(tmp_path: Path, steps: Any) -> None:
    said, file = read_metadata(build.resolve_policy_file(ASSET)), tmp_path / "policy.safetensors"
    network, embodiment = build.load_backbone(build.resolve_policy_file(ASSET))
    save_backbone(file, network, embodiment, said.policy, said.config, extra={**said.extra, "denoise_steps": steps})
    with refuses("denoise-steps-out-of-range", "policy.safetensors", "denoise_steps="):
        embodied_rl.load_policy(file)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    file.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(UserError, match="pickle"):
        embodied_rl.load_policy(str(file))


CODE = """
import sys, numpy as np, embodied_rl
assert "torch" not in sys.modules, "workers of simulators import embodied_rl without torch"
policy = embodied_rl.load_policy("asset:tabletop_base.safetensors")
image, words = np.zeros((64, 64, 3), np.uint8), "press the red button"
actions = policy.act({"images/front": image, "state": np.zeros(7), "prompt": words})
slow = [name for name in ("torch._dynamo", "transformers", "mujoco", "tensorboard", "scipy") if name in sys.modules]
print(actions.shape, slow)
"""


@pytest.mark.thorough
@pytest.mark.process
def test_nothing_slow_is_imported() -> None:
    """These imports take longer than loading the policy; torch's compiler alone takes seconds."""
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=200)
    assert said.stdout.strip() == "(5, 4) []", said.stdout + said.stderr
