"""Small networks of each flow policy, with weights by which their velocities depend on the flow time."""

from dataclasses import replace

import torch

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.tokenizer import make_word_tokenizer
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.sim import Camera, Observation, SimulatorSpec, Task
from embodied_rl.mathematics.flow.sampler import Sampler
from embodied_rl.testing.policy_contract import make_random_observation
from embodied_rl_policies.pocket import Pocket
from tests.support import gr00t_sizes, pi_sizes, small_gr00t, small_pi, small_smolvla, smolvla_sizes

NAMES = ("pocket", "pi0", "pi05", "smolvla", "gr00t")
VOCABULARY = {
    "pocket": 10,
    "pi0": pi_sizes.VOCABULARY,
    "pi05": pi_sizes.VOCABULARY,
    "smolvla": smolvla_sizes.VOCABULARY,
    "gr00t": gr00t_sizes.TEXT["vocab_size"],
}


def build(name: str) -> FlowBackbone:
    """A network of a kind in `NAMES`, the same at each call."""
    if name == "smolvla":
        return small_smolvla.network()
    if name == "gr00t":
        gr00t = small_gr00t.network(picture_start=0)
        for parameter in gr00t.action_head.parameters():  # the recipe's actions hardly attend to each other
            parameter.data.mul_(2)
        return gr00t
    if name != "pocket":
        return small_pi.filled(name)
    torch.manual_seed(0)
    config = Pocket.Config(width=32, layers=3, heads=4, horizon=4, keypoints=8, stem_channels=16)
    pocket = Pocket(config, 3, 5, ("front",), (32, 32), VOCABULARY[name], 6)
    torch.nn.init.normal_(pocket.modulation.weight, std=0.2)  # new ones ignore the flow time
    return pocket


def build_actor(name: str, sampler: Sampler) -> tuple[FlowActor, Observation]:
    """An actor of a kind in `NAMES` that may continue any prefix, and an observation of three rows."""
    network = build(name)
    network.prefix_trained_to = network.spec.horizon
    height, width = network.spec.image_size
    spec = SimulatorSpec(
        cameras=tuple(Camera(camera, height, width) for camera in network.spec.cameras),
        state_names=("x", "y", "z", "yaw", "gripper")[: network.spec.state_dim],
        action_names=("dx", "dy", "gripper"),
        action_low=(-0.5, -2.0, 0.0),
        action_high=(0.5, 1.0, 0.1),
        control_hz=10,
        horizon=20,
        tasks=(Task("reach", "reach"),),
        words=("reach", "push"),
    )
    robot = Embodiment.of_simulator(spec, executed=2, token_length=network.spec.token_length)
    if network.PROMPT_WORDS is not None:
        robot = replace(robot, tokenizer=make_word_tokenizer([*spec.words, *network.PROMPT_WORDS]))
    return FlowActor(network, sampler, None, robot).eval(), make_random_observation(spec)
