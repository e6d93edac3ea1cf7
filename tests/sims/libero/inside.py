"""What tests run in LIBERO's own environment: `python inside.py <arrays.npz> '[[<function>, {<arguments>}], …]'`.

Each function gives named arrays, which go into the file with the function's number before their names.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims import light
from embodied_rl_sims.libero import Libero, LiberoConfig, loading, package
from embodied_rl_sims.libero.scene import LiberoScene

SIZE, RENDERER = 48, "osmesa"
SEED, STATE = 5, 3
CAMERAS = ("agentview", "robot0_eye_in_hand")


def settings(assets: str, **options: Any) -> LiberoConfig:
    return LiberoConfig(**{"assets": assets, "renderer": RENDERER, "image_size": SIZE, "rendering": "light", **options})


def actions(count: int) -> Array:
    """float32 [count, 7] anywhere within the limits; the gripper closes in the first half."""
    chosen = np.random.default_rng(1).uniform(-1, 1, (count, 7)).astype(np.float32)
    chosen[:, 6] = np.where(np.arange(count) < count // 2, 1, -1)
    return chosen


def own_loop(
    assets: str, suite: str, task: int, rendering: str, count: int, again: bool = False, finished: bool = False
) -> dict[str, Array]:
    """An episode by the package's own environment, reset as openpi and OpenVLA-OFT do it, and by ours.

    Args:
        again: ours runs it three times: "fresh", in a new simulator; "used", after another episode of the task;
            "shared", after one of another task, for which a second scene was built. Half-way through, the stove's
            knob is turned, so that its flame goes out.
        finished: start from an official state in which the first object of interest was put on the second.
    """
    config = settings(assets, suite=suite, rendering=rendering, terminate_on_success=False, mirror=False)
    environments = loading.load_package(RENDERER, Path(assets))
    problem = package.list_problems(suite)[task]
    chosen = package.read_initial_states(problem.states)[STATE]
    if finished:
        chosen = put_on(environments, problem, chosen)
    simulator = Libero(config, 1)
    given = {} if not finished else {STATE: chosen}
    episode = [Episode(0, task, SEED, initial_state=STATE)]
    turned = count // 2 if again else -1
    found = ours(simulator, episode, count, "fresh", given, turned)
    found.update(package_loop(environments, problem, chosen, rendering, count, turned))
    if not again:
        return {**found, **ends(assets, suite, episode, given), "kept": end(simulator, episode, given)}
    simulator.reset([Episode(1, task, 77, initial_state=9)])
    simulator.step(actions(12)[None, ::-1], episode)
    found.update(ours(simulator, episode, count, "used", given, turned))
    simulator.reset([Episode(2, task + 1, 78, initial_state=9)])
    simulator.step(actions(2)[None], episode)
    found.update(ours(simulator, episode, count, "shared", given, turned))
    simulator.close()
    return found


def ends(assets: str, suite: str, episode: list[Episode], given: dict[int, Array]) -> dict[str, Array]:
    """Whether and when a chunk of three control steps ends the episode, with `terminate_on_success`."""
    simulator = Libero(settings(assets, suite=suite, cameras=()), 1)
    return {"ends": end(simulator, episode, given), "goes_on": end(simulator, episode, {})}


def end(simulator: Libero, episode: list[Episode], given: dict[int, Array]) -> Array:
    with initial_states(given):
        simulator.reset(episode)
        result = simulator.step(actions(3)[None], episode)
    return np.array([result.terminated[0], result.steps[0]])


def package_loop(
    environments: ModuleType, problem: package.Problem, chosen: Array, rendering: str, count: int, turned: int
) -> dict[str, Array]:
    with lights(rendering):
        environment = environments.OffScreenRenderEnv(
            bddl_file_name=str(problem.bddl), camera_heights=SIZE, camera_widths=SIZE
        )
        environment.seed(SEED)
        environment.reset()
    environment.set_init_state(chosen)
    for _ in range(10):
        seen, *_ = environment.step([0, 0, 0, 0, 0, 0, -1])
    steps = [(seen, 0.0, False, environment.get_sim_state())]
    for number, action in enumerate(actions(count)):
        if number == turned:
            turn_knob(environment.env)
        seen, reward, done, _ = environment.step(action.tolist())
        steps.append((seen, reward, done, environment.get_sim_state()))
    return {
        "package_physics": np.array([physics for *_, physics in steps]),
        "package_fixtures": environment.sim.model.body_pos.copy(),
        "package_reward": np.array([reward for _, reward, *_ in steps]),
        "package_success": np.array([done for _, _, done, _ in steps]),
        "package_state": np.array([openpi_state(seen) for seen, *_ in steps]),
        **{f"package_{name}": np.array([seen[f"{name}_image"] for seen, *_ in steps]) for name in CAMERAS},
    }


def openpi_state(seen: dict[str, Array]) -> Array:
    """The state as openpi's examples/libero/main.py has it, from the formula of a rotation's axis and angle."""
    x, y, z, w = seen["robot0_eef_quat"]
    length = np.sqrt(1 - w**2)
    turned = np.array([x, y, z]) * 2 * np.arccos(w) / length
    return np.concatenate([seen["robot0_eef_pos"], turned, seen["robot0_gripper_qpos"]])


def turn_knob(domain: Any) -> None:
    """Turn the stove off by hand."""
    address = domain.sim.model.get_joint_qpos_addr(domain.get_object("flat_stove_1").joints[0])
    domain.sim.data.qpos[address] = 0.0


def ours(
    simulator: Libero, episode: list[Episode], count: int, name: str, given: dict[int, Array], turned: int
) -> dict[str, Array]:
    """The same episode by our simulator, one control step a chunk; `given` replaces numbered initial states."""
    with initial_states(given):
        observation = simulator.reset(episode)
    steps = [(observation, 0.0, False, physics_of(simulator))]
    for number, action in enumerate(actions(count)):
        if number == turned:
            turn_knob(domain_of(simulator))
        result = simulator.step(action[None, None], episode)
        steps.append((result.observation, result.reward[0, 0], result.success[0, 0], physics_of(simulator)))
    return {
        f"{name}_physics": np.array([physics for *_, physics in steps]),
        f"{name}_fixtures": domain_of(simulator).sim.model._model.body_pos.copy(),
        f"{name}_reward": np.array([reward for _, reward, *_ in steps]),
        f"{name}_success": np.array([success for _, _, success, _ in steps]),
        f"{name}_state": np.array([seen.state[0] for seen, *_ in steps]),
        f"{name}_privileged": np.array([seen.privileged[0] for seen, *_ in steps if seen.privileged is not None]),
        **{f"{name}_{camera}": np.array([seen.images[camera][0] for seen, *_ in steps]) for camera in CAMERAS},
    }


def physics_of(simulator: Libero) -> Array:
    return domain_of(simulator).sim.get_state().flatten()


def domain_of(simulator: Libero) -> Any:
    environment: Any = simulator.environment(0)
    return environment._scene._domain


class initial_states:  # noqa: N801  read as a verb's object
    """Within it, some numbered initial states are others."""

    def __init__(self, given: dict[int, Array]) -> None:
        self._given = given

    def __enter__(self) -> None:
        self._read = read = package.read_initial_states

        def changed(path: Path) -> Array:
            states = read(path).copy()
            for number, state in self._given.items():
                states[number] = state
            return states

        package.read_initial_states = changed

    def __exit__(self, *_: object) -> None:
        package.read_initial_states = self._read


class lights:  # noqa: N801
    """Within it, the package's own renderer is as simple as ours, where `rendering` is light."""

    def __init__(self, rendering: str) -> None:
        import robosuite.utils.binding_utils as binding

        self._light, self._binding = rendering == "light", binding

    def __enter__(self) -> None:
        self._made = made = self._binding.MjRenderContextOffscreen.__init__
        if self._light:

            def make(context: Any, sim: Any, *args: Any, **named: Any) -> None:
                model = sim.model._model
                model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
                model.light_castshadow[:] = 0
                model.mat_reflectance[:] = 0
                light.coarsen_meshes(model)
                made(context, sim, *args, **named)

            self._binding.MjRenderContextOffscreen.__init__ = make

    def __exit__(self, *_: object) -> None:
        self._binding.MjRenderContextOffscreen.__init__ = self._made


