"""The whole simulator: the contract, exact continuation, what observations may depend on, and faults that are named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Observation, StepResult
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.simulator_contract import assert_same
from embodied_rl_sims.tabletop import Tabletop, bodies, chain
from embodied_rl_sims.tabletop.bodies import bare_loop
from embodied_rl_sims.tabletop.layout import FAMILIES, SPLITS, TASKS, Layout, draw_layout

TASK = {task.name: number for number, task in enumerate(TASKS)}
ROUGH = {"inference_delay": (0, 3), "state_noise": 0.01, "image_noise": 8.0}


@pytest.mark.parametrize(
    "settings", [{}, ROUGH, {"terminate_on_success": False}], ids=["plain", "rough", "to the horizon"]
)
def test_it_keeps_the_contract(make, settings) -> None:
    check_simulator(lambda rows: make(rows, horizon=15, **settings))


@pytest.mark.thorough
def test_success_on_the_last_step_terminates(make) -> None:
    check_simulator(
        lambda rows: make(rows, horizon=3),
        build_with_horizon=lambda rows, horizon: make(rows, horizon=horizon),
    )


def random_chunk(number: int, rows: int, steps: int = 5) -> Array:
    limit = np.array([0.03, 0.03, 0.03, 1.0])
    return np.random.default_rng(number).uniform(-limit, limit, (rows, steps, 4)).astype(np.float32)


def results(simulator: Tabletop, first: int, chunks: int, episodes: list[Episode]) -> list[StepResult]:
    """Some chunks; the careful operator acts in odd rows, repeated over half a chunk."""
    operate, found = simulator.expert(), []
    for number in range(first, first + chunks):
        actions = random_chunk(number, simulator.num_envs, 2)
        actions[1::2] = operate()[1::2, None]
        found.append(simulator.step(actions, [replace(e, index=e.index + 100, seed=e.seed + number) for e in episodes]))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", *SPLITS])
@pytest.mark.parametrize("settings", [{}, {**ROUGH, "terminate_on_success": False}], ids=["plain", "rough"])
def test_a_snapshot_continues_to_the_bit(make, split, settings) -> None:
    """Taken in mid-episode, before and after the target's jump, and restored in another simulator."""
    episodes = [Episode(row, task, 70 + row, split=split) for row, task in enumerate((0, 2, 4, 5, 6, 6))]
    whole = make(6, horizon=24, image_size=16, **settings)
    whole.reset(episodes)
    for chunks in (2, 4, 3):
        results(whole, 0, chunks, episodes)
        saved = whole.snapshot()
        other = make(6, horizon=24, image_size=16, **settings)
        other.restore(saved)
        for left, right in zip(results(other, 50, 8, episodes), results(whole, 50, 8, episodes), strict=True):
            assert_same(left, right, f"a restored {split} episode")


def test_a_restored_success_is_not_paid_again(make, put, still) -> None:
    episode = Episode(0, TASK["push_cube"], 5)
    layout, tabletop, other = draw_layout(episode), make(terminate_on_success=False), make(terminate_on_success=False)
    tabletop.reset([episode])
    put(tabletop, 0, layout.target, [*layout.fixtures[layout.goal], 0.019])
    assert tabletop.step(still, [None]).reward[0, 0] == 1
    other.restore(tabletop.snapshot())
    result = other.step(still, [None])
    assert result.success[0, 0] and result.reward[0, 0] == 0


def test_the_target_jumps_once(make, still) -> None:
    """By what the layout says, after the control step it says; in the air it does not."""
    episode = Episode(0, TASK["push_cube"], 8, split="execution")
    layout, tabletop = draw_layout(episode), make()
    assert layout.displacement is not None
    step, shift = layout.displacement
    tabletop.reset([episode])
    seen = [layout.objects[layout.target]]
    for _ in range(25):
        tabletop.step(still, [None])
        seen.append(tabletop._bodies.objects[0, layout.target, :2].copy())
    moved = np.diff(seen, axis=0)
    np.testing.assert_allclose(moved[step - 1], shift, atol=1e-4)
    np.testing.assert_allclose(np.delete(moved, step - 1, axis=0), 0, atol=1e-3)


