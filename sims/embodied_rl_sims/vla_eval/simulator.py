"""A simulator from a benchmark class of vla-eval, by its interface `vla_eval.benchmarks.base.Benchmark`."""

import sys
from collections.abc import Coroutine, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, Diagnosis, Episode, SimulatorSpec, Task, Unavailable
from embodied_rl_sims.common import diagnose_package, find_versions, resize_picture
from embodied_rl_sims.rows import Rows, StepOutcome, View
from embodied_rl_sims.vla_eval.settings import VlaEvalConfig

PINS = {"vla-eval": "0.8.0"}
"""Version that the adapter is tested with."""
STATES = ("states", "state")
"""Keys of an observation that hold the robot's state, in the order of preference."""

_NUMBER_STREAM = 1
T = TypeVar("T")


def diagnose(config: VlaEvalConfig) -> list[Diagnosis]:
    """Check the package against its pin."""
    return [diagnose_package(name, pinned, "embodied-rl sim install vla_eval") for name, pinned in PINS.items()]


def provenance(config: VlaEvalConfig) -> dict[str, str]:
    """Return package → version of the installed packages."""
    return find_versions([*PINS, "robosuite", "mujoco", "numpy"])


def load_benchmark(config: VlaEvalConfig) -> Any:
    """Import and build a benchmark.

    Raises:
        ModuleNotFoundError: vla-eval, or a package of the benchmark, is not installed.
        UserError: there is no such class, it draws elsewhere, or it does not take the options.
    """
    module, _, name = config.benchmark.partition(":")
    bases = import_module("vla_eval.benchmarks.base")
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # a package that the benchmark needs
        known = ", ".join(part.name for part in iter_modules(import_module("vla_eval.benchmarks").__path__))
        message = f"sim.benchmark={config.benchmark}: there is no module {error.name}. vla_eval.benchmarks has {known}."
        raise UserError(message, code="benchmark-class-invalid") from None
    if not (isinstance(found, type) and issubclass(found, bases.Benchmark)):
        message = f"sim.benchmark={config.benchmark}: {module} has no benchmark of that name."
        raise UserError(message, code="benchmark-class-invalid")
    if config.render not in found.render_backends:
        known = ", ".join(sorted(found.render_backends))
        raise UserError(f"sim.render={config.render}: {name} draws on {known} only.", code="rendering-unsupported")
    if config.reward == "environment" and not issubclass(found, bases.StepBenchmark):
        raise UserError(
            f"sim.reward=environment: {name} states no rewards. Give sim.reward=success.", code="key-unused"
        )
    found.configure_render(config.render)
    try:
        return found(**config.options)
    except TypeError as error:
        raise UserError(f"sim.options: {error}.", code="option-unknown") from error


def finish(call: Coroutine[Any, Any, T]) -> T:
    """Run a call of vla-eval's asynchronous interface, which must not wait for anything.

    Raises:
        UserError: it waits, as benchmarks of real robots do.
    """
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    except RuntimeError as error:
        if "no running event loop" not in str(error):
            raise
    call.close()
    message = "sim.benchmark: it waits between two calls, as real robots do; only simulators can be used."
    raise UserError(message, code="benchmark-waits")


def spec_of(config: VlaEvalConfig) -> SimulatorSpec:
    """Return the specification of a benchmark; begin an episode of its first task for this."""
    benchmark = load_benchmark(config)
    try:
        return make_spec(config, benchmark)
    finally:
        benchmark.cleanup()


def make_spec(config: VlaEvalConfig, benchmark: Any) -> SimulatorSpec:
    """Read a benchmark's specification from its first observation, its tasks, action format and metadata.

    Raises:
        UserError: it states no number of control steps, no dimensions of an action, or has no task.
        Unavailable: it asks on the terminal, as LIBERO does when it is first imported.
    """
    try:
        tasks, metadata = benchmark.get_tasks(), benchmark.get_metadata()
    except EOFError as error:
        module, _, name = config.benchmark.partition(":")
        call = f"{name}(**{dict(config.options)}).get_tasks()"
        raise Unavailable(
            f"sim.benchmark={config.benchmark} asks a question, and a worker has no terminal. Answer it once: "
            f'{sys.executable} -c "from {module} import {name}; {call}"'
        ) from error
    if not tasks:
        raise UserError(f"sim.benchmark={config.benchmark} has no tasks.", code="benchmark-class-invalid")
    horizon = config.horizon or metadata.get("max_steps")
    if not horizon:
        message = f"sim.benchmark={config.benchmark} states no max_steps: set sim.horizon."
        raise UserError(message, code="key-missing")
    parts = [part for part in benchmark.get_action_spec().items() if part[1].dims]
    names = tuple(f"{name}_{number}" for name, part in parts for number in range(part.dims))
    limits = [part.range or (-1.0, 1.0) for _, part in parts for _ in range(part.dims)]
    if not names:
        message = f"sim.benchmark={config.benchmark} states no dimensions of its actions."
        raise UserError(message, code="action-space-invalid")
    numbers = min(config.episodes, int(metadata.get("max_episodes_per_task") or config.episodes))
    finish(benchmark.start_episode({**tasks[0], "episode_idx": 0}))
    seen = finish(benchmark.get_observation())
    texts = [seen.get("task_description", ""), *(task_name(task, number) for number, task in enumerate(tasks))]
    return SimulatorSpec(
        cameras=tuple(Camera(name, *image.shape[:2]) for name, image in seen.get("images", {}).items()),
        state_names=tuple(f"state_{number}" for number in range(len(read_state(seen)))),
        action_names=names,
        action_low=tuple(float(low) for low, _ in limits),
        action_high=tuple(float(high) for _, high in limits),
        control_hz=config.control_hz,
        horizon=int(horizon),
        tasks=tuple(
            Task(task_name(task, number), str(task.get("suite", task_name(task, number))), numbers)
            for number, task in enumerate(tasks)
        ),
        words=tuple(sorted({word for text in texts for word in text.split()})),
        seeded=False,
    )


