"""Policy files with a start-noise policy: they deploy it, and what cannot use it refuses them."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import embodied_rl
from embodied_rl.actors.start_noise import StartNoiseSettings
from embodied_rl.assembly import build
from embodied_rl.checkpoints import policy_format
from embodied_rl.checkpoints.policy_file import load_actor, load_start_noise, save_actor
from embodied_rl.checkpoints.policy_format import make_header, read_metadata
from embodied_rl.commands import export, inspect
from embodied_rl.config.freeze import thaw_config
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import ExportConfig, PolicyNode, SamplerNode
from tests.support.pocket_actors import SMALL
from tests.support.refusals import refuses

Make = Callable[..., Any]
SETTINGS = StartNoiseSettings(bound=1.5, shared=False, hidden=8)


@pytest.fixture
def make(simulator_spec: SimulatorSpec) -> Make:
    """Settings of start noise, and a seed → an actor none of whose weights is zero."""

    def build_one(settings: StartNoiseSettings | None = SETTINGS, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        node = PolicyNode("pocket", options=thaw_config(SMALL))
        actor = build.build_actor(node, SamplerNode(denoise_steps=3), simulator_spec, Needs(start_noise=settings))
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return actor.eval()

    return build_one


@pytest.fixture
def file(tmp_path: Path, make: Make) -> Path:
    actor, path = make(), tmp_path / "steered.safetensors"
    save_actor(path, actor, "pocket", asdict(actor.network.config), extra={"denoise_steps": 3})
    return path


def read_header(file: Path) -> dict[str, Any]:
    with safe_open(file, "pt") as opened:
        return json.loads(opened.metadata()["embodied_rl"])


def test_a_loaded_policy_starts_from_it(file: Path, make: Make, observe: Make) -> None:
    """To the bit, through each way from a file to an actor."""
    expected, plain, seen = make(), make(None), observe(2)
    policy = embodied_rl.load_policy(file)
    assert np.array_equal(policy.actor.infer(seen), expected.infer(seen))
    plain.network.load_state_dict(expected.network.state_dict())
    assert not np.array_equal(policy.actor.infer(seen), plain.infer(seen))
    again = make(seed=1)
    load_actor(file, again)
    assert np.array_equal(again.infer(seen), expected.infer(seen))
    assert read_metadata(file).start_noise == SETTINGS
    assert "bound 1.5" in dict(inspect.describe_policy_file(read_metadata(file)))["start noise"]


def test_earlier_versions_refuse_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would deploy the network alone."""
    monkeypatch.setattr(policy_format, "FORMATS", (1, 2, 3))
    with refuses("checkpoint-format-unknown", "format 4", file):
        read_metadata(file)


def test_other_files_are_as_before(tmp_path: Path, make: Make) -> None:
    actor, path = make(None), tmp_path / "plain.safetensors"
    save_actor(path, actor, "pocket", asdict(actor.network.config))
    header = read_header(path)
    assert header["format"] == 3 and "start_noise" not in header
    assert load_start_noise(path, actor.network.spec) is None


@pytest.mark.parametrize(
    "value",
    [
        None, 3, [], {}, "x", {"bound": 2.0}, {"bound": "2", "shared": True, "hidden": 8},
        {"bound": 0.0, "shared": True, "hidden": 8}, {"bound": float("nan"), "shared": True, "hidden": 8},
        {"bound": float("inf"), "shared": True, "hidden": 8}, {"bound": 1e9, "shared": True, "hidden": 8},
        {"bound": 1.5, "shared": 2, "hidden": 8}, {"bound": 1.5, "shared": False, "hidden": 0},
        {"bound": 1.5, "shared": False, "hidden": 10**12}, {"bound": 1.5, "shared": False, "hidden": 8, "more": 1},
        {"bound": 1.5, "shared": False, "hidden": 9}, {"bound": 1.5, "shared": True, "hidden": 8},
    ],
)  # fmt: skip
def test_hostile_settings_are_refused(file: Path, value: Any, make: Make) -> None:
    header, held = read_header(file) | {"start_noise": value}, load_file(file)
    save_file(held, file, make_header(header, held))
    with pytest.raises(UserError, match=file.name):
        load_start_noise(file, make().network.spec)


@pytest.mark.parametrize("change", [{"format": 3}, {"start_noise": None, "format": 3}])
def test_settings_and_format_belong_together(file: Path, change: dict[str, Any]) -> None:
    header, held = read_header(file) | change, load_file(file)
    save_file(held, file, make_header(header, held))
    with refuses("checkpoint-damaged", file, "start_noise"):
        read_metadata(file)
    plain = {name: entry for name, entry in (header | {"format": 4}).items() if name != "start_noise"}
    save_file(held, file, make_header(plain, held))
    with refuses("checkpoint-damaged", file, "start_noise"):
        read_metadata(file)


def test_an_actor_of_another_bound_does_not_take_it(file: Path, make: Make) -> None:
    """The tensors are the same."""
    for actor in (make(replace(SETTINGS, bound=2.0)), make(None)):
        with refuses("checkpoint-of-another-network", file, "bound=1.5"):
            load_actor(file, actor)


@pytest.mark.thorough
def test_training_continues_it_or_refuses_it(file: Path, simulator_spec: Any) -> None:
    node, rest = PolicyNode("pocket", checkpoint=str(file)), (SamplerNode(), simulator_spec)
    actor: Any = build.build_actor(node, *rest, Needs(start_noise=SETTINGS))
    stored = load_start_noise(file, actor.network.spec)
    assert stored is not None
    for name, value in stored.state_dict().items():
        assert torch.equal(actor.start_noise.state_dict()[name], value)
    assert not any(parameter.requires_grad for parameter in actor.network.parameters())
    for make_anew in (build.build_actor, build.outline_actor):
        with refuses("start-noise-not-continued", file):
            make_anew(node, *rest)
        with refuses("key-contradicts-checkpoint", "algo.bound=1.5"):
            make_anew(node, *rest, Needs(start_noise=replace(SETTINGS, bound=2.0)))


def test_a_described_actor_has_one_too(file: Path, simulator_spec: Any) -> None:
    """As a policy in another process."""
    node, sampling = PolicyNode("pocket", checkpoint=str(file)), SamplerNode()
    actor: Any = build.build_actor(node, sampling, simulator_spec, Needs(start_noise=SETTINGS))
    made: Any = build.Blueprint.of_actor(actor, node, sampling, simulator_spec).build()
    assert made.state_dict().keys() == actor.state_dict().keys()
    assert made.start_noise.settings == SETTINGS


def test_it_is_not_exported(file: Path, tmp_path: Path) -> None:
    config = ExportConfig(checkpoint=str(file), format="lerobot", out=str(tmp_path / "out"))
    with refuses("start-noise-not-exported", file, "lerobot"):
        export.check_export(config)
