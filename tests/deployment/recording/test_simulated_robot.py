"""A recorded and converted episode of the tabletop over topics equals that of the simulator."""

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.deployment.recording.bag_writer import BagWriter
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.recorder import TopicRecorder
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.transport.in_process import InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Episode
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig


def test_a_recorded_episode_equals_the_simulation(tmp_path: Path, messages: Messages) -> None:
    """State, pictures and instruction to the bit; actions travel as speeds."""
    robot, simulator, episode = (
        RobotSimulator(RobotSimulatorConfig(), 1),
        Tabletop(TabletopConfig(), 1),
        Episode(5, 2, 32),
    )
    assert robot._in_process is not None
    listener, topics = InProcessTransport(robot._in_process.node.bus, "recorder"), list_topics(robot.robot)
    recorder = TopicRecorder(listener, topics, BagWriter(tmp_path / "bag", topics, messages))
    seen, actions = [simulator.reset([episode])], list[np.ndarray]()
    operator = simulator.expert()
    robot.reset([episode])
    while True:
        actions.append(operator()[0].astype(np.float32))
        result = simulator.step(actions[-1][None, None], [None])
        robot.step(actions[-1][None, None], [None])
        listener.spin_once()
        while recorder.write_waiting():
            pass
        if len(result.ended):
            break
        seen.append(result.observation)
    recorder.finish()
    write_description(robot.robot, tmp_path / "bag")
    robot.close()
    conversion = Conversion.open(tmp_path / "bag", messages, None)
    (part,) = conversion.read_parts()
    assert result.success.any() and part.label == "success" and part.ends and not conversion.omissions
    assert len(part.steps) == len(seen) > 10 and part.episode.seed == 32
    for step, true, action in zip(part.steps, seen, actions, strict=True):
        assert step.observation.state.tobytes() == true.state.tobytes()
        assert step.observation.images["front"].tobytes() == true.images["front"].tobytes()
        assert step.observation.instruction == true.instruction
        assert step.executed == pytest.approx(action, abs=1e-6) and step.proposed == pytest.approx(action)
