"""The adapter against a stand-in for Isaac Lab, which resets environments as Isaac Lab does; see `stand_in`."""

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Source, Unavailable
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.simulators.python_environments import read_recipe
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.fakes import RowwiseFakeActor
from embodied_rl_sims.isaac import IsaacLab, IsaacLabConfig, app, simulator
from tests.support import isaac_stand_in as stand_in
from tests.support.isaac_stand_in import LENGTH, STEP

KINDS = ("Isaac-Point-v0", "Isaac-Point-Flat-v0", "Isaac-Point-Direct-v0")
SETTINGS = {"id": KINDS[0], "cameras": ("table_cam",), "image_size": 4, "device": "cpu"}
Make = Callable[..., IsaacLab]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> type[stand_in.Launcher]:
    monkeypatch.setenv("OMNI_KIT_ACCEPT_EULA", "YES")
    monkeypatch.setattr(app, "_apps", [])
    return stand_in.install(monkeypatch)


@pytest.fixture
def make(launcher: type[stand_in.Launcher]) -> Make:
    return lambda num_envs=2, **settings: IsaacLab(IsaacLabConfig(**{**SETTINGS, **settings}), num_envs)


def episodes(*seeds: int | None) -> list[Episode | None]:
    return [None if seed is None else Episode(seed, 0, seed) for seed in seeds]


def chunk(*moves: list[float]):
    """Actions of some environments, [n, H, 1]."""
    return np.array(moves, np.float32)[..., None]


@pytest.mark.parametrize("id", KINDS)
def test_it_keeps_the_contract(make, id) -> None:
    class Operated(IsaacLab):
        def expert(self, faulty: bool = False) -> Callable[[], Array]:
            return lambda: np.ones((self.num_envs, 1), np.float32)

    def build(rows: int, **settings) -> Operated:
        return Operated(IsaacLabConfig(**{**SETTINGS, "id": id, **settings}), rows)

    check_simulator(build, exact=False)
    check_simulator(build, exact=False, build_with_horizon=lambda rows, horizon: build(rows, horizon=horizon))


@pytest.mark.parametrize("id", KINDS)
def test_an_episode_that_ends_within_a_chunk_is_followed_by_a_fresh_one(make, id) -> None:
    """Isaac Lab begins the next one at once; it has run for some steps when the chunk ends, and is thrown away."""
    simulator = make(id=id)
    simulator.reset(episodes(0, 1))
    result = simulator.step(chunk([-1] * 8, [0] * 8), episodes(2, 3))
    needed = result.steps[0]
    assert 5 <= needed < 8 and result.terminated.tolist() == [True, False] and result.steps[1] == 8
    assert (result.source[0, needed:] == Source.HOLD).all() and not result.reward[0, needed:].any()
    clock = result.observation.state[:, 1]
    assert clock.tolist() == [0, 8], "the next episode has begun before the chunk's end, or the other was reset with it"
    assert result.observation.images["table_cam"][:, 0, 0, 0].tolist() == [0, 8], "the picture is of the episode before"
    assert 0 <= result.observation.state[0, 0] < 0.1


def test_a_reset_of_others_adds_nothing_to_a_history(make) -> None:
    """What an environment that runs on remembers is its last three control steps, whenever others begin anew."""
    simulator = make(id="Isaac-Point-History-v0")
    assert simulator.reset(episodes(0, 1)).state.tolist() == [[0, 0, 0], [0, 0, 0]]
    result = simulator.step(chunk([-1] * 8, [0] * 8), episodes(2, 3))
    assert result.terminated.tolist() == [True, False]
    assert result.observation.state.tolist() == [[0, 0, 0], [6, 7, 8]]
    result = simulator.step(chunk([0], [0]), episodes(4, 5))
    assert result.observation.state.tolist() == [[0, 0, 1], [7, 8, 9]]


