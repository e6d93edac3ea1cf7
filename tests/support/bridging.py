"""A bridge and a simulated robot in one process, in lockstep or with a clock that the test turns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.assembly.loaded import LoadedPolicy, load_policy
from embodied_rl.bridge.running import Bridge
from embodied_rl.config.schema import BridgeConfig
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation
from embodied_rl.robots.reading import load_robot
from embodied_rl.simulated_robot.node import SimulatedRobot
from embodied_rl.simulated_robot.settings import RobotSettings
from embodied_rl.transport.in_process import Bus, InProcessTransport
from embodied_rl.trials.conducting import ConductedEpisode, EpisodeConductor
from embodied_rl_sims.tabletop import TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.transports import START_NS

POLICY = "asset:tabletop_careful.safetensors"


class LocalPolicy:
    """A loaded policy with the manners of a `PolicyClient`; notes what it is asked."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        self.loaded, self.deadline, self.version = loaded, 1.0, 3
        self.asked: list[tuple[Observation, Any]] = []

    @property
    def spec(self) -> PolicyDescription:
        return self.loaded.spec

    def infer(self, observation: Observation, keys: Any = None, *others: Any, **more: Any) -> Any:
        self.asked.append((observation, keys))
        drawn = None if keys is None else NoiseKeys(keys.seed, keys.episode, keys.decision)
        return self.loaded.actor.infer(observation, drawn, *others, **more)

    def close(self) -> None: ...


def load_local(policy: str = POLICY) -> LocalPolicy:
    return LocalPolicy(load_policy(policy))


@dataclass
class LockstepBench:
    """Robot, bridge and conductor on one bus, taking turns; time passes a millisecond with each turn."""

    policy: Any
    seed: int | None = None
    patience: float = 20.0
    now_ns: int = START_NS
    conducted: list[ConductedEpisode] = field(default_factory=list)
    commands: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bus = Bus(lambda: self.now_ns)
        description = load_robot("tabletop")
        self.robot = SimulatedRobot(
            TabletopServo(TabletopConfig()), description, InProcessTransport(self.bus, "robot"), RobotSettings(True)
        )
        self.robot.begin(Episode(0, 0, 0))
        node = InProcessTransport(self.bus, "policy_bridge")
        config = BridgeConfig(
            "tabletop", "ws://in-process", lockstep=True, episodes=True, seed=self.seed, patience=self.patience
        )
        self.bridge = Bridge(config, description, node, self.policy)
        self.robot.repeat()
        self.bridge.prepare(lambda: False)
        self.node = InProcessTransport(self.bus, "deploy")
        self.conductor = EpisodeConductor(self.node, description, self.turn)
        self.node.create_subscription("/command", "std_msgs/msg/Float64MultiArray", "command", self._note)

    def run(self, episodes: Sequence[Episode]) -> list[ConductedEpisode]:
        """Run episodes to their ends."""
        self.conductor.wait_for_bridge(10)
        return [self.conductor.run_episode(each, 10, 1000) for each in episodes]

    def turn(self) -> None:
        """Let robot and bridge each do what they have to do."""
        self.now_ns += 1_000_000
        self.bridge.step_in_lockstep()
        self.robot.node.spin_once()

    def deafen(self) -> None:
        """Let the robot hear no command any more."""
        for each in [
            one for one in self.bus.subscriptions if one.topic == "/command" and one.transport.node == "robot"
        ]:
            each.close()

    def _note(self, message: Any, received_ns: int, source_ns: int) -> None:
        self.commands.append(np.array(message.data))