def test_a_button_takes_its_cap_along(make, still) -> None:
    episode = Episode(0, TASK["press_button"], 8, split="execution")
    layout, tabletop = draw_layout(episode), make()
    assert layout.displacement is not None
    step, shift = layout.displacement
    before = tabletop.reset([episode]).privileged
    result = tabletop.step(np.repeat(still, step, axis=1), [None])
    assert before is not None and result.observation.privileged is not None
    names = tabletop.spec.privileged_names
    for part in ("target", "goal"):
        columns = [names.index(f"{part}_x"), names.index(f"{part}_y")]
        jump = (result.observation.privileged - before)[0, columns] / 8
        np.testing.assert_allclose(jump, shift, atol=1e-6)


def test_a_delay_holds_the_arm_still(make) -> None:
    """Waiting d control steps is what d actions that change nothing are, but for the clock."""
    episode, action = Episode(0, TASK["pick_cube"], 3), random_chunk(1, 1, 1)
    hold = np.broadcast_to(np.array(make().spec.hold, np.float32), (1, 3, 4))
    slow, fast = make(inference_delay=(3, 3)), make()
    slow.reset([episode])
    fast.reset([episode])
    waited, moved = slow.step(action, [None]), fast.step(np.concatenate([hold, action], axis=1), [None])
    np.testing.assert_array_equal(waited.observation.state, moved.observation.state)
    assert waited.steps[0] == 1 and moved.steps[0] == 4
    assert slow._bodies.data[0].time == pytest.approx(4 * 0.08)


def test_a_delay_is_drawn_for_each_episode_within_its_limits(make) -> None:
    tabletop = make(24, inference_delay=(1, 3))
    tabletop.reset([Episode(row, row % 7, row) for row in range(24)])
    tabletop.step(np.zeros((24, 1, 4), np.float32), [None] * 24)
    steps = [round(data.time / 0.08) - 1 for data in tabletop._bodies.data]
    assert set(steps) == {1, 2, 3}


Disturb = Callable[[Tabletop], None]


def observed(make: Callable[..., Tabletop], disturb: Disturb, **settings: Any) -> Observation:
    """One episode's observation after one quiet control step, `disturb`ed before it."""
    tabletop = make(image_size=64, **settings)
    tabletop.reset([Episode(0, TASK["pick_cube"], 12)])
    disturb(tabletop)
    return tabletop.step(np.array([[[0, 0, 0, 1]]], np.float32), [None]).observation


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_policy_sees_nothing_of_what_is_out_of_sight(make, put, number) -> None:
    """Two places behind the arm, where the camera does not look: only privileged state tells them apart."""
    here, there = (
        observed(make, lambda tabletop, place=place: put(tabletop, 0, number, place))
        for place in ([-0.5, 0.9, 0.019], [-0.7, 0.7, 0.019])
    )
    np.testing.assert_array_equal(here.state, there.state)
    np.testing.assert_array_equal(here.images["front"], there.images["front"])
    assert here.instruction == there.instruction
    assert not np.array_equal(here.privileged, there.privileged)


def test_the_state_is_the_robots_own(make, put) -> None:
    """Whatever lies on the table, the state is the same as long as the arm touches nothing."""
    untouched = observed(make, lambda tabletop: None)
    for number in range(3):
        moved = observed(make, lambda tabletop, number=number: put(tabletop, 0, number, [0.35, 0.19, 0.019]))
        np.testing.assert_array_equal(moved.state, untouched.state)
        assert not np.array_equal(moved.images["front"], untouched.images["front"])


def test_the_target_s_colour_changes_pictures_alone(make, monkeypatch) -> None:
    episode = Episode(0, TASK["pick_cube"], 12)

    def recoloured(drawn: Episode, randomise: bool, *_: int) -> Layout:
        layout = draw_layout(drawn, randomise)
        colours = list(layout.object_colours)
        colours[layout.target] = next(name for name in layout.look.colours if name not in colours)
        return replace(layout, object_colours=tuple(colours))

    before = make(image_size=64).reset([episode])
    monkeypatch.setattr(chain, "draw_layout", recoloured)
    after = make(image_size=64).reset([episode])
    changed = (before.images["front"] != after.images["front"]).any(axis=-1)
    assert 5 < changed.sum() < 200
    np.testing.assert_array_equal(before.state, after.state)
    np.testing.assert_array_equal(before.privileged, after.privileged)