def test_an_episode_that_ends_with_its_chunk_is_reset_once(make) -> None:
    simulator = make()
    simulator.reset(episodes(0, 1))
    simulator._environment.resets.clear()
    result = simulator.step(chunk([0] * LENGTH, [0] * LENGTH), episodes(2, 3))
    assert result.truncated.all() and simulator._environment.resets == [[0, 1]]
    assert result.observation.state[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("id", KINDS[:2])
@pytest.mark.parametrize("at", [0, 3])
def test_the_final_observation_is_the_one_before_the_step_that_ended_the_episode(make, id, at) -> None:
    """Also where that step is the first of a chunk. In the second kind, the privileged state is the whole state."""
    simulator = make(1, id=id)
    first = simulator.reset(episodes(0)).state[0, 0]
    simulator.step(chunk([0.25] * (LENGTH - 1 - at)), episodes(1))
    result = simulator.step(chunk([0.25] * (at + 2)), episodes(1))
    assert result.truncated.all() and result.steps.tolist() == [at + 1]
    final = result.final_observation
    assert final.state[0, 1] == LENGTH - 1 and final.images["table_cam"][0, 0, 0, 0] == LENGTH - 1
    assert id == KINDS[0] or np.array_equal(final.privileged, final.state)
    assert final.state[0, 0] == pytest.approx(first + 0.25 * STEP * (LENGTH - 1), rel=1e-5)
    assert result.observation.state[0, 1] == 0


def test_success_of_a_direct_environment_ends_the_episode_that_it_would_run_on_with(make) -> None:
    simulator = make(id=KINDS[2], reward="success")
    simulator.reset(episodes(0, 1))
    result = simulator.step(chunk([1] * 7, [0] * 7), episodes(2, 3))
    needed = result.steps[0]
    assert result.terminated.tolist() == [True, False] and result.success[0].sum() == 1
    assert result.reward[0].tolist() == [float(step == needed - 1) for step in range(7)]
    assert result.observation.state[:, 1].tolist() == [0, 7]
    simulator.reset(episodes(0, 1))
    result = simulator.step(chunk([1] * needed, [0] * needed), episodes(2, 3))
    assert result.terminated.tolist() == [True, False], "the same again, so that the chunk ends with the episode"
    assert result.observation.state[:, 1].tolist() == [0, needed]


def test_parked_environments_are_neither_seen_nor_moved(make) -> None:
    simulator = make()
    simulator.reset(episodes(0, None))
    before = simulator._environment.x[1].clone()
    result = simulator.step(chunk([0] * 3, [1] * 3), episodes(1, 1))
    assert result.steps.tolist() == [3, 0] and simulator._environment.x[1] == before


def test_a_truncation_bootstraps_from_the_observation_before_it(make) -> None:
    """The value of what the policy saw last of the episode that was cut off, not of the next one's beginning."""
    horizon, executed = 5, 3
    simulator = make(2, horizon=horizon)
    actor = RowwiseFakeActor(simulator.spec, executed)
    finals, step = [], simulator.step

    def watched(actions, following):
        result = step(actions, following)
        finals.append(result.final_observation)
        return result

    simulator.step = watched
    rollout = Rollout.allocate(actor, 2, 2)
    handle = InlineHandle(lambda: simulator)
    Collector([handle], simulator.spec, 2, EpisodeSampler(simulator.spec, 0), rollout, seed=0).collect(actor)
    assert rollout.truncated.tolist() == [[False, False], [True, True]]
    assert finals[1].state[:, 1].tolist() == [horizon - 1] * 2
    with torch.no_grad():
        assert torch.equal(rollout.final_value[1], actor.value(finals[1], None))


def test_the_specification(make) -> None:
    spec = make().spec
    assert spec.state_names == ("pose_0", "pose_1", "tool_quat_w", "tool_quat_x", "tool_quat_y", "tool_quat_z")
    assert spec.privileged_names == ("start_0",) and make(id=KINDS[2]).spec.privileged_names == ("critic_0",)
    assert spec.control_hz == pytest.approx(20) and spec.horizon == LENGTH
    assert spec.final_observation == "previous" and not spec.seeded
    assert (spec.action_low, spec.action_high) == ((-1.0,), (1.0,)) and spec.words == ("point",)
    assert IsaacLab.spec_of(IsaacLabConfig(**SETTINGS)) == spec
    flat = make(id=KINDS[1], state_terms=("tool_quat",)).spec
    assert flat.state_names == spec.state_names[2:] and flat.privileged_names == spec.state_names


@pytest.mark.parametrize("horizon", [1, 3, 7, 1000])
def test_the_horizon_is_what_was_asked_for(make, horizon) -> None:
    assert make(1, horizon=horizon).spec.horizon == horizon


def test_groups_are_refused_because_episodes_do_not_follow_their_seeds(make) -> None:
    with pytest.raises(ValueError, match="draws them whatever their seed"):
        EpisodeSampler(make().spec, 0, group_size=2)


def test_a_reset_is_seeded_by_its_first_episode(make) -> None:
    simulator = make(3)
    first = simulator.reset(episodes(None, 5, 6)).state
    assert np.array_equal(simulator.reset(episodes(None, 5, 9)).state, first)
    assert not np.array_equal(simulator.reset(episodes(None, 6, 9)).state, first)


def test_one_application_serves_a_process(make, launcher, capsys) -> None:
    make(), make()
    assert launcher.started == [{"headless": True, "enable_cameras": True, "device": "cpu"}]
    assert capsys.readouterr().err.count("experimental: not yet run on Isaac Sim") == 1


def test_what_is_missing_is_named(make, monkeypatch) -> None:
    monkeypatch.delenv("OMNI_KIT_ACCEPT_EULA")
    with pytest.raises(Unavailable, match="OMNI_KIT_ACCEPT_EULA=YES"):
        make()
    assert [line.status for line in IsaacLab.diagnose(IsaacLabConfig())][:4] == ["warn", "fail", "fail", "fail"]
    monkeypatch.delitem(sys.modules, "isaaclab")
    with pytest.raises(ModuleNotFoundError, match="isaaclab"):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "Isaac-Pont-v0"}, "unknown environment 'Isaac-Pont-v0'. Did you mean Isaac-Point-v0"),
        ({"cameras": ("front",)}, "no camera 'front'; it has table_cam"),
        ({"state_terms": ("joints",)}, r"the group 'policy' of Isaac-Point-v0 has pose, tool_quat"),
        ({"options": {"scene.spacing": 3}}, "has no 'scene.spacing'"),
        ({"action_limit": 0.0}, "sim.action_limit"),
        ({"success": None, "reward": "success"}, "sim.reward=success needs sim.success"),
    ],
)
def test_settings_that_cannot_be_are_named(make, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_a_success_that_nobody_reports_is_named(make) -> None:
    simulator = make(success="stacked")
    simulator.reset(episodes(0, 1))
    with pytest.raises(ValueError, match=r"termination terms \['time_out', 'success'\]"):
        simulator.step(chunk([0], [0]), episodes(2, 3))


def test_physics_that_leaves_the_numbers_names_the_environment(make) -> None:
    simulator = make()
    simulator.reset(episodes(0, 1))
    simulator._environment.x[1] = float("nan")
    with pytest.raises(NotFinite) as caught:
        simulator.step(chunk([0], [0]), episodes(2, 3))
    assert caught.value.row == 1


def test_the_recipe_installs_what_the_diagnosis_expects() -> None:
    steps = [requirement for step in read_recipe("isaaclab").steps for requirement in step]
    assert [step.replace("[all,extscache]", "") for step in steps] == [f"{a}=={b}" for a, b in simulator.PINS.items()]
