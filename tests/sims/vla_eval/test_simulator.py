"""Benchmarks of vla-eval as simulators, beside vla-eval's own runner. The benchmark is a point on a line."""

import asyncio
from typing import Any, ClassVar

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode, Unavailable
from embodied_rl.testing.simulator_contract import Check
from embodied_rl_sims.vla_eval import VlaEval, VlaEvalConfig
from tests.support.environments import CONTRACT
from tests.support.refusals import refuses

pytest.importorskip("vla_eval", reason="the extra `test` installs vla-eval")
base = pytest.importorskip("vla_eval.benchmarks.base")
specs = pytest.importorskip("vla_eval.specs")

HERE = f"{__name__}:Point"
EPISODES, LIMIT = 50, 12
FORMS = {"position": specs.DimSpec("position", 1, "delta"), "gripper": specs.DimSpec("gripper", 1, "closed", (0, 1))}


class Point(base.StepBenchmark):
    """It starts where `episode_idx` says, and is at its goal beyond 1; below -1 the episode ends in failure."""

    render_backends: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    @classmethod
    def configure_render(cls, mode: str) -> dict[str, str]:
        return {}

    def __init__(self, speed: float = 0.2, steps: int | None = LIMIT) -> None:
        super().__init__()
        self.speed, self.steps, self.closed, self.resets = speed, steps, False, 0

    def get_tasks(self) -> list[Any]:
        return [{"name": "go right", "suite": "line"}, {"name": "go far right", "suite": "line"}]

    def reset(self, task: Any) -> Any:
        self.resets += 1
        self.x = np.random.default_rng(task["episode_idx"]).uniform(-0.9, 0.5) - 0.1 * task["name"].count("far")
        return self.x

    def step(self, action: Any) -> Any:
        assert action["actions"].shape == (2,)
        self.x += self.speed * float(action["actions"][0])
        return base.StepResult(obs=self.x, reward=self.x, done=abs(self.x) > 1, info={})

    def make_obs(self, raw_obs: Any, task: Any) -> Any:
        picture = np.full((4, 6, 3), np.clip(127 + 100 * raw_obs, 0, 255), np.uint8)
        return {"images": {"front": picture}, "states": np.array([raw_obs]), "task_description": task["name"]}

    def get_step_result(self, step_result: Any) -> Any:
        return {"success": bool(self.x > 1)}

    def get_metadata(self) -> dict[str, Any]:
        return {"max_steps": self.steps, "max_episodes_per_task": EPISODES}

    def get_action_spec(self) -> Any:
        return FORMS

    def cleanup(self) -> None:
        self.closed = True


class Unbounded(Point):
    """It numbers as many episodes as anybody asks for, as most of vla-eval's benchmarks."""

    def get_metadata(self) -> dict[str, Any]:
        return {"max_steps": self.steps, "max_episodes_per_task": None}


class Asking(Point):
    """It asks on the terminal, as LIBERO does."""

    def get_tasks(self) -> list[Any]:
        raise EOFError("EOF when reading a line")


class Sleeping(Point):
    """It waits, as a robot does."""

    async def apply_action(self, action: Any) -> None:
        await asyncio.sleep(0.01)


class Server:
    """What vla-eval's runner asks for actions."""

    async def start_episode(self, payload: Any) -> None: ...

    async def end_episode(self, result: Any) -> None: ...

    async def act(self, observation: Any) -> Any:
        return {"actions": act(observation["states"])}


def act(state: Array) -> Array:
    """Move right from the right half, else to a point on the left: some episodes succeed, some last to the limit."""
    x = np.float32(state[0])
    speed = np.sin(3 * x) + 0.4
    return np.array([np.clip(speed, -1, 1), 0.5], np.float32)


def build(num_envs: int, benchmark: str = HERE, **settings: Any) -> VlaEval:
    return VlaEval(VlaEvalConfig(benchmark, **settings), num_envs)


@pytest.mark.parametrize("num_envs", [1, 4])
def test_outcomes_are_those_of_vla_evals_runner(num_envs: int) -> None:
    runners = pytest.importorskip("vla_eval.runners.sync_runner")
    expected, own = [], Point()
    for number in range(EPISODES):
        task = {**own.get_tasks()[number % 2], "episode_idx": number}
        found = asyncio.run(runners.SyncEpisodeRunner().run_episode(own, task, Server(), max_steps=LIMIT))
        expected.append((found["metrics"]["success"], found["steps"]))
    waiting = [Episode(number, number % 2, 0, initial_state=number) for number in range(EPISODES)]
    simulator, outcomes = build(num_envs), dict[int, Any]()
    running: list[Episode | None] = [waiting.pop(0) for _ in range(num_envs)]
    observation, steps = simulator.reset(running), np.zeros(num_envs, int)
    while any(running):
        actions = np.stack([act(state) for state in observation.state])[:, None]
        following = [waiting[row] if row < len(waiting) else None for row in range(num_envs)]
        result = simulator.step(actions, following)
        observation, steps = result.observation, steps + result.steps
        for row in result.ended.tolist():
            episode = running[row]
            assert episode is not None
            outcomes[episode.index] = (bool(result.success[row].any()), int(steps[row]))
            running[row], steps[row] = following[row], 0
            if running[row] is not None:
                waiting.remove(running[row])
    assert [outcomes[number] for number in range(EPISODES)] == expected
    assert {success for success, _ in expected} == {True, False} and max(steps for _, steps in expected) == LIMIT


