"""A small robot, its observations, and actors on a small pocket network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Camera, Observation, SimulatorSpec, Task
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl_policies.pocket import Pocket

MODEL_DIM = 4
SMALL = Pocket.Config(width=32, layers=2, heads=4, horizon=4, keypoints=8, stem_channels=16)


@pytest.fixture
def simulator_spec() -> SimulatorSpec:
    """Three action dimensions, one camera for the policy and one for videos, four privileged entries."""
    return SimulatorSpec(
        cameras=(Camera("front", 32, 32), Camera("nice", 64, 64, "video")),
        state_names=("x", "y"),
        action_names=("dx", "dy", "gripper"),
        action_low=(-0.5, -2.0, 0.0),
        action_high=(0.5, 1.0, 0.1),
        control_hz=10,
        horizon=20,
        tasks=(Task("reach the red cube", "reach"), Task("push the blue cube", "push")),
        words=("reach", "push", "the", "red", "blue", "cube"),
        privileged_names=("cube_x", "cube_y", "clock", "mass"),
    )


@pytest.fixture
def embodiment(simulator_spec: SimulatorSpec) -> Embodiment:
    """Two of four actions executed, six words at most."""
    return Embodiment.of_simulator(simulator_spec, executed=2, token_length=6)


@pytest.fixture
def observe() -> Callable[[int], Observation]:
    """n → an observation of n different rows."""

    def make(n: int) -> Observation:
        random = np.random.default_rng(7)
        return Observation(
            images={"front": random.integers(0, 256, (n, 32, 32, 3), np.uint8)},
            state=random.normal(size=(n, 2)).astype(np.float32),
            instruction=tuple(["reach the red cube", "push the blue cube"][row % 2] for row in range(n)),
            privileged=random.normal(size=(n, 4)).astype(np.float32),
        )

    return make


@pytest.fixture
def keys() -> Callable[[int], NoiseKeys]:
    """n → keys of n different episodes."""
    return lambda n: NoiseKeys(3, np.arange(n, dtype=np.int64) * 5, np.arange(n, dtype=np.int64) % 4)


def make_sampler(name: str) -> Sampler:
    """One of the three samplers, with three denoise steps."""
    if name == "noise":
        return FlowNoise(3, 0.05, 0.3, SMALL.width, MODEL_DIM)
    return FlowSDE(3, 0.7, layers=name)


@pytest.fixture
def make_actor(embodiment: Embodiment) -> Callable[..., FlowActor]:
    """Sampler name, critic kind and options → an actor none of whose weights is zero."""

    def make(sampler: str = "hybrid", critic: str = "privileged", seed: int = 0, **options: Any) -> FlowActor:
        torch.manual_seed(seed)
        names = embodiment.privileged_names
        backbone = Pocket(SMALL, MODEL_DIM, 2, ("front",), (32, 32), len(embodiment.vocabulary), 6, names[:2])
        sizes = {"privileged_dim": len(names), "context_dim": SMALL.width, "feature_dim": SMALL.width}
        head = make_critic(critic, hidden=(16,), detach=options.pop("detach", True), **sizes)
        actor = FlowActor(backbone, make_sampler(sampler), head, embodiment, privileged_names=names, **options)
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        return actor

    return make