def put_on(environments: ModuleType, problem: package.Problem, state: Array) -> Array:
    """A state in which the first object of interest hangs just above the second."""
    scene = LiberoScene(environments, problem, LiberoConfig(cameras=()))
    domain, (moved, below) = scene._domain, package.read_objects_of_interest(problem.bddl)
    places = [domain.sim.model.get_joint_qpos_addr(domain.get_object(name).joints[-1])[0] for name in (moved, below)]
    changed = state.copy()
    changed[1 + places[0] : 4 + places[0]] = state[1 + places[1] : 4 + places[1]]
    changed[3 + places[0]] += 0.02
    scene.close()
    return changed


def model_after_episodes(assets: str) -> dict[str, Array]:
    """Every array of a scene's model right after it was built and begun, and begun again after other episodes."""
    simulator = Libero(settings(assets, suite="libero_goal", cameras=(), terminate_on_success=False), 1)
    task = [problem.name for problem in package.list_problems("libero_goal")].index("turn_on_the_stove")
    episode = [Episode(0, task, SEED, initial_state=STATE)]
    simulator.reset(episode)
    found = model_arrays(simulator, "fresh")
    domain = domain_of(simulator)
    simulator.reset([Episode(1, task, 99, initial_state=1)])
    found["elsewhere_body_pos"] = domain.sim.model._model.body_pos.copy()
    address = domain.sim.model.get_joint_qpos_addr(domain.get_object("flat_stove_1").joints[0])
    domain.sim.data.qpos[address] = 1.5  # its knob: the flame is a mark that becomes visible
    simulator.step(actions(4)[None], episode)
    found["elsewhere_site_rgba"] = domain.sim.model._model.site_rgba.copy()
    simulator.reset(episode)
    return {**found, **model_arrays(simulator, "used")}