@pytest.mark.parametrize("name", CONTRACT[:4])
def test_it_keeps_the_contract(name: str) -> None:
    getattr(Check(lambda rows: build(rows, horizon=5)), name)()


def test_the_specification() -> None:
    spec = build(1).spec
    assert [(camera.name, camera.height, camera.width) for camera in spec.cameras] == [("front", 4, 6)]
    assert spec.action_names == ("position_0", "gripper_0")
    assert (spec.action_low, spec.action_high) == ((-1.0, 0.0), (1.0, 1.0))
    assert spec.horizon == LIMIT and spec.state_names == ("state_0",) and not spec.seeded
    assert [(task.name, task.family, task.initial_states) for task in spec.tasks] == [
        ("go right", "line", EPISODES), ("go far right", "line", EPISODES),
    ]  # fmt: skip
    assert spec.words == ("far", "go", "right")


def test_rewards_are_the_benchmarks_own_where_asked_for() -> None:
    for reward, expected in (("success", [0, 0]), ("environment", None)):
        simulator = build(1, reward=reward)
        start = simulator.reset([Episode(0, 0, 0, initial_state=1)]).state[0, 0]
        result = simulator.step(np.full((1, 2, 2), 0.5, np.float32), [None])
        found = [start + 0.1, start + 0.2] if expected is None else expected
        assert result.reward[0].tolist() == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "code", "parts"),
    [
        ({"benchmark": f"{__name__}:Line"}, "benchmark-class-invalid", ("no benchmark of that name",)),
        ({"benchmark": f"{__name__}:Server"}, "benchmark-class-invalid", ("Server",)),
        ({"benchmark": "vla_eval.benchmarks.libreo:X"}, "benchmark-class-invalid", ("benchmarks.libreo.", "libero")),
        ({"benchmark": "vla_eval.benchmarks.libero.own:X"}, "benchmark-class-invalid", ("libero.own.", "libero")),
        ({"benchmark": "vla_evil.benchmarks:X"}, "benchmark-class-invalid", ("vla_evil.",)),
        ({"benchmark": "Point"}, "benchmark-class-invalid", ("module:Class",)),
        ({"options": {"sped": 1}}, "option-unknown", ("sped",)),
        ({"options": {"steps": None}}, "key-missing", ("sim.horizon",)),
        ({"horizon": 0}, "value-out-of-range", ("sim.horizon=0",)),
        ({"episodes": 0}, "value-out-of-range", ("sim.episodes=0",)),
        ({"control_hz": 0.0}, "value-out-of-range", ("sim.control_hz",)),
        ({"benchmark": "vla_eval.benchmarks.base:Benchmark"}, "rendering-unsupported", ("gpu only",)),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], code: str, parts: tuple[str, ...]) -> None:
    with refuses(code, *parts):
        build(1, **settings)


def test_a_benchmark_that_waits_is_refused() -> None:
    simulator = build(1, f"{__name__}:Sleeping")
    simulator.reset([Episode(0, 0, 0)])
    with refuses("benchmark-waits", "real robots"):
        simulator.step(np.zeros((1, 1, 2), np.float32), [None])


def test_an_episode_that_is_not_there_is_refused() -> None:
    with refuses("initial-state-unknown", "episodes 0 to 49, and no 50"):
        build(1).reset([Episode(0, 0, 0, initial_state=EPISODES)])


def test_episodes_without_a_bound_are_numbered_too() -> None:
    simulator = build(1, f"{__name__}:Unbounded", episodes=3)
    assert [task.initial_states for task in simulator.spec.tasks] == [3, 3]
    starts = {float(simulator.reset([Episode(seed, 0, seed)]).state[0, 0]) for seed in range(30)}
    assert len(starts) == 3
    assert [task.initial_states for task in build(1, episodes=999).spec.tasks] == [EPISODES, EPISODES]


def test_a_question_on_the_terminal_is_told() -> None:
    with pytest.raises(Unavailable, match=r"Answer it once: .*import Asking; Asking\(\*\*\{'speed': 1\}\)\.get_tasks"):
        build(1, f"{__name__}:Asking", options={"speed": 1})


def test_the_first_episode_is_the_benchmarks_first() -> None:
    simulator = build(1)
    simulator.reset([Episode(0, 0, 0)])
    assert simulator.environment(0)._benchmark.resets == 1


def test_benchmarks_are_cleaned_up() -> None:
    simulator = build(2)
    simulator.reset([Episode(0, 0, 0), Episode(1, 0, 0)])
    made = [simulator.environment(row)._benchmark for row in range(2)]
    simulator.close()
    assert all(each.closed for each in made) and made[0] is not made[1]
