"""The scripted human takes over, helps, lets go and labels: under a clock of the test, and at a robot that learns."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import EntryLimits
from embodied_rl.deployment.execution.operator_device import AxisUse, OperatorDevice
from embodied_rl.deployment.execution.operator_input import OperatorInputParser, enter_dead_zone
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.interfaces.sim import Episode, Source, StepResult
from embodied_rl.robot_simulator.scripted_human import HumanObservation, HumanSettings, ScriptedHuman
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig, describe_robot
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.refusals import refuses

SETTINGS = HumanSettings(patience_s=1.0, least=0.05, enough=0.3, longest_s=2.0, reaction_s=0.2)
ADVICE = np.array([0.01, -0.02, 1.0], np.float32)
PERIOD = 0.1


class Watched:
    """A robot that a human watches: its policy makes progress at `pace` per second, the human at `helps`."""

    def __init__(self, pace: float, settings: HumanSettings = SETTINGS, helps: float = 0.5) -> None:
        self.human = ScriptedHuman(settings, ("displacement", "displacement", "position"), 1 / PERIOD)
        self.helps, self.pace, self.progress, self.mode, self.now = helps, pace, 0.0, Mode.RUN, 0.0
        self.modes: list[tuple[float, Mode]] = []
        self.asked = 0

    def advise(self) -> NDArray[np.float32]:
        self.asked += 1
        return ADVICE

    def run(self, seconds: float, outcome: str = "") -> list[OperatorInput]:
        told = []
        for _ in range(round(seconds / PERIOD)):
            said = self.human.act(HumanObservation(self.now, self.mode, self.progress, self.advise, outcome))
            if said.wanted is not None:
                self.mode = said.wanted
                self.modes.append((round(self.now, 3), self.mode))
            self.progress += PERIOD * (
                self.helps if self.mode == Mode.TELEOP and said.teleop is not None else self.pace
            )
            self.now += PERIOD
            told.append(said)
        return told


def test_a_policy_that_makes_progress_is_left_alone() -> None:
    watched = Watched(pace=0.1)
    assert all(said.wanted is None and said.teleop is None and said.deadman is not None for said in watched.run(20))
    assert watched.human.takeovers == 0


def test_the_expert_is_asked_only_while_the_human_drives() -> None:
    watched = Watched(pace=0.0)
    told = watched.run(4)
    assert 0 < watched.asked == sum(said.teleop is not None for said in told) < len(told)


def test_a_policy_that_stalls_is_helped_until_it_has_come_on() -> None:
    watched = Watched(pace=0.0)
    watched.run(4)
    (taken, teleop), (given, run) = watched.modes[:2]
    assert (teleop, run) == (Mode.TELEOP, Mode.RUN)
    assert taken == pytest.approx(1.0, abs=0.11)
    assert given - taken == pytest.approx(0.3 / 0.5 + 0.2, abs=0.11), "until it has come on, and a reaction more"
    assert watched.human.takeovers >= 1


def test_a_human_who_cannot_help_lets_go_and_looks_on_again() -> None:
    watched = Watched(pace=0.0, helps=0.0)
    watched.run(8)
    lengths = [later[0] - earlier[0] for earlier, later in zip(watched.modes, watched.modes[1:], strict=False)]
    assert lengths[:2] == pytest.approx([2.2, 1.0], abs=0.21)


def test_what_the_human_does_is_a_speed_for_displacements() -> None:
    watched = Watched(pace=0.0)
    driven = [said for said in watched.run(1.5) if said.teleop is not None]
    assert driven and all(said.teleop == pytest.approx([0.1, -0.2, 1.0]) for said in driven)
    assert all(said.teleop_s == said.deadman for said in driven)


@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_an_end_is_labelled_once_and_nothing_is_driven_after_it(outcome: str) -> None:
    watched = Watched(pace=0.0)
    watched.run(1.2)
    assert watched.mode == Mode.TELEOP
    after = watched.run(1, outcome)
    assert [said.label for said in after] == [outcome] + [""] * (len(after) - 1)
    assert all(said.teleop is None for said in after) and watched.mode == Mode.RUN
    watched.human.begin()
    assert [said.label for said in watched.run(0.2, outcome)] == [outcome, ""]


def test_what_the_human_wants_passes_through_a_joystick() -> None:
    """Speeds that the human wants, put on a joystick's axes, come out of the desk as the same speeds."""
    uses = tuple(AxisUse(name, str(number), scale) for number, (name, scale) in enumerate([("x", 0.4), ("y", -0.4)]))
    entries = [EntryLimits(name, "displacement", -1, 1, 0.4, 10, 600) for name in ("x", "y")]
    desk = OperatorInputParser(OperatorDevice(axes=uses), entries)
    desk.receive_joy([0, 0], [], 0.0)
    human = ScriptedHuman(SETTINGS, ("displacement", "displacement"), 12.5)
    for number in range(200):
        now = 0.01 * (number + 1)
        said = human.act(HumanObservation(now, Mode.TELEOP if human.takeovers else Mode.RUN, 0.0, lambda: ADVICE[:2]))
        wanted = np.zeros(2) if said.teleop is None else said.teleop
        axes = [enter_dead_zone(use, speed / use.scale) for use, speed in zip(uses, wanted, strict=True)]
        desk.receive_joy(axes, [], now)
        found = desk.read(now, Mode.TELEOP, np.zeros(2)).teleop
        assert found == pytest.approx(wanted, abs=1e-12)
    assert human.takeovers == 1