def model_arrays(simulator: Libero, name: str) -> dict[str, Array]:
    model = domain_of(simulator).sim.model._model
    small = [each for each in array_names(model) if getattr(model, each).size < 100_000]
    return {f"{name}_{each}": getattr(model, each).copy() for each in small}


def array_names(model: Any) -> list[str]:
    return [each for each in dir(model) if isinstance(getattr(model, each), np.ndarray) and not each.startswith("_")]


def lighter(assets: str) -> dict[str, Array]:
    """The same control steps with official rendering, with light, and with light that keeps all triangles ("plain")."""
    coarsen, found, models = light.coarsen_meshes, {}, {}
    for name, rendering, cameras in (
        ("official", "official", CAMERAS),
        ("light", "light", CAMERAS),
        ("plain", "light", CAMERAS),
    ):
        light.coarsen_meshes = (lambda *_: None) if name == "plain" else coarsen
        options = {"suite": "libero_spatial", "rendering": rendering, "cameras": cameras, "image_size": 64}
        simulator = Libero(settings(assets, **options), 1)
        episode = [Episode(0, 0, SEED, initial_state=STATE)]
        seen, physics = [simulator.reset(episode)], [physics_of(simulator)]
        seen.append(simulator.step(actions(8)[None], episode).observation)
        found[f"{name}_physics"] = np.array([*physics, physics_of(simulator)])
        found.update({f"{name}_{camera}": np.array([each.images[camera][0] for each in seen]) for camera in cameras})
        models[name] = domain_of(simulator).sim.model._model
    light.coarsen_meshes = coarsen
    one, other = models["official"], models["light"]
    collides = (one.geom_contype | one.geom_conaffinity) != 0
    return {
        **found,
        "solid": np.isin(np.arange(one.nmesh), one.geom_dataid[collides & (one.geom_dataid >= 0)]),
        "official_faces": one.mesh_facenum,
        "light_faces": other.mesh_facenum,
        "differing": np.array([name for name in array_names(one) if not same(one, other, name)]),
    }


