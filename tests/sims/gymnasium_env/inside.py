"""What tests run in the simulator's own interpreter: the package's own loop, and the adapter's, side by side.

python inside.py FUNCTION RESULT ARGUMENTS      (arguments as JSON; the result is pickled)
"""

import json
import pickle
import sys
from pathlib import Path

import gymnasium
import numpy as np

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.gymnasium_env import Gymnasium, GymnasiumConfig, fetch

STEPS = 50


class Custom(gymnasium.Env):
    """It draws in a size of its own, and can be made unlike what policies need."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    PICTURE = np.arange(30 * 40 * 3, dtype=np.uint8).reshape(30, 40, 3)

    def __init__(self, render_mode=None, limit=1.0, stops=1000, space="box"):
        self.render_mode, self.stops = render_mode, stops
        self.observation_space = gymnasium.spaces.Dict(
            a=gymnasium.spaces.Box(-1, 1, (2,)), b=gymnasium.spaces.Box(-1, 1, (2, 2))
        )
        if space == "picture":
            self.observation_space = gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)
        self.action_space = gymnasium.spaces.Box(-limit, limit, (2, 1), np.float64)
        if space == "discrete":
            self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.clock += 1
        return self._show(), float(action.sum()), False, self.clock == self.stops, {"won": self.clock >= 3}

    def render(self):
        return self.PICTURE.copy()

    def _show(self):
        return {"a": np.float32([self.clock, 1]), "b": np.float32([[2, 3], [4, 5]])}


class Blind(Custom):
    metadata = {"render_modes": ["human"], "render_fps": 20}  # noqa: RUF012


gymnasium.register("Blind-v0", Blind, max_episode_steps=7)
gymnasium.register("Custom-v0", Custom, max_episode_steps=7)
gymnasium.register("Endless-v0", Custom)


def config(**settings):
    return GymnasiumConfig(**{"package": None, "image_size": 16, **settings})


def package_loop(id, seeds):
    """Seed → rewards, successes and observations of an operated episode in `gymnasium.make`'s own environment."""
    import gymnasium_robotics  # noqa: F401  registers

    found = {}
    for seed in seeds:
        environment = gymnasium.make(id)
        observation, _ = environment.reset(seed=seed)
        run = found[seed] = {"reward": [], "success": [], "state": [flat(observation)]}
        for _ in range(STEPS):
            observation, reward, _, _, info = environment.step(fetch.make_operator(id)(observation))
            run["reward"].append(np.float32(reward))
            run["success"].append(bool(info["is_success"]))
            run["state"].append(flat(observation))
            if run["success"][-1]:
                break
        environment.close()
    return found


def package_pictures(id, seed, steps):
    """What environments of the package draw after so many steps, each of them for the first time."""
    import gymnasium_robotics  # noqa: F401  registers

    pictures = []
    for stop in steps:
        environment = gymnasium.make(id, render_mode="rgb_array", width=16, height=16)
        observation, _ = environment.reset(seed=seed)
        for _ in range(stop):
            observation = environment.step(fetch.make_operator(id)(observation))[0]
        pictures.append(environment.render())
        environment.close()
    return pictures


def adapter_loop(seeds, operated=True, steps=STEPS, in_turn=False, **settings):
    """The same of the adapter, which draws after every step; `in_turn`: one environment runs all episodes."""
    found, count = {}, 1 if in_turn else len(seeds)
    simulator = Gymnasium(GymnasiumConfig(**{"image_size": 16, **settings}), count)
    for first in range(0, len(seeds), count):
        some = seeds[first : first + count]
        found |= batch(simulator, some, operated, steps)
    simulator.close()
    return found


def each(function, ids, **arguments):
    """What a function gives for each id, in one process."""
    return {id: globals()[function](id=id, **arguments) for id in ids}


def batch(simulator, seeds, operated, steps):
    found = {seed: {"reward": [], "success": [], "state": [], "pictures": []} for seed in seeds}
    observation = simulator.reset([Episode(seed, 0, seed) for seed in seeds])
    running = dict(enumerate(seeds))
    operate = simulator.expert() if operated else None
    for _ in range(steps):
        show(found, running, observation)
        high = np.broadcast_to(simulator.spec.action_high, (len(seeds), simulator.spec.action_dim)).astype(np.float32)
        actions = operate() if operate else high
        result = simulator.step(actions[:, None], [None] * len(seeds))
        for row, seed in running.items():
            found[seed]["reward"].append(result.reward[row, 0])
            found[seed]["success"].append(bool(result.success[row, 0]))
        if len(result.ended):
            show(found, {place: running.pop(row) for place, row in enumerate(result.ended)}, result.final_observation)
        observation = result.observation
    show(found, running, observation)
    return found


def show(found, running, observation):
    for row, seed in running.items():
        found[seed]["state"].append(observation.privileged[row])
        for image in observation.images.values():
            found[seed]["pictures"].append(image[row])


def looked_at_twice(id):
    """A picture and the film's frame of the same moment, of the same size."""
    simulator = Gymnasium(GymnasiumConfig(id=id, image_size=64), 1)
    observation = simulator.reset([Episode(0, 0, 0)])
    return observation.images["front"][0], simulator.render(0, 64, 64)


def flat(observation):
    parts = [observation[key] for key in sorted(observation)] if isinstance(observation, dict) else [observation]
    return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)


def spec(**settings):
    return Gymnasium.spec_of(config(**settings))


def custom(chunk, actions, **settings):
    """One chunk of an environment that is `Custom`, and what it shows before."""
    simulator = Gymnasium(config(**settings), 1)
    observation = simulator.reset([Episode(0, 0, 0)])
    return observation, simulator.step(np.full((1, chunk, 2), actions, np.float32), [Episode(1, 0, 1)])


def seeds_given(episodes):
    """What `reset` is given for (seed, initial state) of an episode."""
    given, simulator = [], Gymnasium(config(id="Custom-v0", success=None), 1)
    simulator.reset([None])
    environment = simulator.environment(0)._environment.unwrapped
    environment.reset = lambda *, seed, options=None: given.append(seed) or (environment._show(), {})
    environment.clock = 0
    for number, (seed, initial_state) in enumerate(episodes):
        simulator.reset([Episode(number, 0, seed, initial_state)])
    return given


def diagnosis(**settings):
    asked = GymnasiumConfig(**settings)
    return Gymnasium.diagnose(asked), Gymnasium.provenance(asked)


def failures(calls):
    """What each call, (function, its arguments), raises: its type's name, and its words."""
    return [failure(globals()[name], arguments) for name, arguments in calls]


def failure(function, arguments):
    try:
        function(**arguments)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        return type(error).__name__, str(error)
    return "nothing", "was raised"


if __name__ == "__main__":
    _, name, path, arguments = sys.argv
    Path(path).write_bytes(pickle.dumps(globals()[name](**json.loads(arguments))))
