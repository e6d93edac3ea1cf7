"""The LIBERO simulator: suites of tasks, their official initial states, and the evaluation protocol."""

from collections.abc import Callable

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, Episode, SimulatorSpec, Task
from embodied_rl_sims.libero import diagnosis, loading, package, variations
from embodied_rl_sims.libero.environment import POSE, LiberoEnvironment
from embodied_rl_sims.libero.scene import LiberoScene
from embodied_rl_sims.libero.settings import LiberoConfig
from embodied_rl_sims.rows import Rows, ScenePool


def spec_of(config: LiberoConfig) -> SimulatorSpec:
    """Read LIBERO's specification from the package's files.

    An action is robosuite's OSC_POSE: [-1, 1] means ±5 cm and ±0.5 rad of the gripper, along the robot's axes, reached
    by the next control step; the last entry opens (−1) or closes (+1) the gripper. The state is that of openpi's
    examples/libero/main.py and of OpenVLA-OFT: the gripper's position, the hand's orientation as axis × angle, both
    fingers.
    """
    problems = package.list_problems(config.suite)
    slots = range(_slots(problems))
    return SimulatorSpec(
        cameras=tuple(Camera(name, config.image_size, config.image_size) for name in config.cameras),
        state_names=(
            "gripper_x", "gripper_y", "gripper_z", "turn_x", "turn_y", "turn_z", "finger_left", "finger_right",
        ),
        action_names=("move_x", "move_y", "move_z", "turn_x", "turn_y", "turn_z", "close_gripper"),
        action_low=(-1.0,) * 7,
        action_high=(1.0,) * 7,
        control_hz=float(config.control_freq),
        horizon=config.episode_steps,
        tasks=tuple(
            Task(problem.name, config.suite, len(package.read_initial_states(problem.states))) for problem in problems
        ),
        words=tuple(sorted(variations.list_words(problem.instruction for problem in problems))),
        instruction_length=max(len(problem.instruction.split()) for problem in problems) + variations.LONGER,
        splits=variations.AXES,
        privileged_names=(*(f"object{slot}_{axis}" for slot in slots for axis in POSE), "goal", "clock"),
        hold=(0.0,) * 6 + (-1.0,),
        kept_while_holding=("close_gripper",),
    )  # fmt: skip


class Libero(Rows):
    """n environments of one suite. Scenes are built when a task is first run, and reused by all environments.

    Args:
        config: settings of the simulator.
        num_envs: n.

    Raises:
        Unavailable: assets are missing.
        ModuleNotFoundError: LIBERO's package is not installed here.
    """

    Config = LiberoConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnosis.diagnose)
    provenance = staticmethod(diagnosis.provenance)

    def __init__(self, config: LiberoConfig, num_envs: int) -> None:
        place = package.find_assets_folder(config.assets)
        package.require_assets(config.suite, place)
        environments = loading.load_package(config.renderer, place)
        self.config, self._problems = config, package.list_problems(config.suite)
        self._scenes = ScenePool(lambda task: LiberoScene(environments, self._problems[task], config), config.keep)
        slots = _slots(self._problems)
        super().__init__(
            spec_of(config), num_envs, lambda row: LiberoEnvironment(self._scenes, self._problems, config, slots)
        )

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return a scripted operator for libero_object; each call of it gives one control step's actions.

        Raises:
            UserError: the suite is not libero_object, or a faulty operator is requested.
        """
        if self.config.suite != "libero_object":
            message = f"sim.suite={self.config.suite}: LIBERO's scripted operator is for libero_object."
            raise UserError(message, code="operator-missing")
        if faulty:
            raise UserError("LIBERO has no faulty operator: use operator=careful.", code="operator-missing")

        def act(row: int, _: Episode) -> Array:
            environment = self.environment(row)
            assert isinstance(environment, LiberoEnvironment)
            return environment.operate()

        return self.make_operator(act)

    def close(self) -> None:
        super().close()
        self._scenes.close()


def _slots(problems: tuple[package.Problem, ...]) -> int:
    return max(len(package.read_objects_of_interest(problem.bddl)) for problem in problems)
