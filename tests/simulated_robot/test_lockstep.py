"""In lockstep a policy over topics sees the simulator's own observations, and ends with its outcomes, to the bit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from embodied_rl.deployment.robots.description import CommandTopic
from embodied_rl.interfaces.sim import Episode
from embodied_rl.simulated_robot.running import run_in_lockstep
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.tabletop_robot import HZ, START_NS, Bench, describe_tabletop


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(lockstep=True)


def run_both(bench: Bench, episode: Episode, actions: np.random.Generator | None) -> None:
    """Run an episode in the simulator and over topics, and compare each step; without a generator an operator acts."""
    simulator = Tabletop(TabletopConfig(), 1)
    observation, operator = simulator.reset([episode]), simulator.expert()
    bench.peer.ask(index=episode.index, task=episode.task, seed=episode.seed, split=episode.split)
    bench.exchange()
    for step in count(1):
        assert bench.peer.of("/instruction")[-1].data == observation.instruction[0]
        assert bench.peer.state.tobytes() == observation.state[0].tobytes()
        assert bench.peer.picture.tobytes() == observation.images["front"][0].tobytes()
        action = operator()[0] if actions is None else actions.uniform(-1, 1, 4) * [0.03, 0.03, 0.03, 1]
        action = action.astype(np.float32)
        result = simulator.step(action[None, None], [episode])
        bench.peer.command(action.astype(np.float64) * [HZ, HZ, HZ, 1])
        bench.exchange()
        outcomes = bench.peer.texts("/simulation/outcome")
        if not len(result.ended):
            assert not outcomes
            observation = result.observation
            continue
        assert result.final_observation is not None and result.failures is not None
        assert bench.peer.state.tobytes() == result.final_observation.state[0].tobytes()
        assert bench.peer.picture.tobytes() == result.final_observation.images["front"][0].tobytes()
        assert outcomes == [
            {
                "index": episode.index,
                "success": bool(result.success[0, 0]),
                "failure": result.failures[0],
                "truncated": bool(result.truncated[0]),
                "steps": step,
                "reward": float(result.reward.sum()),
            }
        ]
        return


@pytest.mark.thorough
@pytest.mark.parametrize("task", range(7))
def test_an_operator_s_episode_is_the_simulator_s(bench: Bench, task: int) -> None:
    run_both(bench, Episode(5, task, 30 + task, final_picture=True), None)
    assert bench.peer.texts("/simulation/outcome")[0]["success"]


@pytest.mark.thorough
@pytest.mark.parametrize(("task", "seed", "split"), [(0, 3, "train"), (4, 8, "vision"), (6, 1, "execution")])
def test_an_episode_of_random_actions_is_the_simulator_s(bench: Bench, task: int, seed: int, split: str) -> None:
    episode = Episode(2, task, seed, split=split, final_picture=True)
    run_both(bench, episode, np.random.default_rng(seed))
    assert not bench.peer.texts("/simulation/outcome")[0]["success"]


def test_a_control_step_takes_a_command_on_each_topic(make_bench: Callable[..., Bench]) -> None:
    robot, kind = describe_tabletop(), "control_msgs/msg/GripperCommand"
    actions = (*robot.actions[:3], replace(robot.actions[3], command="hand", target="position"))
    commands = {"hand": CommandTopic("/hand", "gripper", kind, max_effort=20.0)}
    bench = make_bench(lockstep=True, description=replace(robot, actions=actions, commands=commands))
    hand = bench.peer.node.create_publisher("/hand", kind, "command")
    bench.peer.ask()
    bench.exchange()
    stamp = bench.peer.of("/clock")[-1].clock

    def take_steps() -> int:
        bench.exchange()
        now = bench.peer.of("/clock")[-1].clock
        return round(((now.sec - stamp.sec) + (now.nanosec - stamp.nanosec) / 1e9) * HZ)

    for step in range(3):
        bench.peer.command([0.0, 0.1, 0.0])
        assert take_steps() == step
        hand.publish(bench.peer.node.messages.make(kind, position=1.0))
        assert take_steps() == step + 1
    hand.publish(bench.peer.node.messages.make(kind, position=1.5))
    bench.peer.command([0.0, 0.1, 0.0])
    assert take_steps() == 3 and bench.robot.counts["refused"] == 1


def moved(bench: Bench) -> bool:
    """Whether anything was published since the last look."""
    bench.exchange()
    heard, bench.peer.received = bench.peer.received, []
    return any(topic == "/joint_states" for topic, _ in heard)


def test_time_stands_still_between_commands_and_all_stamps_of_a_step_are_equal(bench: Bench) -> None:
    bench.peer.ask()
    for step in range(1, 4):
        bench.exchange()
        heard = {topic: message for topic, message in bench.peer.received if hasattr(message, "header")}
        stamps = {each.header.stamp.sec * 10**9 + each.header.stamp.nanosec for each in heard.values()}
        clock = bench.peer.of("/clock")[-1].clock
        assert len(heard) == 5 and stamps == {START_NS + step * 80_000_000} == {clock.sec * 10**9 + clock.nanosec}
        assert bench.peer.received[-1][0] == "/clock" or bench.peer.received[-2][0] == "/clock", (
            "it comes last, but for status"
        )
        bench.time.pass_s(7)
        bench.peer.received.clear()
        assert not moved(bench)
        bench.peer.command([0.1, 0, 0, 1])


def test_pictures_come_with_what_reads_them(steps: Bench) -> None:
    image, info = steps.peer.of("/camera/front/image_raw")[-1], steps.peer.of("/camera/front/camera_info")[-1]
    assert (image.encoding, image.step, image.height, image.width) == ("rgb8", 192, 64, 64)
    assert image.header.frame_id == info.header.frame_id == "front" and (info.height, info.width) == (64, 64)
    focal = 32 / np.tan(np.deg2rad(33) / 2)  # scene.xml: fovy 33
    assert np.allclose(info.k, [focal, 0, 31.5, 0, focal, 31.5, 0, 0, 1])


@pytest.mark.parametrize(("lockstep", "offered"), [(True, "reliable"), (False, "best_effort")])
def test_in_lockstep_pictures_and_the_clock_are_offered_reliably(
    make_bench: Callable[..., Bench], lockstep: bool, offered: str
) -> None:
    bench = make_bench(lockstep=lockstep)
    for topic in ("/camera/front/image_raw", "/camera/front/camera_info", "/clock"):
        assert bench.peer.node.list_publishers(topic)[0].qos.reliability == offered


@pytest.mark.parametrize("values", [[0.0] * 3, [float("nan")] * 4, [9.0, 0, 0, 1], [0, 0, 0, -2.0]])
def test_a_refused_command_moves_nothing(steps: Bench, values: list[float]) -> None:
    steps.peer.received.clear()
    steps.peer.command(values)
    assert not moved(steps) and steps.robot.counts == {"commands": 0, "refused": 1, "episodes": 0, "overruns": 0}
    steps.peer.command([0.1, 0, 0, 1])
    assert moved(steps)


def test_an_emergency_stop_holds_it(steps: Bench) -> None:
    steps.peer.stop(True)
    steps.peer.command([0.1, 0, 0, 1])
    steps.exchange()
    steps.peer.received.clear()
    steps.peer.command([0.1, 0, 0, 1])
    assert not moved(steps) and "the emergency stop is pressed" in steps.robot.last_refusal
    steps.peer.stop(False)
    steps.peer.command([0.1, 0, 0, 1])
    assert not moved(steps) and "the first command must be at rest" in steps.robot.last_refusal
    steps.peer.command([0, 0, 0, 1])
    assert moved(steps)


def test_commands_after_the_end_move_nothing(steps: Bench) -> None:
    for _ in range(50):
        steps.peer.command([0, 0, 0, 1])
        steps.exchange()
    assert [outcome["steps"] for outcome in steps.peer.texts("/simulation/outcome")] == [50]
    steps.peer.received.clear()
    steps.peer.command([0.1, 0, 0, 1])
    assert not moved(steps)
    steps.peer.ask(index=1)
    assert moved(steps)


def run_loop(bench: Bench, seconds: float) -> None:
    """Let the loop run for so long, by the clock of the bench."""

    def wait(seconds: float) -> None:
        bench.exchange()
        bench.time.pass_s(seconds)

    until = bench.time.seconds() + seconds
    run_in_lockstep(bench.robot, lambda: bench.time.seconds() >= until, bench.time.seconds, wait)


def test_what_was_published_is_repeated_for_who_came_later(steps: Bench) -> None:
    steps.peer.received.clear()
    run_loop(steps, 3.5)
    repeated = steps.peer.of("/joint_states")
    assert len(repeated) == 3 == len(steps.peer.of("/camera/front/image_raw"))
    assert {each.header.stamp.nanosec for each in repeated} == {80_000_000}
    assert not steps.peer.of("/simulation/outcome")


def test_an_episode_without_commands_is_given_up_in_words(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(lockstep=True, deadline_s=20.0)
    bench.robot.begin(Episode(9, 0, 0))
    run_loop(bench, 60)
    assert not bench.peer.of("/simulation/outcome"), "nobody has asked for it"
    bench.peer.ask(index=4)
    run_loop(bench, 25)
    (outcome,) = bench.peer.texts("/simulation/outcome")
    assert outcome["index"] == 4 and not outcome["success"] and outcome["failure"] == "no command for 20 s"
    assert "episode 4 is given up: no command for 20 s" in bench.lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\x00{", "it is not JSON"),
        ("[" * 4000, "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ("{" + " " * 5000 + "}", "it has 5002 characters; the limit is 4096"),
        ('{"index": 0, "task": 7, "seed": 0}', "task=7: there are tasks 0 … 6"),
        ('{"index": 0, "task": -1, "seed": 0}', "task must be an integer of at least 0, not -1"),
        ('{"index": 0, "task": 0, "seed": 1e400}', "seed must be an integer of at least 0, not inf"),
        ('{"index": 0, "task": 0, "seed": ' + "9" * 1000 + "}", "seed must be an integer"),
        ('{"index": true, "task": 0, "seed": 0}', "index must be an integer of at least 0, not True"),
        ('{"index": 0, "task": 0}', "seed must be an integer of at least 0, not None"),
        ('{"index": 0, "task": 0, "seed": 0, "tusk": 1}', "unknown key 'tusk'. Did you mean 'task'?"),
        ('{"index": 0, "task": 0, "seed": 0, "split": "test"}', "split='test' is none of train, vision"),
        ('{"index": 0, "task": 0, "seed": 0, "split": ["train"]}', "split=\"['train']\" is none of train"),
        ('{"index": 0, "task": 0, "seed": 0, "initial_state": 2}', "have no numbered initial states"),
    ],
)
def test_a_bad_request_for_an_episode_is_refused_in_words_and_the_robot_stays(
    steps: Bench, text: str, words: str
) -> None:
    state = steps.peer.state
    steps.peer.received.clear()
    steps.peer.say(text)
    assert not moved(steps)
    assert words in steps.robot.last_refusal and steps.lines[-1].startswith("refused a request for an episode: ")
    assert steps.robot.episode == Episode(0, 0, 3)
    steps.peer.command([0, 0, 0, 1])
    steps.exchange()
    assert np.allclose(steps.peer.state, state, atol=1e-3)
