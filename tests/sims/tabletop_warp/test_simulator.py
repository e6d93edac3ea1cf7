"""The contract; states, outcomes and pictures against MuJoCo's own, for the same seeds and actions.

A contact that is made or missed by a rounding error changes what follows: MuJoCo does not repeat a push to the
millimetre either, once its state is rounded to float32. So states are compared over one control step and over ten, each
time from MuJoCo's own state, and over whole episodes the outcomes are.
"""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode, NotFinite, StepResult, Unavailable
from embodied_rl.runtime.processes.handle import WorkerError
from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.operator_contract import check_termination_beats_truncation
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from embodied_rl_sims.tabletop.bodies import Bodies

pytestmark = pytest.mark.sim


ROUGH = {"inference_delay": (0, 3), "state_noise": 0.01, "image_noise": 8.0}


def test_it_keeps_the_contract(make) -> None:
    """To the bit, with all that makes worlds wait for each other: on the processor, none knows of another."""
    check_simulator(lambda rows: make(rows, horizon=15, **ROUGH))


def test_success_on_the_last_step_terminates(make) -> None:
    check_termination_beats_truncation(lambda rows, horizon: make(rows, horizon=horizon))


def test_physics_that_breaks_is_named(make) -> None:
    tabletop = make(3)
    tabletop.reset([Episode(row, row, 30 + row) for row in range(3)])
    state = tabletop.snapshot()
    state["physics"][1, 1 + 32 + 10] = np.nan  # a velocity: after the time and 32 positions
    tabletop.restore(state)
    with pytest.raises(NotFinite, match="no longer finite after control step 1") as caught:
        tabletop.step(np.zeros((3, 2, 4), np.float32), [None] * 3)
    assert caught.value.row == 1


def test_contacts_without_room_are_an_error(cramped: Callable[[int], None]) -> None:
    """Nothing passes through anything because a buffer was full."""
    with pytest.raises(WorkerError, match="environment 0: more contacts than the capacity of mujoco_warp"):
        cramped(2)


def test_a_device_that_is_not_there_is_named(host: ProcessHandle) -> None:
    with pytest.raises(Unavailable, match=r"sim\.device=cuda:99: there is .* here\. Set sim\.device="):
        host.submit("make", 1, {"device": "cuda:99"}).result()


def test_it_says_what_results_depend_on(host: ProcessHandle) -> None:
    """The environment holds what its recipe pins."""
    said, found = host.submit("describe").result()
    pins = dict(pin.split("==") for step in python_environments.read_recipe("tabletop_warp").steps for pin in step)
    assert said == {**pins, "device": "cpu"}
    assert [diagnosis.status for diagnosis in found] == ["ok", "warn"]
    assert found[1].found == "cpu" and "sim=tabletop" in found[1].remedy


@pytest.mark.parametrize("split", ["train", "vision"])
def test_pictures_are_the_ray_camera_s(make, split: str) -> None:
    """In 999 pixels of a thousand to the bit; the others lie on edges. In the "vision" split the camera moves."""
    episodes = [Episode(row, row % 7, 300 + row, split=split) for row in range(14)]
    original, copied = Tabletop(TabletopConfig(), 14), make(14, image_size=64)
    original.reset(episodes)
    operate = original.expert()
    for _ in range(8):
        original.step(operate()[:, None], episodes)
    left = original.restore(original.snapshot()).images["front"]
    right = copied.restore(original.snapshot()).images["front"]
    assert shown(left).min() > 50, "nothing but the table is seen"
    assert (left == right).all(axis=-1).mean() > 0.999
    assert np.abs(left.astype(int) - right).mean() < 0.01


def shown(pictures: Array) -> Array:
    """[n] pixels that differ from their neighbour on the right by much: edges of things."""
    return (np.abs(np.diff(pictures.astype(int), axis=2)).sum(axis=-1) > 60).sum(axis=(1, 2))


def test_a_new_episode_is_painted_anew(make) -> None:
    """Colours, light, camera and table of the episode that runs, in every row, whatever ran there before."""
    first, second = ([Episode(row, row, seed + row, split="vision") for row in range(3)] for seed in (40, 50))
    used, fresh = make(3, image_size=32), make(3, image_size=32)
    before = used.reset(first).images["front"]
    again = used.reset([first[0], second[1], second[2]]).images["front"]
    np.testing.assert_array_equal(again[0], before[0])
    np.testing.assert_array_equal(again[1:], fresh.reset(second).images["front"][1:])
    assert (again[1:] != before[1:]).mean() > 0.3


