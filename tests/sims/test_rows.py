"""A simulator made of single environments keeps the contract, whatever the package."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Camera, Episode, NotFinite, SimulatorSpec, Source, Task
from embodied_rl.testing.contract import check_simulator
from embodied_rl_sims.rows import Rows, StepOutcome, View


def spec(horizon: int = 6, cameras: int = 1, privileged: tuple[str, ...] = ("goal",)) -> SimulatorSpec:
    return SimulatorSpec(
        cameras=tuple(Camera(f"eye{number}", 4, 5) for number in range(cameras)),
        state_names=("x",),
        action_names=("move",),
        action_low=(-1.0,),
        action_high=(1.0,),
        control_hz=10.0,
        horizon=horizon,
        tasks=(Task("right", "go"), Task("left", "go")),
        privileged_names=privileged,
    )


@dataclass
class Line:
    """A point on a line that has to get 1.5 away from where it starts; falls off beyond -1.5. Counts its pictures."""

    spec: SimulatorSpec
    nan: str = ""
    pictures: int = 0
    closed: bool = False
    instruction: str = ""

    def begin(self, episode: Episode) -> None:
        self.instruction = f"go {self.spec.tasks[episode.task].name}"
        self.sign = 1 if episode.task == 0 else -1
        self.x = self.start = np.random.default_rng(episode.seed).uniform(-0.1, 0.1)

    def step(self, action: Array) -> StepOutcome:
        assert action.shape == (1,) and abs(action[0]) <= 1
        self.x += float(action[0])
        done = self.sign * (self.x - self.start) >= 1.5
        fallen = self.sign * (self.x - self.start) <= -1.5
        return StepOutcome(np.nan if self.nan == "reward" else float(done), done, done or fallen)

    def observe(self, pictures: bool) -> View:
        shape = (4, 5, 3)
        shown = {c.name: np.full(shape, int(abs(self.x) * 50) % 255 + 1, np.uint8) for c in self.spec.cameras}
        self.pictures += pictures
        state = np.array([np.nan if self.nan == "state" else self.x], np.float32)
        return View(state, shown if pictures else {}, np.array([1.5 * self.sign + self.start], np.float32))

    def render(self, width: int, height: int) -> Array:
        return np.full((height, width, 3), 9, np.uint8)

    def close(self) -> None:
        self.closed = True


def rows(num_envs: int, given: SimulatorSpec | None = None, nan: str = "") -> Rows:
    given = given or spec()
    return Rows(given, num_envs, lambda row: Line(given, nan))


class Operated(Rows):
    """Lines with an operator, which goes where the task says."""

    def __init__(self, num_envs: int, given: SimulatorSpec) -> None:
        super().__init__(given, num_envs, lambda row: Line(given))

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        running = lambda row: self.episode(row) is not None  # noqa: E731
        lines = lambda: (self.environment(row) if running(row) else None for row in range(self.num_envs))  # noqa: E731
        return lambda: np.array([[line.sign if isinstance(line, Line) else 0] for line in lines()], np.float32)


def episodes(*tasks: int | None) -> list[Episode | None]:
    return [None if task is None else Episode(row, task, seed=row) for row, task in enumerate(tasks)]


def moves(*per_row: list[float]) -> Array:
    return np.array(per_row, np.float32)[:, :, None]


@pytest.mark.parametrize("cameras, privileged", [(1, ("goal",)), (2, ()), (0, ("goal",))])
def test_it_keeps_the_contract(cameras: int, privileged: tuple[str, ...]) -> None:
    check_simulator(
        lambda n: Operated(n, spec(8, cameras, privileged)),
        build_with_horizon=lambda n, horizon: Operated(n, spec(horizon, cameras, privileged)),
    )


def test_an_environment_holds_from_its_end_to_that_of_the_chunk() -> None:
    simulator = rows(3)
    simulator.reset(episodes(0, 1, None))
    result = simulator.step(moves([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]), [None, *episodes(None, 0)[1:], None])
    np.testing.assert_array_equal(result.steps, [2, 2, 0])
    np.testing.assert_array_equal(result.terminated, [True, True, False])
    np.testing.assert_array_equal(result.success, [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(result.reward, [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(result.source[:2, 2:], Source.HOLD)
    assert result.observation.instruction == ("", "go right", "")
    assert not result.observation.images["eye0"][0].any(), "a parked row is black"
    assert result.final_observation is not None
    np.testing.assert_allclose(
        result.final_observation.state[:, 0] - [simulator.environment(0).start, 0], [2, 2], atol=0.2
    )


def test_pictures_are_drawn_once_a_chunk_and_not_at_an_end_without_a_future() -> None:
    simulator = rows(2, spec(horizon=4))
    simulator.reset(episodes(0, 0))
    lines = [simulator.environment(row) for row in range(2)]
    assert [line.pictures for line in lines] == [1, 1]
    simulator.step(moves([0.1, 0.1], [0.1, 0.1]), [None, None])
    assert [line.pictures for line in lines] == [2, 2]
    result = simulator.step(moves([1, 1], [0.1, 0.1]), episodes(0, 0))  # one succeeds, one is out of time
    assert [line.pictures for line in lines] == [3, 4]
    final = result.final_observation
    assert final is not None and not final.images["eye0"][0].any() and final.images["eye0"][1].any()
    assert simulator.render_seconds > 0


def test_who_asks_gets_the_picture_of_an_end_without_a_future() -> None:
    """For its own episode alone, and of what the environment shows then."""
    simulator = rows(2, spec(horizon=4))
    asking, other = episodes(0, 0)
    simulator.reset([replace(asking, final_picture=True), other])
    simulator.step(moves([0.1, 0.1], [0.1, 0.1]), [None, None])
    result = simulator.step(moves([1, 1], [1, 1]), [None, None])
    assert result.terminated.all() and result.final_observation is not None
    shown, black = result.final_observation.images["eye0"]
    assert shown.any() and not black.any()


@pytest.mark.parametrize("what", ["reward", "state"])
def test_what_is_not_finite_names_its_row(what: str) -> None:
    given = spec()
    simulator = Rows(given, 3, lambda row: Line(given, what if row == 1 else ""))
    with pytest.raises(NotFinite, match=f"the {what}") as error:
        simulator.reset(episodes(0, 0, 0))
        simulator.step(moves([0], [0], [0]), [None] * 3)
    assert error.value.row == 1


def test_environments_are_made_when_they_are_needed_and_closed_with_the_rest() -> None:
    made: list[Line] = []
    given = spec()
    simulator = Rows(given, 3, lambda row: made.append(Line(given)) or made[-1])
    simulator.reset(episodes(None, 0, None))
    assert len(made) == 1
    assert not simulator.render(0, 6, 4).any() and simulator.render(1, 6, 4).shape == (4, 6, 3)
    simulator.close()
    assert made[0].closed
