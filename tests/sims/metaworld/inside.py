"""What tests run in MetaWorld's own environment: `python inside.py <arrays.npz> '[[<function>, {<arguments>}], …]'`.

Each function returns named arrays, which go into the file with the function's number before their names.
"""

import json
import sys
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.metaworld import MetaWorld, MetaWorldConfig
from embodied_rl_sims.metaworld.scene import MetaWorldScene, Renderers, load_package
from embodied_rl_sims.metaworld.tasks import SUITES

RENDERER = "osmesa"


def build(**options: Any) -> MetaWorld:
    return MetaWorld(MetaWorldConfig(**{"renderer": RENDERER, "terminate_on_success": False, **options}), 1)


def expert_episodes(tasks: list[str], seed: int, steps: int, numbered: bool) -> dict[str, Array]:
    """Each task's expert in the package's own loop and in ours: observations, rewards, success, actions.

    Ours runs the episode in a scene that has been used before, for an episode with another goal.

    Args:
        tasks: names of tasks.
        seed: of the drawn goal, or the number of the numbered one.
        steps: control steps at most; an episode also ends 5 steps after its first success.
        numbered: whether the goal is numbered.
    """
    simulator = build(tasks=tasks, observations="state", keep=0)
    expert, found = simulator.expert(), {}
    for task, name in enumerate(tasks):
        theirs = package_episode(name, seed, steps, numbered)
        simulator.reset([Episode(0, task, seed + 1)])
        for _ in range(3):
            simulator.step(expert()[:, None], [Episode(0, task, seed + 1)])
        episode = [Episode(1, task, 99, initial_state=seed) if numbered else Episode(1, task, seed)]
        states, rest = [simulator.reset(episode).state[0]], []
        for _ in range(len(theirs["reward"])):
            result = simulator.step(expert()[:, None], episode)
            states.append(result.observation.state[0])
            rest.append((result.reward[0, 0], result.success[0, 0], *result.executed[0, 0]))
        found[f"{name}/ours"] = np.concatenate([np.ravel(states), np.ravel(rest)])
        columns = [theirs["reward"].astype(np.float32), theirs["success"], theirs["actions"].astype(np.float32)]
        found[f"{name}/package"] = np.concatenate(
            [np.ravel(theirs["states"].astype(np.float32)), np.ravel(np.column_stack(columns))]
        )
        found[f"{name}/success"] = theirs["success"].any()
    return found


def package_episode(name: str, seed: int, steps: int, numbered: bool) -> dict[str, Array]:
    """An episode of a new environment by the package's documented calls."""
    import metaworld
    from metaworld.policies import ENV_POLICY_MAP

    kind = f"{name}-v3"
    if numbered:
        benchmark = metaworld.MT1(kind, seed=42)
        environment = benchmark.train_classes[kind]()
        environment.set_task(benchmark.train_tasks[seed])
    else:
        environment = metaworld.env_dict.ALL_V3_ENVIRONMENTS[kind]()
        environment._set_task_called = environment.seeded_rand_vec = True
        environment._freeze_rand_vec = environment._partially_observable = False
        del environment.sawyer_observation_space
        environment.seed(seed)
    seen, _ = environment.reset()
    policy, states, rest, left = ENV_POLICY_MAP[kind](), [seen], [], steps
    while left > 0:
        action = np.clip(policy.get_action(seen.copy()), -1, 1)  # some policies write into what they are given
        seen, reward, _, _, info = environment.step(action)
        states.append(seen)
        rest.append((reward, info["success"], *action))
        left = min(left - 1, 5) if info["success"] else left - 1
    environment.close()
    reward, success, *_ = np.transpose(rest)
    return {"states": np.array(states), "reward": reward, "success": success, "actions": np.array(rest)[:, 2:]}


def rewards(task: str, seed: int, steps: int) -> dict[str, Array]:
    """Rewards and success of two episodes of the expert, one after the other, by each kind of reward."""
    found = {}
    for reward in ("environment", "success", "progress"):
        simulator = build(tasks=[task], observations="state", reward=reward)
        expert = simulator.expert()
        for number in range(2):
            episode, rows = [Episode(number, 0, seed + number)], []
            simulator.reset(episode)
            for _ in range(steps):
                result = simulator.step(expert()[:, None], episode)
                rows.append((result.reward[0, 0], result.success[0, 0]))
            found[f"{reward}/{number}"] = np.array(rows)
    return found


def suites() -> dict[str, Array]:
    """The package's own lists of tasks."""
    found = {name.lower(): getattr(load_package(RENDERER).env_dict, f"{name}_V3") for name in ("MT10", "MT25", "MT50")}
    for name in ("ML10", "ML25", "ML45"):
        for part, tasks in getattr(load_package(RENDERER).env_dict, f"{name}_V3").items():
            found[f"{name.lower()}_{part}"] = tasks
    return {name: np.array([task.removesuffix("-v3") for task in tasks]) for name, tasks in found.items()}


