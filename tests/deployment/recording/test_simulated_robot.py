"""A recorded and converted episode of the tabletop over topics equals that of the simulator exactly."""

from pathlib import Path

import numpy as np

from embodied_rl.deployment.recording.bag_writer import BagWriter
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.recorder import TopicRecorder
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.steps import STEPS, ControlStep
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.transport.in_process import InProcessTransport
from embodied_rl.deployment.transport.interface import Callback
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Episode, Observation, Source
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.tabletop_robot import HZ, Bench, describe_tabletop


class StepPublisher:
    """Publishes control steps with the times of the newest messages, as the bridge does."""

    def __init__(self, bench: Bench) -> None:
        self.node, self.published_ns = InProcessTransport(bench.bus, "step_publisher"), dict[str, int]()
        for topic in describe_tabletop().topics.values():
            self.node.create_subscription(topic.name, topic.type_name, "sensor_data", self._note(topic.name))
        self._steps = self.node.create_publisher(STEPS, "std_msgs/msg/String", "state")

    def _note(self, name: str) -> Callback:
        return lambda message, received_ns, source_ns: self.published_ns.update({name: source_ns})

    def publish(self, step: ControlStep) -> None:
        self._steps.publish(self.node.messages.make("std_msgs/msg/String", data=step.to_json()))


def run_recorded(
    bench: Bench, recorder: TopicRecorder, listener: InProcessTransport, episode: Episode
) -> tuple[list[Observation], list[np.ndarray], bool]:
    """Run an episode of the scripted operator in the simulator, and the same actions over topics."""
    simulator, steps = Tabletop(TabletopConfig(), 1), StepPublisher(bench)
    observation, operator = simulator.reset([episode]), simulator.expert()
    seen: list[Observation] = []
    actions: list[np.ndarray] = []
    bench.peer.ask(index=episode.index, task=episode.task, seed=episode.seed, split=episode.split)
    bench.exchange()
    while True:
        steps.node.spin_once()
        observed, time_ns = dict(steps.published_ns), bench.time.now_ns
        action = operator()[0].astype(np.float32)
        seen.append(observation)
        actions.append(action)
        result = simulator.step(action[None, None], [episode])
        bench.time.pass_s(1 / HZ)
        bench.peer.command(action.astype(np.float64) * [HZ, HZ, HZ, 1])
        bench.exchange()
        steps.publish(
            ControlStep(
                time_ns, episode.index, len(actions) - 1, "run", Source.POLICY, tuple(map(float, action)),
                tuple(map(float, action)), instruction=observation.instruction[0], observed=observed,
            )
        )  # fmt: skip
        listener.spin_once()
        while recorder.write_waiting():
            pass
        if len(result.ended):
            return seen, actions, bool(result.success[0, 0])
        observation = result.observation


def test_a_recorded_episode_equals_the_simulation(tmp_path: Path, messages: Messages) -> None:
    bench, episode, robot = Bench(lockstep=True), Episode(5, 2, 32), describe_tabletop()
    listener = InProcessTransport(bench.bus, "recorder")
    recorder = TopicRecorder(listener, list_topics(robot), BagWriter(tmp_path / "bag", list_topics(robot), messages))
    seen, actions, success = run_recorded(bench, recorder, listener, episode)
    recorder.finish()
    write_description(robot, tmp_path / "bag")
    bench.close()
    conversion = Conversion.open(tmp_path / "bag", messages, None)
    (part,) = conversion.read_parts()
    assert success and part.label == "success" and part.ends and not conversion.omissions
    assert len(part.steps) == len(seen) > 10 and part.episode.seed == 32
    for step, true, action in zip(part.steps, seen, actions, strict=True):
        assert step.observation.state.tobytes() == true.state.tobytes()
        assert step.observation.images["front"].tobytes() == true.images["front"].tobytes()
        assert step.executed.tobytes() == action.tobytes()
        assert step.observation.instruction == true.instruction
