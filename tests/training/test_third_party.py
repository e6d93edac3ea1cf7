"""A simulator, a policy, an algorithm and a curriculum of somebody else's: one module, a YAML and a line each, and they
train together."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.config import plugins
from embodied_rl.runs.metrics_file import read_metrics
from tests.support.running import POLICY

MODULE = '''
"""Plug-ins of another distribution."""

from dataclasses import dataclass

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.curriculum import Curriculum
from embodied_rl_policies.pocket import Pocket
from embodied_rl_sims.tabletop import Tabletop

SIMS = {"outside": "outside_package:Desk"}
POLICIES = {"outside": "outside_package:Network"}
ALGORITHMS = {"outside": "outside_package:Nudging"}
CURRICULA = {"outside": "outside_package:FirstOnly"}


class Desk(Tabletop):
    """A tabletop by another name."""


class Network(Pocket):
    """A pocket policy by another name."""


@dataclass(frozen=True)
class NudgingConfig:
    """Settings."""

    push: float = 0.5
    """How far the first weight moves in each update."""


class Nudging:
    """Learns nothing, and says what it has seen."""

    Config = NudgingConfig

    @staticmethod
    def needs(config):
        return Needs(epochs=1)

    def __init__(self, config, actor, ranks, seed, iterations):
        self.config, self.actor, self.updates = config, actor, torch.zeros(())

    def prepare(self, iteration):
        self.iteration = iteration

    @torch.no_grad()
    def update(self, segments, iteration):
        rows = sum(int(rollout.valid.sum()) for rollout in segments)
        next(iter(self.actor.parameter_groups()["actor"])).flatten()[0] += self.config.push
        self.updates += 1
        return {"rows": float(rows), "seen": float(self.updates)}

    def state(self):
        return {"updates": self.updates}

    def load(self, state):
        self.updates = state["updates"].clone()


@dataclass(frozen=True)
class FirstOnlyConfig:
    """Nothing to set."""


class FirstOnly(Curriculum):
    """The first task alone."""

    Config = FirstOnlyConfig

    def __init__(self, config, spec):
        self._weights = np.eye(len(spec.tasks))[0]

    def weights(self):
        return self._weights
'''
KINDS = {"sims": "SIMS", "policies": "POLICIES", "algorithms": "ALGORITHMS", "curricula": "CURRICULA"}
YAML = {
    "sim": "name: outside\nnum_envs: 4\nhorizon: 6\nimage_size: 16\n",
    "policy": "name: outside\n",
    "algo": "name: outside\npush: 0.25\n",
    "curriculum": "name: outside\n",
}
LOOP = (
    "train.iterations=2", "train.decisions=2", "train.eval_every=0", "train.eval_episodes=2", "train.final_episodes=2",
    "checkpoint.every=1", "plan=colocated", "plan.ranks=1", "logger.tensorboard=false",
)  # fmt: skip


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The distribution, installed."""
    site = tmp_path / "site"
    (site / "outside-1.0.dist-info").mkdir(parents=True)
    (site / "outside-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    lines = [f"[embodied_rl.{kind}]\noutside = outside_package:{table}" for kind, table in KINDS.items()]
    lines.append("[embodied_rl.configs]\noutside = outside_conf")
    (site / "outside-1.0.dist-info" / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (site / "outside_package.py").write_text(MODULE)
    for name, text in YAML.items():
        (site / "outside_conf" / name).mkdir(parents=True)
        (site / "outside_conf" / name / "outside.yaml").write_text(text)
    (site / "outside_conf" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(site))
    plugins.list_plugins.cache_clear()
    yield
    plugins.list_plugins.cache_clear()


def test_they_train_save_and_continue(outside: None, typed: Callable[..., Any], tmp_path: Path) -> None:
    chosen = [f"{group}=outside" for group in YAML]
    code, out, err = typed("train", *chosen, *POLICY, *LOOP)
    assert code == 0, out + err
    (run,) = (tmp_path / "runs" / "train").iterdir()
    rows = read_metrics(run / "metrics.jsonl")
    assert [(row["update/rows"], row["update/seen"]) for row in rows] == [(8.0, 1.0), (8.0, 2.0)]
    (run / "report.html").unlink()
    code, out, err = typed("train", f"resume={run}")
    assert code == 0, out + err
    assert len(read_metrics(run / "metrics.jsonl")) == 2


@pytest.mark.parametrize("group", YAML)
def test_they_are_listed(outside: None, typed: Callable[..., Any], group: str) -> None:
    words = {"sim": "sims", "policy": "policies", "algo": "algos", "curriculum": "curricula"}
    code, out, _ = typed("list", words[group])
    assert code == 0 and "outside" in out


def test_weights_move_as_the_algorithm_says(outside: None, typed: Callable[..., Any], tmp_path: Path) -> None:
    """Not by anything of ours."""
    from safetensors.torch import load_file

    code, out, err = typed("train", *[f"{group}=outside" for group in YAML], *POLICY, *LOOP)
    assert code == 0, out + err
    (run,) = (tmp_path / "runs" / "train").iterdir()
    first, second = (load_file(run / "checkpoints" / f"{step:08d}" / "policy.safetensors") for step in (1, 2))
    changed = {name: second[name] - first[name] for name in first if not torch.equal(first[name], second[name])}
    ((name, difference),) = changed.items()
    assert difference.flatten()[0] == pytest.approx(0.25) and int((difference != 0).sum()) == 1, name