def same(one: Any, other: Any, name: str) -> bool:
    a, b = getattr(one, name), getattr(other, name)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def chunks(assets: str) -> dict[str, Array]:
    """A chunk of six control steps, and six chunks of one; and how often a picture was drawn."""
    simulator = Libero(settings(assets, suite="libero_object"), 1)
    episode = [Episode(0, 1, SEED, initial_state=STATE)]
    global_state = np.random.get_state()[1].copy()
    simulator.reset(episode)
    drawn, draw = [], LiberoScene.draw
    LiberoScene.draw = lambda self, camera, *size: drawn.append(camera) or draw(self, camera, *size)
    at_once = simulator.step(actions(6)[None], episode)
    LiberoScene.draw = draw
    interest = package.read_objects_of_interest(package.list_problems("libero_object")[1].bddl)
    data, bodies = domain_of(simulator).sim.data, domain_of(simulator).obj_body_id
    places = np.array([data.body_xpos[bodies[name]] for name in interest])
    gripper = data.get_site_xpos("gripper0_grip_site").copy()
    simulator.reset(episode)
    rewards = [simulator.step(action[None, None], episode) for action in actions(6)]
    found = {
        "drawn": np.array(drawn),
        "places": places,
        "gripper": gripper,
        "reward": at_once.reward[0],
        "rewards": np.array([result.reward[0, 0] for result in rewards]),
        "generator": np.array_equal(np.random.get_state()[1], global_state),
    }
    for name, observation in (("at_once", at_once.observation), ("singly", rewards[-1].observation)):
        found.update({f"{name}_{camera}": observation.images[camera][0] for camera in CAMERAS})
        found[f"{name}_state"], found[f"{name}_privileged"] = observation.state[0], observation.privileged[0]
    simulator.close()
    return found


def operated(assets: str, task: int) -> dict[str, Array]:
    """An episode by our operator, and the same actions in the package's own loop."""
    simulator = Libero(settings(assets, suite="libero_object", cameras=()), 1)
    images = simulator.reset([Episode(0, task, SEED, initial_state=STATE)]).images
    video = simulator.render(0, 16, 12)
    act, taken, success = simulator.expert(), [], []
    while simulator.episode(0) is not None:
        taken.append(act()[0])
        success.append(simulator.step(taken[-1][None, None], [None]).success[0, 0])
    environments = loading.load_package(RENDERER, Path(assets))
    problem = package.list_problems("libero_object")[task]
    environment = environments.env_wrapper.ControlEnv(
        str(problem.bddl), use_camera_obs=False, has_offscreen_renderer=False
    )
    environment.seed(SEED)
    environment.reset()
    environment.set_init_state(package.read_initial_states(problem.states)[STATE])
    for _ in range(10):
        environment.step([0, 0, 0, 0, 0, 0, -1])
    theirs = [environment.step(action.astype(float))[2] for action in taken]
    return {"ours": np.array(success), "theirs": np.array(theirs), "images": np.array(list(images)), "video": video}


def starts(assets: str) -> dict[str, Array]:
    """Where episodes start: by number, by seed, and with the picture turned as the config says."""
    options = {"suite": "libero_object", "settle": 0, "image_size": 32}
    plain = Libero(settings(assets, mirror=False, **options), 1)
    official = package.read_initial_states(package.list_problems("libero_object")[0].states)
    found = {"official": official}
    for number in (0, 7, len(official) - 1):
        plain.reset([Episode(0, 0, 1, initial_state=number)])
        found[f"number{number}"] = physics_of(plain)
    plain.reset([Episode(0, 0, 2**40)])
    found["seed"] = physics_of(plain)
    found["plain"] = plain.reset([Episode(0, 0, 1, initial_state=0)]).images["agentview"][0]
    found["basket_side"] = side_of(domain_of(plain), "basket_1", "agentview")
    found["video"] = plain.render(0, 40, 24)
    mirrored = Libero(settings(assets, **options), 1)
    found["mirrored"] = mirrored.reset([Episode(0, 0, 1, initial_state=0)]).images["agentview"][0]
    try:
        Libero(settings(assets, cameras=("overhead",), **options), 1).reset([Episode(0, 0, 1)])
    except ValueError as error:
        found["refusal"] = np.array(str(error))
    return found