def suite_goals(states: list[int]) -> dict[str, Array]:
    """First observations of numbered goals of ML10's tasks, by the package's class of the suite and by ours."""
    benchmark, found = load_package(RENDERER).ML10(seed=42), {}
    for split, goal in (("train", "hidden"), ("test", "hidden"), ("test", "visible")):
        suite = f"ml10_{split}"
        simulator, drawn = build(suite=suite, observations="state", goal=goal), getattr(benchmark, f"{split}_tasks")
        for number, name in list(enumerate(SUITES[suite]))[1::2]:
            environment = getattr(benchmark, f"{split}_classes")[f"{name}-v3"]()
            own = [each for each in drawn if each.env_name == f"{name}-v3"]
            for state in states:
                environment.set_task(own[state])
                found[f"{suite}/{name}/{state}/package"] = environment.reset()[0].astype(np.float32)
                seen = simulator.reset([Episode(0, number, 0, initial_state=state)])
                found[f"{suite}/{name}/{state}/{goal}"] = seen.state[0]
            environment.close()
    return found


def hidden_goal() -> dict[str, Array]:
    """The first observation of a numbered goal of push, with the goal visible, hidden, and by the package's ML1."""
    import metaworld

    found = {}
    for goal in ("visible", "hidden"):
        simulator = build(tasks=["push"], observations="state", goal=goal)
        found[goal] = simulator.reset([Episode(0, 0, 0, initial_state=3)]).state[0]
        found[f"{goal}_expert"] = simulator.expert()()[0]
        found[f"{goal}_seed"] = simulator.reset([Episode(0, 0, 5)]).state[0]
    benchmark = metaworld.ML1("push-v3", seed=42)
    environment = benchmark.train_classes["push-v3"]()
    environment.set_task(benchmark.train_tasks[3])
    return {**found, "package": environment.reset()[0].astype(np.float32)}


def pictures() -> dict[str, Array]:
    """Pictures of an episode's start, by the package and by ours, and of light rendering."""
    import metaworld

    found, size = {}, 64
    for camera in ("corner2", "corner3"):
        environment = metaworld.env_dict.ALL_V3_ENVIRONMENTS["drawer-open-v3"](
            render_mode="rgb_array", camera_name=camera, width=size, height=size
        )
        environment._set_task_called = environment.seeded_rand_vec = True
        environment._freeze_rand_vec = False
        environment.seed(5)
        environment.reset()
        found[f"package_{camera}"] = environment.render()
        environment.model.cam_pos[2] = [0.75, 0.075, 0.7]
        environment.step(np.ones(4, np.float32))
        found[f"moved_{camera}"] = environment.render()[::-1, ::-1]
        environment.close()
    for rendering, closer in (("official", False), ("official", True), ("light", True)):
        simulator = build(
            tasks=["drawer-open"], cameras=("corner2", "corner3"), closer=closer, rendering=rendering, image_size=size
        )
        episode = [Episode(0, 0, 5)]
        for camera, picture in simulator.reset(episode).images.items():
            found[f"{rendering}_{closer}_{camera}"] = picture[0]
        result = simulator.step(np.ones((1, 1, 4), np.float32), episode)
        for camera, picture in result.observation.images.items():
            found[f"{rendering}_{closer}_{camera}_later"] = picture[0]
    return found


def light_physics(tasks: list[str], steps: int) -> dict[str, Array]:
    """Positions of all joints after random control steps, with official and with light rendering."""
    found = {}
    for rendering in ("official", "light"):
        for name in tasks:
            scene = MetaWorldScene(name, MetaWorldConfig(renderer=RENDERER, rendering=rendering), Renderers(RENDERER))
            scene.begin(7, None)
            draws = np.random.default_rng(3)
            for _ in range(steps):
                scene.step(draws.uniform(-1, 1, 4).astype(np.float32))
            found[f"{name}_{rendering}"] = scene._environment.data.qpos.copy()
            found[f"{name}_{rendering}_faces"] = scene._environment.model.mesh_facenum.sum()
            scene.close()
    return found


def shared_renderers(tasks: list[str]) -> dict[str, Array]:
    """Pictures of a scene of each task by the renderer of another scene of it, and by its own."""
    found, config, shared = {}, MetaWorldConfig(renderer=RENDERER, rendering="light"), Renderers(RENDERER)
    for name in tasks:
        other, scene = (MetaWorldScene(name, config, each) for each in (shared, Renderers(RENDERER)))
        other.begin(3, None)
        other.draw("corner2", 64, 64)
        scene.begin(4, None)
        scene.step(np.ones(4, np.float32))
        found[f"{name}_own"] = scene.draw("corner2", 64, 64).copy()
        scene._renderers = shared
        found[f"{name}_shared"] = scene.draw("corner2", 64, 64).copy()
    return found


def settling() -> dict[str, Array]:
    """The state after sixteen steps of zeros by the package's class, and that in which an episode begins."""
    import metaworld

    environment = metaworld.env_dict.ALL_V3_ENVIRONMENTS["pick-place-v3"]()
    environment._set_task_called = environment.seeded_rand_vec = True
    environment._freeze_rand_vec = False
    environment.seed(1)
    environment.reset()
    for _ in range(16):
        seen, *_ = environment.step(np.zeros(4))
    simulator = build(tasks=["pick-place"], settle=16, horizon=2, cameras=())
    begun = simulator.reset([Episode(0, 0, 1)])
    result = simulator.step(np.zeros((1, 3, 4), np.float32), [None])
    return {
        "package": seen.astype(np.float32)[:4], "ours": begun.state[0], "clock": begun.privileged[0, -1],
        "truncated": result.truncated, "steps": result.steps,
    }  # fmt: skip


if __name__ == "__main__":
    place, calls = sys.argv[1:]
    given = [globals()[function](**arguments) for function, arguments in json.loads(calls)]
    np.savez(
        place, **{f"{number}/{name}": array for number, found in enumerate(given) for name, array in found.items()}
    )