def test_films_are_of_the_same_scene(make) -> None:
    """Drawn on the host, from the state that the device is in; nothing where nothing runs."""
    tabletop = make(2, image_size=32)
    tabletop.reset([Episode(0, 2, 4), None])
    seen = tabletop.step(np.full((2, 3, 4), 0.02, np.float32), [None, None]).observation.images["front"][0]
    film = tabletop.render(0, 32, 32)
    assert (film == seen).all(axis=-1).mean() > 0.99
    assert not tabletop.render(1, 32, 32).any()


CUBES, CYLINDER = [0, 1], 2
NUM_ENVS = 28  # four of each task


def episodes(first: int = 100, count: int = NUM_ENVS, split: str = "train") -> list[Episode]:
    return [Episode(row, row % 7, first + row, split=split) for row in range(count)]


@pytest.fixture
def original() -> Tabletop:
    return Tabletop(TabletopConfig(terminate_on_success=False), NUM_ENVS)


@pytest.fixture(scope="module")
def copied(make):
    """The same on MuJoCo Warp."""
    return make(NUM_ENVS, image_size=64, terminate_on_success=False)


def objects(state: dict[str, Array]) -> Array:
    """[n, 3, 3] metres, from a snapshot."""
    bodies = Bodies(0)
    bodies.qpos = state["physics"][:, 1 : 1 + bodies.model.nq]  # after the time
    return bodies.objects


def apart(left: Array, right: Array) -> Array:
    return np.linalg.norm(left - right, axis=-1)


def follow(original: Tabletop, copied, steps: int) -> tuple[Array, Array, list[tuple[StepResult, StepResult]]]:
    """The operator's episode in MuJoCo; every so many control steps the copy starts from MuJoCo's state.

    Returns:
        How far apart the tools [k, n] and the objects [k, n, 3] are after each stretch, in metres, and what both gave.
    """
    original.reset(episodes())
    operate, tools, things, results = original.expert(), list[Array](), list[Array](), []
    for step in range(1, 41):
        if step % steps == 1 % steps:
            copied.restore(original.snapshot())
        actions = operate()[:, None]
        left, right = (each.step(actions, [None] * NUM_ENVS) for each in (original, copied))
        if step % steps == 0:
            results.append((left, right))
            tools.append(apart(left.observation.state[:, :3], right.observation.state[:, :3]))
            things.append(apart(objects(original.snapshot()), objects(copied.snapshot())))
    return np.array(tools), np.array(things), results


def test_a_control_step_is_mujoco_s(original, copied) -> None:
    """The tool within 0.2 mm, cubes within 5 µm once they lie, and 95 cylinders of a hundred within 0.1 mm."""
    tools, things, results = follow(original, copied, steps=1)
    assert tools.max() < 2e-4
    assert things[:, :, CUBES].max() < 1.5e-4 and things[1:, :, CUBES].max() < 5e-6
    assert np.quantile(things[:, :, CYLINDER], 0.95) < 1e-4
    for left, right in results:
        np.testing.assert_array_equal(left.executed, right.executed)


def test_ten_control_steps_are_mujoco_s(original, copied) -> None:
    """The tool within 0.5 mm, cubes within 0.2 mm, and 80 cylinders of a hundred within 1 mm."""
    tools, things, _ = follow(original, copied, steps=10)
    assert tools.max() < 5e-4
    assert things[:, :, CUBES].max() < 2e-4
    assert np.quantile(things[:, :, CYLINDER], 0.8) < 1e-3


def test_a_control_step_takes_as_long_as_mujoco_s(original, copied) -> None:
    original.reset(episodes())
    copied.reset(episodes())
    for tabletop in (original, copied):
        tabletop.step(np.zeros((NUM_ENVS, 3, 4), np.float32), [None] * NUM_ENVS)
    times = [tabletop.snapshot()["physics"][:, 0] for tabletop in (original, copied)]
    np.testing.assert_allclose(*times, atol=1e-5)


