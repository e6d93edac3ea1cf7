"""Replay storages of one-step episodes with given actions and outcomes, and a small actor that learns from them."""

import numpy as np
import torch

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation, Source, StepResult
from embodied_rl.mathematics.flow.sampler import FlowSDE
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl_policies.pocket import Pocket
from tests.support.pointing import Pointing

SPEC = Pointing.spec_of(Pointing.Config())
NETWORK = Pocket.Config(width=16, layers=1, heads=2, horizon=2, keypoints=4, stem_channels=8)
GOOD, BAD = 0.5, -0.5


def make_actor(critic: str = "none") -> FlowActor:
    torch.manual_seed(0)
    embodiment = Embodiment.of_simulator(SPEC, 1, token_length=1)
    backbone = Pocket(NETWORK, 1, 1, ("front",), (16, 16), len(embodiment.vocabulary), 1)
    width = NETWORK.width
    head = make_critic(critic, privileged_dim=1, context_dim=width, feature_dim=width, hidden=(16,))
    return FlowActor(backbone, FlowSDE(4, 0.3), head, embodiment, privileged_names=SPEC.privileged_names)


def make_storage(
    actions: list[float], successes: list[bool], sources: list[Source] | None = None, instruction: str = "left"
) -> ReplayStorage:
    """A storage of one-step episodes."""
    count = len(actions)
    storage = ReplayStorage(ReplayFormat.of_simulator(SPEC, 1, 2 * count + 2, 1))
    for index in range(count):
        seen = observe(1, instruction)
        played = np.full((1, 1, 1), actions[index], np.float32)
        result = StepResult(
            reward=np.full((1, 1), successes[index], np.float32),
            success=np.array([[successes[index]]]),
            steps=np.ones(1, np.int64),
            executed=played,
            source=np.array([[sources[index] if sources else Source.POLICY]], np.uint8),
            terminated=np.ones(1, bool),
            truncated=np.zeros(1, bool),
            observation=seen,
        )
        storage.write_episode(0, Episode(index, 0, seed=index), seen, played, result)
    return storage


def observe(rows: int, instruction: str = "left") -> Observation:
    """What all of these episodes begin with."""
    picture, state = np.zeros((rows, 16, 16, 3), np.uint8), np.zeros((rows, 1), np.float32)
    return Observation({"front": picture}, state, (instruction,) * rows, np.zeros((rows, 1), np.float32))


def sample_actions(actor: FlowActor, rows: int = 1000) -> np.ndarray:
    """First actions of the deployed policy, one for each of `rows` starts."""
    return actor.infer(observe(rows), NoiseKeys(9, np.arange(rows), np.zeros(rows, np.int64)))[:, 0, 0]