def task_name(task: Mapping[str, Any], number: int) -> str:
    """Return the name of a task, or its number."""
    return str(task.get("name", f"task {number}"))


def read_state(observation: Mapping[str, Any]) -> Array:
    """Return the state in an observation, float32 [S]; empty if it has none."""
    found = next((observation[key] for key in STATES if key in observation), ())
    return np.asarray(found, np.float32).reshape(-1)


class VlaEval(Rows):
    """n benchmarks of one class; implements `embodied_rl.interfaces.sim.Simulator`.

    An episode runs as in vla-eval's `SyncEpisodeRunner`: it ends when the benchmark says so, or after `max_steps`, and
    succeeded if the result then says so. `Episode.initial_state` is vla-eval's `episode_idx`, of which there are
    `sim.episodes`; without it, one is drawn from the episode's seed. What else a benchmark draws does not depend on the
    seed (`spec.seeded` is False).
    """

    Config = VlaEvalConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)

    def __init__(self, config: VlaEvalConfig, num_envs: int) -> None:
        # Benchmarks that nothing has run before: LIBERO's pictures depend on how often it was reset.
        spec = spec_of(config)
        super().__init__(spec, num_envs, lambda row: VlaEvalEnvironment(load_benchmark(config), config, spec))


class VlaEvalEnvironment:
    """One benchmark; implements `rows.Environment`."""

    def __init__(self, benchmark: Any, config: VlaEvalConfig, spec: SimulatorSpec) -> None:
        self._benchmark, self._config, self._spec = benchmark, config, spec
        self._tasks, self._clock = benchmark.get_tasks(), 0
        self.instruction = ""

    def begin(self, episode: Episode) -> None:
        task, numbers = dict(self._tasks[episode.task]), self._spec.tasks[episode.task].initial_states
        number = episode.initial_state
        if number is None:
            number = int(np.random.default_rng([episode.seed, _NUMBER_STREAM]).integers(numbers))
        if not 0 <= number < numbers:
            message = f"'{self._spec.tasks[episode.task].name}' has episodes 0 to {numbers - 1}, and no {number}."
            raise UserError(message, code="initial-state-unknown")
        self._clock = 0
        finish(self._benchmark.start_episode({**task, "episode_idx": number}))
        self._observation = finish(self._benchmark.get_observation())
        self.instruction = str(self._observation.get("task_description", ""))

    def step(self, action: Array) -> StepOutcome:
        self._clock += 1
        finish(self._benchmark.apply_action({"actions": action.copy()}))
        done = bool(finish(self._benchmark.is_done()))
        over = done or self._clock >= self._spec.horizon
        success = over and bool(finish(self._benchmark.get_result()).get("success", False))
        own = float(self._benchmark._last_result.reward) if self._config.reward == "environment" else float(success)
        return StepOutcome(own, success, done)

    def observe(self, pictures: bool) -> View:
        seen = finish(self._benchmark.get_observation())
        self.instruction = str(seen.get("task_description", ""))
        images = {camera.name: self._picture(seen["images"], camera) for camera in self._spec.cameras if pictures}
        return View(read_state(seen), images)

    def render(self, width: int, height: int) -> Array:
        seen = finish(self._benchmark.get_observation())
        first = next(iter(seen.get("images", {}).values()), np.zeros((height, width, 3), np.uint8))
        return resize_picture(np.asarray(first, np.uint8), height, width)

    def close(self) -> None:
        self._benchmark.cleanup()

    def _picture(self, images: Mapping[str, Any], camera: Camera) -> Array:
        image = np.asarray(images[camera.name])
        if image.shape != (camera.height, camera.width, 3) or image.dtype != np.uint8:
            raise UserError(
                f"camera '{camera.name}' gives {image.dtype} {list(image.shape)}, and gave uint8 "
                f"{[camera.height, camera.width, 3]} before.",
                code="image-size-mismatch",
            )
        return image
