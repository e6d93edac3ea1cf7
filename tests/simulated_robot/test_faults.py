"""Each fault does what it says to what the robot publishes, and nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embodied_rl.schema import FaultsNode
from tests.support.tabletop_robot import START_NS, Bench

MOVE = [0.1, 0.1, 0.0, 1.0]
PICTURES, JOINTS, TOOL = "/camera/front/image_raw", "/joint_states", "/tool_pose"


def stamp(message: Any) -> int:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def run(bench: Bench, seconds: float, **faults: Any) -> None:
    """Break it, forget what was heard until then, and let it move."""
    bench.peer.break_it(**faults)
    bench.run(0.008, MOVE)
    bench.peer.received.clear()
    bench.run(seconds, MOVE)


def measures(bench: Bench) -> bool:
    """Whether joint states and poses are the simulator's in each message: their stamps are one step apart."""
    stamps = [stamp(message) for message in bench.peer.of(JOINTS)]
    values = {message.position.tobytes() for message in bench.peer.of(JOINTS)}
    return np.unique(np.diff(stamps)).tolist() == [8_000_000] and len(values) == len(stamps)


def shows(bench: Bench) -> bool:
    """Whether pictures differ, with stamps one control step apart."""
    pictures = bench.peer.of(PICTURES)
    different = {message.data.tobytes() for message in pictures}
    return np.unique(np.diff([stamp(each) for each in pictures])).tolist() == [80_000_000] and len(different) > 1


def test_a_sound_robot_measures_and_shows(live: Bench) -> None:
    run(live, 0.4)
    assert measures(live) and shows(live)


def test_frozen_states_repeat_with_new_stamps(live: Bench) -> None:
    run(live, 0.4, states="frozen")
    for topic, content in ((JOINTS, lambda m: m.position.tobytes()), (TOOL, lambda m: m.pose.position.x)):
        messages = live.peer.of(topic)
        assert len({content(each) for each in messages}) == 1 and len({stamp(each) for each in messages}) == 50
    assert shows(live)


def test_states_without_numbers(live: Bench) -> None:
    run(live, 0.8, states="nan", share=0.5)
    lost = [bool(np.isnan(each.position).all() and np.isnan(each.velocity).all()) for each in live.peer.of(JOINTS)]
    nowhere = [bool(np.isnan(each.pose.position.x)) for each in live.peer.of(TOOL)]
    assert lost == nowhere and 30 < sum(lost) < 70
    assert not any(np.isnan(each.position).any() for each in live.peer.of(JOINTS) if not np.isnan(each.position).all())


def test_dropped_states(live: Bench) -> None:
    run(live, 0.8, states="dropped", share=0.3)
    stamps = [stamp(each) for each in live.peer.of(JOINTS)]
    assert 50 < len(stamps) < 90 and stamps == sorted(set(stamps)) == [stamp(each) for each in live.peer.of(TOOL)]
    run(live, 0.8, states="dropped")
    assert not live.peer.of(JOINTS) and shows(live)


def test_duplicated_states(live: Bench) -> None:
    run(live, 0.8, states="duplicated", share=0.3)
    stamps = [stamp(each) for each in live.peer.of(JOINTS)]
    assert 110 < len(stamps) < 150 and stamps == sorted(stamps) and len(set(stamps)) == 100


def test_delayed_states_have_the_stamps_of_their_measurement(live: Bench) -> None:
    run(live, 0.8, states="delayed", delay=0.2)
    ages = []
    for _ in range(20):
        live.peer.received.clear()
        live.run(0.008, MOVE)
        ages.append(live.time.now_ns - 8_000_000 - stamp(live.peer.of(JOINTS)[-1]))
    assert set(ages) == {200_000_000}


def test_reordered_states_change_places_in_pairs(live: Bench) -> None:
    run(live, 0.4, states="reordered")
    stamps = [stamp(each) for each in live.peer.of(JOINTS)]
    steps = np.diff(stamps) / 8e6
    assert set(steps[0::2]) | set(steps[1::2]) == {-1.0, 3.0}
    assert sorted(stamps) == list(range(min(stamps), max(stamps) + 1, 8_000_000))


@pytest.mark.parametrize(("kind", "names"), [("other_order", 9), ("missing_joint", 8)])
def test_joints_in_another_order_or_without_one_are_still_themselves(live: Bench, kind: str, names: int) -> None:
    run(live, 0.08, states=kind)
    message, reading = live.peer.of(JOINTS)[-1], live.robot.robot.read()
    assert len(message.name) == len(message.position) == len(message.velocity) == names
    assert message.name != list(live.robot.robot.joint_names)
    by_name = dict(zip(message.name, message.position.tolist(), strict=True))
    true = dict(zip(live.robot.robot.joint_names, reading.position.tolist(), strict=True))
    assert by_name == {name: true[name] for name in message.name}