def outcomes(tabletop, num_envs: int, faulty: bool) -> Array:
    """bool [n]: which episodes a scripted operator brings to success."""
    tabletop.reset(episodes(5000, num_envs))
    operate, won = tabletop.expert(faulty), np.zeros(num_envs, bool)
    for _ in range(50):
        result = tabletop.step(operate()[:, None], [None] * num_envs)
        won |= result.success[:, 0]
        if not result.steps.any():
            break  # all are parked
    return won


def test_operators_succeed_as_often_as_in_mujoco(make) -> None:
    """The careful one always; the faulty one, who sits on the edge of failing, in the same episodes but for a few."""
    copied, original = make(49), Tabletop(TabletopConfig(image_size=8), 49)
    assert outcomes(copied, 49, faulty=False).all()
    left, right = outcomes(original, 49, faulty=True), outcomes(copied, 49, faulty=True)
    assert 0.4 < left.mean() < 0.7, "the faulty operator is no test"
    assert (left != right).sum() <= 5
    assert abs(left.mean() - right.mean()) < 0.07


def test_an_episode_begun_on_the_one_goes_on_on_the_other(original, copied) -> None:
    """Snapshots are the same arrays; what a restored episode shows is, too, to float32."""
    copied.reset(episodes())
    seen = copied.step(np.full((NUM_ENVS, 6, 4), 0.01, np.float32), [None] * NUM_ENVS).observation
    restored = original.restore(copied.snapshot())
    np.testing.assert_allclose(restored.state, seen.state, atol=1e-6)
    np.testing.assert_allclose(restored.privileged, seen.privileged, atol=1e-5)
    assert restored.instruction == seen.instruction


def test_targets_jump_as_in_mujoco(original, copied) -> None:
    """In the "execution" split, once: objects on the table, and buttons with their caps."""
    jumping = episodes(100, split="execution")
    hold = np.tile(np.array([0, 0, 0, 1], np.float32), (NUM_ENVS, 20, 1))
    found = []
    for tabletop in (original, copied):
        before = tabletop.reset(jumping).privileged
        found.append(tabletop.step(hold, [None] * NUM_ENVS).observation.privileged - before)
    columns = [original.spec.privileged_names.index(f"target_{axis}") for axis in "xy"]
    assert (np.abs(found[0][:, columns]).max(axis=1) > 0.1).all(), "nothing jumps"  # in units of 12.5 cm
    np.testing.assert_allclose(found[1], found[0], atol=0.02)


def test_the_yardstick_does_the_same_physics(make) -> None:
    """As often as it is called, and the simulator stays where it was."""
    tabletop, limit = make(3), np.array([0.03, 0.03, 0.03, 1.0])
    tabletop.reset(episodes(20, 3))
    actions = np.random.default_rng(0).uniform(-limit, limit, (2, 3, 3, 4)).astype(np.float32)
    run = tabletop.bare_loop(actions)
    first, second = run(), run()
    np.testing.assert_array_equal(first, second)
    for chunk, positions in zip(actions, first, strict=True):
        for j in range(3):  # as the controls were recorded
            tabletop.step(chunk[:, j : j + 1], [None] * 3)
        np.testing.assert_array_equal(positions, tabletop.snapshot()["physics"][:, 1:33].astype(np.float32))


def test_several_goals_follow_each_other_as_in_mujoco(make) -> None:
    """The operator reaches all of them, and chains begun on the one go on on the other, from every goal."""
    settings = {"goals": 3, "horizon": 120, "progress": True}
    copied, original = make(7, **settings), Tabletop(TabletopConfig(image_size=8, **settings), 7)
    copied.reset(episodes(5200, 7))
    operate = copied.expert()
    for _ in range(30):
        seen = copied.step(operate()[:, None], [None] * 7).observation
    saved = copied.snapshot()
    assert len({*saved["stage"].tolist()}) > 1, "all are at the same goal"
    restored = original.restore(saved)
    assert restored.instruction == seen.instruction
    np.testing.assert_allclose(restored.privileged, seen.privileged, atol=1e-5)
    np.testing.assert_allclose(restored.progress, seen.progress, atol=1e-4)
    for tabletop in (copied, original):
        operate, won = tabletop.expert(), np.zeros(7, bool)
        for _ in range(90):
            won |= tabletop.step(operate()[:, None], [None] * 7).success[:, 0]
        assert won.all()
