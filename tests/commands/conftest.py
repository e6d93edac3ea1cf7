"""A simulator whose episodes end when their seed says, and a policy that shows what it was given."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from embodied_rl.assembly import evaluated_policies
from embodied_rl.commands import eval as command
from embodied_rl.evaluate import benchmark
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode, Video
from tests.support.clock import executed, horizon, length, make_actor, make_handles, make_simulator, spec

__all__ = ["executed", "horizon", "length", "make_actor", "make_handles", "make_simulator", "spec"]


@dataclass
class Kind:
    """A configured simulator that counts what is built and closed."""

    node: SimNode
    simulator: type
    make_handle: type
    built: list
    make_actor: type
    options: Video = field(default_factory=Video)

    limit_environments = SimulatorKind.limit_environments
    limits = SimulatorKind.limits

    @property
    def spec(self):
        return self.simulator.spec

    def build(self, num_envs):
        return self.simulator(num_envs)

    def worker(self, num_envs, name, plan=None):
        handle = self.make_handle(1, num_envs)[0]
        handle.close = lambda: self.built.remove(handle)
        self.built.append(handle)
        assert sum(handle.simulator.num_envs for handle in self.built) <= self.node.num_envs
        return handle

    inline = worker


def make_file(path):
    if not path.is_file():
        path.write_bytes(b"weights")
    return path


@pytest.fixture
def kind(monkeypatch, tmp_path, make_actor, make_simulator, make_handles):
    """The command with fakes in place of the policy's file and the simulator's plug-in."""
    threads = torch.get_num_threads()
    made = Kind(SimNode("clock", num_envs=6), make_simulator, make_handles, [], make_actor)
    monkeypatch.setattr(evaluated_policies, "check_file", lambda *said, **keys: None)
    monkeypatch.setattr(evaluated_policies, "plugins", SimpleNamespace(configure_plugin=lambda kind, node, where: None))
    monkeypatch.setattr(command, "name_simulators", lambda config: [])
    monkeypatch.setattr(command, "find_home", lambda folder: tmp_path)
    monkeypatch.setattr(command, "load_deployed", lambda text: make_actor())
    monkeypatch.setattr(benchmark, "check_file", lambda *said, **keys: None)
    monkeypatch.setattr(
        benchmark, "SimulatorKind", SimpleNamespace(find=lambda node: made if node.name == "clock" else None)
    )
    monkeypatch.setattr(
        evaluated_policies, "read_metadata", lambda file: SimpleNamespace(extra={"sim": {"name": "clock"}})
    )
    monkeypatch.setattr(evaluated_policies, "find_policy_file", lambda text: make_file(tmp_path / text))
    monkeypatch.chdir(tmp_path)
    yield made
    torch.set_num_threads(threads)
    assert made.built == [], "every simulator is closed"