@pytest.mark.parametrize(
    ("kind", "count", "contents", "stamps"), [("frozen", 10, 1, 10), ("frozen_stamps", 10, 1, 1), ("dead", 0, 0, 0)]
)
def test_a_camera_freezes_or_is_silent(live: Bench, kind: str, count: int, contents: int, stamps: int) -> None:
    run(live, 0.8, cameras=kind)
    pictures = live.peer.of(PICTURES)
    assert len(pictures) == len(live.peer.of("/camera/front/camera_info")) == count and measures(live)
    assert len({each.data.tobytes() for each in pictures}) == contents
    assert len({stamp(each) for each in pictures}) == stamps


def test_delayed_pictures_show_what_was(live: Bench) -> None:
    run(live, 0.8, cameras="delayed", delay=0.16)
    ages = []
    for _ in range(30):
        live.peer.received.clear()
        live.run(0.008, MOVE)
        ages += [live.time.now_ns - 8_000_000 - stamp(each) for each in live.peer.of(PICTURES)]
    assert set(ages) == {160_000_000}


@pytest.mark.parametrize("seconds", [5.0, -3.0])
def test_a_clock_that_jumps_takes_all_stamps_along(live: Bench, seconds: float) -> None:
    run(live, 0.4, clock_jump=seconds)
    clock = live.peer.of("/clock")[-1].clock
    said = clock.sec * 10**9 + clock.nanosec
    assert said - (live.time.now_ns - 8_000_000) == round(seconds * 1e9)
    assert stamp(live.peer.of(JOINTS)[-1]) == stamp(live.peer.of(TOOL)[-1]) == said and measures(live)


def test_delayed_commands_take_effect_later_and_for_as_long(live: Bench) -> None:
    live.peer.break_it(command_delay=0.24)
    live.run(0.08)
    live.peer.received.clear()
    live.run(0.4, MOVE)
    speeds = np.array([np.abs(each.velocity).max() for each in live.peer.of(JOINTS)])
    assert speeds[:30].max() < 1e-3 < 0.05 < speeds[34:].min()


def test_a_restarted_node_comes_back_as_another_without_an_episode(live: Bench) -> None:
    live.run(0.2, MOVE)
    before = live.peer.node.list_publishers(JOINTS)[0].gid
    live.peer.break_it(restart=0.4)
    live.run(0.016, MOVE)
    assert not live.peer.node.list_publishers(JOINTS) and not live.peer.node.list_subscriptions("/command")
    live.peer.received.clear()
    live.run(0.36, MOVE)
    assert not live.peer.received
    live.run(0.2)
    (back,) = live.peer.node.list_publishers(JOINTS)
    assert back.gid != before and live.robot.episode is None
    assert np.abs(live.peer.of(JOINTS)[-1].velocity).max() < 0.02, "it stopped by itself"


def test_an_empty_request_heals(live: Bench) -> None:
    run(live, 0.4, states="frozen", cameras="dead", clock_jump=9.0)
    run(live, 0.4)
    assert measures(live) and shows(live)
    assert stamp(live.peer.of(JOINTS)[-1]) == live.time.now_ns - 8_000_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"camera": "frozen"}', "unknown key 'faults.camera'. Did you mean 'faults.cameras'?"),
        ('{"cameras": "melted"}', "faults.cameras"),
        ('{"share": 1.5}', "faults.share must be at most 1.0, not 1.5"),
        ('{"delay": NaN}', "faults.delay"),
        ("broken", "it is not JSON"),
    ],
)
def test_a_bad_request_for_faults_is_refused_in_words(live: Bench, text: str, words: str) -> None:
    live.peer.break_it(text)
    live.run(0.016)
    live.peer.received.clear()
    live.run(0.4, MOVE)
    assert measures(live) and shows(live)
    assert words in live.robot.last_refusal and "a request for faults" in live.robot.last_refusal


def test_faults_may_be_there_from_the_start(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(lockstep=True, faults=FaultsNode(cameras="dead"))
    bench.peer.ask()
    bench.exchange()
    assert bench.peer.of(JOINTS) and not bench.peer.of(PICTURES)
    assert stamp(bench.peer.of(JOINTS)[0]) == START_NS + 80_000_000