STILL = np.tile(np.float32([0, 0, 0, 1]), (1, 4, 1))


@pytest.fixture
def robot(make_robot: Callable[..., RobotSimulator]) -> RobotSimulator:
    return make_robot(human="scripted", simulated={"progress": True, "horizon": 120})


def run(robot: RobotSimulator, episode: Episode) -> list[StepResult]:
    """The results of an episode of a policy that does nothing."""
    robot.reset([episode])
    results = []
    while not results or not len(results[-1].ended):
        results.append(robot.step(STILL, [None]))
    return results


@pytest.mark.thorough
@pytest.mark.parametrize("task", [0, 6])
def test_a_human_who_takes_over_brings_a_helpless_policy_to_its_goal(robot: RobotSimulator, task: int) -> None:
    results = run(robot, Episode(3, task, 50 + task))
    sources = np.concatenate([each.source[0, : each.steps[0]] for each in results])
    assert results[-1].success[0].any() and results[-1].terminated[0] and results[-1].failures == ("",)
    assert sources[0] == Source.POLICY, "the policy began"
    assert set(sources) >= {Source.POLICY, Source.HUMAN}
    driven = np.concatenate([each.executed[0, : each.steps[0]] for each in results])[sources == Source.HUMAN]
    assert np.abs(driven[:, :3]).max() > 0.02, "the human moved the arm"
    assert robot._joystick is not None and robot._joystick.human.takeovers >= 1


@pytest.mark.thorough
def test_what_was_executed_is_what_the_simulation_did(robot: RobotSimulator) -> None:
    """The executed actions, whoever decided them, lead the simulator itself through the same states."""
    episode = Episode(3, 1, 77)
    simulator = Tabletop(TabletopConfig(horizon=120), 1)
    simulator.reset([episode])
    for ours in run(robot, episode):
        steps = int(ours.steps[0])
        theirs = simulator.step(ours.executed[:, :steps], [None])
        if not len(ours.ended):
            assert ours.observation.state == pytest.approx(theirs.observation.state, abs=1e-5)
    assert np.array_equal(ours.ended, theirs.ended) and ours.success[0, steps - 1] == theirs.success[0, -1]


@pytest.mark.thorough
def test_a_takeover_does_not_jump(robot: RobotSimulator) -> None:
    results = run(robot, Episode(3, 1, 77))
    sources = np.concatenate([each.source[0, : each.steps[0]] for each in results])
    moves = np.concatenate([each.executed[0, : each.steps[0]] for each in results])[:, :3]
    first = int(np.argmax(sources == Source.HUMAN))
    assert np.abs(moves[first]).max() < 0.5 * np.abs(moves[sources == Source.HUMAN]).max()


def test_a_human_needs_an_operator_that_shows_progress() -> None:
    """It is known before anything is built, and a wrong key has the name that it was typed by."""
    describe_robot(RobotSimulatorConfig(human="scripted"))
    with refuses("human-unsupported", "sim.simulated={progress: false}"):
        describe_robot(RobotSimulatorConfig(human="scripted", simulated={"progress": False}))
    with refuses("key-unknown", "sim.simulated.progres"):
        describe_robot(RobotSimulatorConfig(human="scripted", simulated={"progres": True}))