def test_privileged_state_says_where_things_are(make) -> None:
    episode = Episode(0, TASK["put_on_plate"], 12)
    layout, tabletop = draw_layout(episode), make()
    truth = dict(zip(tabletop.spec.privileged_names, tabletop.reset([episode]).privileged[0], strict=True))
    target, goal, middle = layout.objects[layout.target], layout.fixtures[layout.goal], np.array([0.48, 0.0])
    np.testing.assert_allclose([truth["target_x"], truth["target_y"]], 8 * (target - middle), atol=1e-6)
    np.testing.assert_allclose([truth["goal_x"], truth["goal_y"]], 8 * (goal - middle), atol=1e-6)
    np.testing.assert_allclose([truth["to_goal_x"], truth["to_goal_y"]], 10 * (goal - target), atol=1e-5)
    np.testing.assert_allclose(
        [truth["to_target_x"], truth["to_target_y"]], 14 * (target - layout.start[:2]), atol=1e-5
    )
    others = np.delete(layout.objects, layout.target, axis=0)
    shown = [[truth[f"other{i}_x"], truth[f"other{i}_y"]] for i in range(2)]
    np.testing.assert_allclose(shown, 8 * (others - middle), atol=1e-6)
    assert [truth[f"is_{family}"] for family in FAMILIES] == [float(family == "put") for family in FAMILIES]
    assert truth["clock"] == 0
    later = tabletop.step(np.zeros((1, 3, 4), np.float32), [None]).observation.privileged[0]
    assert later[tabletop.spec.privileged_names.index("clock")] == pytest.approx(3 / tabletop.spec.horizon)


def test_moves_are_metres(make) -> None:
    """The tool ends where the moves add up to."""
    tabletop, move = make(), np.array([0.02, -0.01, 0.015, 1], np.float32)
    start = tabletop.reset([Episode(0, TASK["pick_cube"], 12)]).state[0, :3]
    tabletop.step(np.tile(move, (1, 3, 1)), [None])
    arrived = tabletop.step(np.array([[[0, 0, 0, 1]] * 15], np.float32), [None]).observation.state[0, :3]
    np.testing.assert_allclose(arrived - start, 3 * move[:3], atol=2e-3)


@pytest.mark.thorough
def test_a_chunk_may_be_handed_over_step_by_step(make) -> None:
    """As films and recordings do, which repeat what was evaluated in chunks: even where the arm cannot follow."""
    episodes = [Episode(row, row % 7, 60 + row) for row in range(14)]
    whole, single = make(14), make(14)
    whole.reset(episodes)
    single.reset(episodes)
    for number in range(4):
        signs = np.sign(random_chunk(number, 14, 1))
        actions = np.repeat(signs * np.array([0.03, 0.03, 0.03, 1], np.float32), 5, axis=1)  # as fast as it goes
        result = whole.step(actions, [None] * 14)
        for j in range(5):
            last = single.step(actions[:, j : j + 1], [None] * 14)
        assert_same(last.observation, result.observation, "an episode in single steps")


def test_too_large_actions_are_cut_off_and_reported(make) -> None:
    episode, limit = Episode(0, TASK["pick_cube"], 12), np.array([0.03, -0.03, 0.03, -1], np.float32)
    wild, tame = make(), make()
    wild.reset([episode])
    tame.reset([episode])
    asked = np.tile(100 * limit, (1, 4, 1))
    first, second = wild.step(asked, [None]), tame.step(np.tile(limit, (1, 4, 1)), [None])
    np.testing.assert_array_equal(first.executed, second.executed)
    np.testing.assert_allclose(first.executed, np.tile(limit, (1, 4, 1)))
    assert_same(first.observation, second.observation, "an action beyond the limits")


def test_noise_has_the_size_that_was_asked_for(make) -> None:
    episodes = [Episode(row, row % 7, row) for row in range(40)]
    clean = make(40, image_size=16).reset(episodes)
    noisy = make(40, image_size=16, state_noise=0.01, image_noise=6.0).reset(episodes)
    assert np.std(noisy.state - clean.state) == pytest.approx(0.01, rel=0.15)
    middle = (clean.images["front"] > 40) & (clean.images["front"] < 215)
    difference = noisy.images["front"].astype(float) - clean.images["front"]
    assert np.std(difference[middle]) == pytest.approx(6.0, rel=0.05)
    np.testing.assert_array_equal(noisy.privileged, clean.privileged)