def side_of(domain: Any, name: str, camera: str) -> Array:
    """How far right of the middle of a camera's view an object is, by the camera's own axes."""
    sim, number = domain.sim, domain.sim.model.camera_name2id(camera)
    offset = sim.data.body_xpos[domain.obj_body_id[name]] - sim.data.cam_xpos[number]
    return offset @ sim.data.cam_xmat[number].reshape(3, 3)[:, 0]


def benchmark(assets: str) -> dict[str, Array]:
    """The package's own order of tasks and their words; its module wants torch, for files that are not read here."""
    loading.load_package(RENDERER, Path(assets))
    os.environ["LIBERO_CONFIG_PATH"] = loading._write_config()
    sys.modules.setdefault("torch", SimpleNamespace())  # type: ignore[arg-type]
    from libero.libero import benchmark

    found: dict[str, Array] = {}
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"):
        tasks = [benchmark.get_benchmark(suite)().get_task(i) for i in range(90 if suite == "libero_90" else 10)]
        problems = package.list_problems(suite)
        found[f"{suite}_theirs"] = np.array([(task.name, task.language, task.bddl_file) for task in tasks])
        found[f"{suite}_ours"] = np.array([(each.name, each.instruction, each.bddl.name) for each in problems])
    return found


def configured(home: str, assets: str) -> dict[str, Array]:
    """What loading the package leaves behind, with `home` as the user's folder."""
    os.environ["HOME"] = home
    os.environ.pop("LIBERO_CONFIG_PATH", None)
    loading.load_package(RENDERER, Path(assets))
    left = sorted(path.relative_to(home).as_posix() for path in Path(home).rglob("*"))
    return {"left": np.array(left), "variable": np.array("LIBERO_CONFIG_PATH" in os.environ)}


def varied(assets: str, suite: str, seeds: list[int]) -> dict[str, Array]:
    """First pictures of a task along each axis, drawn twice; and states and pictures of plain episodes between them."""
    from embodied_rl_sims.libero.variations import AXES

    simulator = Libero(settings(assets, suite=suite, cameras=CAMERAS[:1]), 1)

    def begin(seed: int, split: str) -> tuple[Array, Array]:
        seen = simulator.reset([Episode(0, 0, seed, initial_state=STATE, split=split)])
        return seen.images[CAMERAS[0]][0], physics(simulator)

    found = {}
    found["plain"], found["physics"] = begin(1, "train")
    found["places"] = places(simulator)
    for split in AXES:
        drawn = [begin(seed, split) for seed in seeds]
        found[f"{split}_pictures"] = np.array([picture for picture, _ in drawn])
        found[f"{split}_again"] = np.array([begin(seed, split)[0] for seed in seeds])
        found[f"{split}_physics_varied"] = np.array([begin(1, split)[1], *(state for _, state in drawn[:1])])
        found[f"{split}_plain"], found[f"{split}_physics"] = begin(1, "train")
    shifted = [(begin(seed, "layout"), places(simulator))[1] for seed in seeds]
    found["places_varied"] = np.array(shifted)
    operator, solved = simulator.expert(), False
    while not solved:
        result = simulator.step(operator()[:, None], [None])
        solved = bool(result.success.any())
        if len(result.ended):
            break
    return {**found, "solved": np.array(solved)}


def physics(simulator: Libero) -> Array:
    """The scene's time, positions and velocities."""
    return simulator.environment(0)._scene._domain.sim.get_state().flatten()


def places(simulator: Libero) -> Array:
    """Where the objects that lie free are, [objects, 3]."""
    scene = simulator.environment(0)._scene
    return np.array([physics(simulator)[place : place + 3] for place in scene._free_objects()])


if __name__ == "__main__":
    place, calls = sys.argv[1:]
    given = [globals()[function](**arguments) for function, arguments in json.loads(calls)]
    np.savez(
        place, **{f"{number}/{name}": array for number, found in enumerate(given) for name, array in found.items()}
    )
