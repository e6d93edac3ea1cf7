"""A bridge and a simulated robot in one process, in lockstep or with a clock that the test turns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.assembly.loaded import LoadedPolicy, load_policy
from embodied_rl.benchmarks.robot_runs.episode_runner import RobotEpisode, RobotEpisodeRunner
from embodied_rl.deployment.bridge.bridge import Bridge
from embodied_rl.deployment.bridge.motion_files import make_motion_manager
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation
from embodied_rl.schema import BridgeConfig
from embodied_rl.simulated_robot.node import RobotSettings, SimulatedRobot
from embodied_rl_sims.tabletop import TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.transports import START_NS

POLICY = "asset:tabletop_careful.safetensors"
SILENCE_S = 120.0
"""By the clock, however few turns a busy machine leaves for them."""


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
    """Robot, bridge and episode_runner on one bus, taking turns; time passes a millisecond with each turn."""

    policy: Any
    seed: int | None = None
    patience: float = 20.0
    now_ns: int = START_NS
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
        self.bridge.prepare()
        self.node = InProcessTransport(self.bus, "deploy")
        self.episode_runner = RobotEpisodeRunner(self.node, description, self.turn)
        self.node.create_subscription("/command", "std_msgs/msg/Float64MultiArray", "command", self._note)

    def run(self, episodes: Sequence[Episode]) -> list[RobotEpisode]:
        """Run episodes to their ends."""
        self.episode_runner.wait_for_bridge(SILENCE_S)
        return [self.episode_runner.run_episode(each, SILENCE_S, 1000) for each in episodes]

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


@dataclass
class RealTimeBench:
    """Robot and bridge on one bus in real time, by a clock that the test turns; the policy answers at once.

    Args:
        changes: of the bridge's configuration.
        policy: who is asked.
        description: what the bridge is told of the robot. simulated: the robot; None: the tabletop.
    """

    policy: Any
    changes: dict[str, Any] = field(default_factory=dict)
    description: Any = None
    simulated: Any = None
    now_ns: int = START_NS
    commands: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bus = Bus(lambda: self.now_ns)
        seconds = lambda: (self.now_ns - START_NS) / 1e9  # noqa: E731
        robot = self.simulated or load_robot("tabletop")
        servo = TabletopServo(TabletopConfig())
        self.robot = SimulatedRobot(servo, robot, InProcessTransport(self.bus, "robot"), RobotSettings(), seconds)
        self.robot.begin(Episode(0, 0, 0))
        self.node = InProcessTransport(self.bus, "operator")
        self.node.create_subscription("/command", "std_msgs/msg/Float64MultiArray", "command", self._note)
        standard = {"policy": "ws://in-process", "deadman": False, "patience": 0.2}
        config = BridgeConfig("tabletop", **{**standard, **self.changes})
        node = InProcessTransport(self.bus, "policy_bridge")
        told = self.description or robot
        motions = make_motion_manager(config, told)
        self.bridge = Bridge(config, told, node, self.policy, seconds, threads=False, motions=motions)
        self._due = 0.0

    def prepare(self) -> None:
        """Let the robot speak for a while, then check everything."""
        self.run(0.3)
        self.bridge.prepare()

    def run(self, seconds: float, *, stopped: bool = False) -> None:
        """Let time pass: the servo steps every 8 ms, the bridge ticks every 10, unless its process is stopped."""
        until = self.now_ns + round(seconds * 1e9)
        while self.now_ns < until:
            self.robot.node.spin_once()
            self.robot.tick()
            self.now_ns += 2_000_000
            if not stopped:
                self.bridge.node.spin_once()
            if self.bridge.controller is not None and not stopped:
                self._tick()
            self.node.spin_once()
            self.now_ns += 6_000_000

    def _tick(self) -> None:
        now = (self.now_ns - START_NS) / 1e9
        if now < self._due:
            return
        self._due = max(self._due + 0.01, now)
        assert self.bridge.controller is not None
        made = self.bridge.controller.tick()
        if made is not None and made.command is not None:
            self.bridge.publish(made)
        self.bridge.report(at_once=True)

    def say(self, topic: str, type_name: str, qos: str, **values: Any) -> None:
        """Publish a message, as an operator does."""
        self.node.create_publisher(topic, type_name, qos).publish(self.node.messages.make(type_name, **values))

    @property
    def why(self) -> str:
        return self.bridge.describe()["why"]

    @property
    def speeds(self) -> np.ndarray:
        """The last commanded speeds [3], m/s."""
        return self.commands[-1][:3]

    def _note(self, message: Any, received_ns: int, source_ns: int) -> None:
        self.commands.append(np.array(message.data))