def test_physics_that_breaks_is_named(make, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file
    tabletop = make(3)
    tabletop.reset([Episode(row, row, 30 + row) for row in range(3)])
    tabletop.step(np.zeros((3, 2, 4), np.float32), [None] * 3)
    tabletop._bodies.data[1].qvel[10] = np.nan
    with pytest.raises(NotFinite, match=r"no longer finite after control step 3") as caught:
        tabletop.step(np.zeros((3, 2, 4), np.float32), [None] * 3)
    assert caught.value.row == 1


def test_the_last_picture_is_drawn_where_its_value_is_needed(make, put, still) -> None:
    """For a truncated episode it is what the camera sees; for a terminated one nothing follows, and it is black."""
    episodes = [Episode(row, TASK["push_cube"], 5 + row) for row in range(2)]
    layout, tabletop = draw_layout(episodes[0]), make(2, horizon=2, image_size=32)
    tabletop.reset(episodes)
    tabletop.step(np.repeat(still, 2, axis=0), [None, None])
    put(tabletop, 0, layout.target, [*layout.fixtures[layout.goal], 0.019])
    result = tabletop.step(np.repeat(still, 2, axis=0), [None, None])
    np.testing.assert_array_equal(result.terminated, [True, False])
    np.testing.assert_array_equal(result.truncated, [False, True])
    assert result.final_observation is not None
    black, drawn = result.final_observation.images["front"]
    assert not black.any() and drawn.any()
    asked = make(2, horizon=2, image_size=32)
    asked.reset([replace(episodes[0], final_picture=True), episodes[1]])
    snapshot = asked.snapshot()
    asked.reset(episodes)
    asked.restore(snapshot)  # what was asked for is kept
    asked.step(np.repeat(still, 2, axis=0), [None, None])
    put(asked, 0, layout.target, [*layout.fixtures[layout.goal], 0.019])
    ended = asked.step(np.repeat(still, 2, axis=0), [None, None])
    assert ended.terminated[0] and ended.final_observation.images["front"][0].any()
    longer = make(1, horizon=9, image_size=32)
    longer.reset(episodes[1:])
    longer.step(still, [None])
    np.testing.assert_array_equal(drawn, longer.step(still, [None]).observation.images["front"][0])


def test_filming_changes_nothing(make) -> None:
    episodes = [Episode(row, row, 20 + row) for row in range(2)]
    filmed, unseen = make(2, image_size=16), make(2, image_size=16)
    filmed.reset(episodes)
    unseen.reset(episodes)
    for number in range(4):
        assert filmed.render(1, 40, 30).shape == (30, 40, 3)
        left, right = (t.step(random_chunk(number, 2), [None, None]) for t in (filmed, unseen))
        assert_same(left, right, "a filmed episode")


def test_a_film_shows_what_the_camera_sees(make) -> None:
    tabletop = make(2, image_size=32)
    observation = tabletop.reset([Episode(0, 0, 4, split="vision"), None])
    np.testing.assert_array_equal(tabletop.render(0, 32, 32), observation.images["front"][0])
    assert not tabletop.render(1, 32, 32).any()


def test_the_yardstick_does_the_same_physics(make, monkeypatch) -> None:
    """Its scenes end where the simulator ends, as often as it is called, and the simulator stays where it was."""
    ends: list[Array] = []

    def spy(model: Any, scenes: Any, *rest: Any) -> None:
        bare_loop(model, scenes, *rest)
        ends.append(np.array([scene.qpos for scene in scenes]))

    monkeypatch.setattr(bodies, "bare_loop", spy)
    episodes = [Episode(row, row, 20 + row) for row in range(3)]
    tabletop = make(3)
    before = tabletop.reset(episodes)
    actions = np.stack([random_chunk(number, 3, 3) for number in range(3)])
    run = tabletop.bare_loop(actions)
    assert_same(tabletop.restore(tabletop.snapshot()), before, "the simulator after `bare_loop`")
    run()
    run()
    for chunk in actions:
        for j in range(3):  # as the controls were recorded
            tabletop.step(chunk[:, j : j + 1], episodes)
    for end in ends:
        np.testing.assert_array_equal(end, [data.qpos for data in tabletop._bodies.data])
