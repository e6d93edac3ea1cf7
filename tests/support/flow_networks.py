"""Small networks of each flow policy, with weights by which their velocities depend on the flow time."""

import torch

from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl_policies.pocket import Pocket
from tests.support import pi_sizes, small_pi, small_smolvla, smolvla_sizes

NAMES = ("pocket", "pi0", "pi05", "smolvla")
VOCABULARY = {
    "pocket": 10,
    "pi0": pi_sizes.VOCABULARY,
    "pi05": pi_sizes.VOCABULARY,
    "smolvla": smolvla_sizes.VOCABULARY,
}


def build(name: str) -> FlowBackbone:
    """A network of a kind in `NAMES`, the same at each call."""
    if name == "smolvla":
        return small_smolvla.network()
    if name != "pocket":
        return small_pi.filled(name)
    torch.manual_seed(0)
    config = Pocket.Config(width=32, layers=3, heads=4, horizon=4, keypoints=8, stem_channels=16)
    pocket = Pocket(config, 3, 5, ("front",), (32, 32), VOCABULARY[name], 6)
    torch.nn.init.normal_(pocket.modulation.weight, std=0.2)  # new ones ignore the flow time
    return pocket
