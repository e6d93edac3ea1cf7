"""Recordings in lockstep of a random robot with the tabletop's topics and a bridge, with their ground truth.

The ground truth consists of states and images before each step, actions and sources.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.steps import STEPS, ControlStep
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Source
from tests.support.recording import RecordingBench, open_bench

JOINT_NAMES = ("joint1", "finger1", "finger2")


@dataclass(frozen=True)
class Truth:
    """One control step: state float32 [7], picture uint8 [64, 64, 3], actions float32 [4]."""

    state: np.ndarray
    picture: np.ndarray
    proposed: np.ndarray | None
    executed: np.ndarray
    source: Source


@dataclass
class FakeRun:
    """A recording in progress; `truth` by episode."""

    bench: RecordingBench
    robot: RobotDescription
    observed: bool = True
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    truth: list[list[Truth]] = field(default_factory=list)

    def __post_init__(self) -> None:
        node, operator = self.bench.talker, self.robot.operator
        self._publishers = {
            short: node.create_publisher(topic.name, topic.type_name, topic.qos)
            for short, topic in self.robot.topics.items()
        }
        text = "std_msgs/msg/String"
        self._texts = {
            name: node.create_publisher(name, text, "latched")
            for name in (STEPS, operator.label, operator.outcome, operator.reset)
        }

    def publish_text(self, topic: str, text: str) -> None:
        """Publish a text."""
        self._texts[topic].publish(self.bench.talker.messages.make("std_msgs/msg/String", data=text))
        self.bench.write()

    def publish_observation(self, left_out: Iterable[str] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Publish random sensor messages with the current time; return the expected state and image."""
        make, stamp = self.bench.talker.messages.make, self._stamp()
        tool, commanded = self.random.normal(size=(2, 3))
        fingers = self.random.uniform(0, 0.04, 2)
        picture = self.random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        size = {"height": 64, "width": 64}
        said = {
            "joints": {"name": list(JOINT_NAMES), "position": [0.3, *fingers], "velocity": np.zeros(3)},
            "tool": {"pose": {"position": dict(zip("xyz", map(float, tool), strict=True))}},
            "commanded": {"pose": {"position": dict(zip("xyz", map(float, commanded), strict=True))}},
            "front": {**size, "encoding": "rgb8", "step": 192, "data": picture.reshape(-1)},
            "front_info": size,
        }
        for short, values in said.items():
            if short not in left_out:
                kind = self.robot.topics[short].type_name
                self._publishers[short].publish(make(kind, header={"stamp": stamp}, **values))
        self.bench.write()
        state = np.concatenate([tool, [fingers.sum()], commanded - tool])
        return state.astype(np.float32), picture

    def run_episode(
        self, number: int, sources: Sequence[Source], words: str = "lift the red cube", lost: Iterable[int] = (),
        blind: Iterable[int] = (), first: int = 0, **changed: Any,
    ) -> None:  # fmt: skip
        """Run one control step per source.

        Args:
            number: of the episode. lost: steps that are not recorded. blind: steps without a new image.
            first: number of the first step.
            changed: values of `ControlStep` in every step.
        """
        self.truth.append([])
        for step, source in enumerate(sources):
            time_ns = self.bench.now[0]
            state, picture = self.publish_observation(["front"] if step in blind else [])
            self.bench.pass_time(0.03)
            executed = self.random.uniform(-0.03, 0.03, 4).astype(np.float32)
            proposed = None if source is Source.HOLD else (executed + np.float32(source == Source.SAFETY)).astype("f4")
            observed = {topic.name: time_ns for topic in self.robot.topics.values()} if self.observed else {}
            said = ControlStep(
                time_ns if self.observed else time_ns + 1_000_000, number, first + step, "run", source,
                None if proposed is None else tuple(map(float, proposed)), tuple(map(float, executed)),
                instruction=words, policy_version=3, sequence=step // 4, observed=observed,
            )  # fmt: skip
            if step not in lost:
                self.publish_text(STEPS, replace(said, **changed).to_json())
            self.bench.pass_time(0.05)
            self.truth[-1].append(Truth(state, picture, proposed, executed, source))

    def _stamp(self) -> dict[str, int]:
        seconds, rest = divmod(self.bench.now[0], 10**9)
        return {"sec": seconds, "nanosec": rest}


def record_run(folder: Path, messages: Messages, run: Any, observed: bool = True, robot: Any = None) -> FakeRun:
    """Record `run(FakeRun)` into `folder`, with the robot's description."""
    robot = robot or load_robot("tabletop")
    with open_bench(folder, list_topics(robot), messages) as bench:
        fake = FakeRun(bench, robot, observed)
        run(fake)
        bench.finish()
    write_description(robot, folder)
    return fake
