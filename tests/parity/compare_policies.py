"""The largest differences between our networks and what other projects' own gave.

    PYTHONPATH=. python tests/parity/compare_policies.py

Runs in our environment, on the recorded tensors in `golden/`; the scripts `lerobot_pi.py`, `openpi_pi.py`,
`lerobot_smolvla.py` and `openvla_official.py` make them in theirs. The same comparisons are tests in `tests/policies/`.
"""

from contextlib import nullcontext
from functools import partial

import torch
from safetensors.torch import load_file

from tests.support import openvla_sizes, pi_inputs, small_openvla, small_pi, small_smolvla
from tests.support import pi_sizes as sizes
from tests.support.double_precision import in_float64


@torch.no_grad()
def differences(family: str) -> dict[str, float]:
    """Over all rows: of velocities at three times, and of actions after four Euler steps."""
    expected, found = small_pi.golden(family), {"velocity": 0.0, "actions": 0.0, "largest action": 0.0}
    for index in range(sizes.ROWS):
        network, inputs = small_pi.row(family, index)
        context, noise = network.encode(inputs), pi_inputs.chunk("noise")[[index]]
        for moment in sizes.TIMES:
            velocity = network.velocity(noise, torch.tensor([moment]), context)[0][0]
            gap = (velocity - expected[f"network.velocity.{moment}"][index]).abs().max()
            found["velocity"] = max(found["velocity"], float(gap))
        actions = small_pi.integrate(network, noise, context, sizes.STEPS)[0]
        found["actions"] = max(found["actions"], float((actions - expected["network.actions"][index]).abs().max()))
        found["largest action"] = max(found["largest action"], float(actions.abs().max()))
    return found


@torch.no_grad()
def smolvla_differences() -> dict[str, float]:
    """The same for SmolVLA as it is published."""
    network = small_smolvla.network("base")
    context, golden = network.encode(small_smolvla.observation()), small_smolvla.GOLDEN
    turns = range(small_smolvla.sizes.ROWS)
    velocities = [network.velocity(small_smolvla.noise(), small_smolvla.times(turn), context)[0] for turn in turns]
    actions = small_smolvla.euler(network, context)
    pairs = zip(turns, velocities, strict=True)
    return {
        "velocity": max(small_smolvla.difference(found, golden[f"base/velocity/{turn}"]) for turn, found in pairs),
        "actions": small_smolvla.difference(actions, golden["base/actions"]),
        "largest action": float(actions.abs().max()),
    }


@torch.no_grad()
def other_steps() -> dict[str, float]:
    """Of actions after other numbers of steps, in float32 and with whole networks in float64."""
    families = {family: partial(small_pi.after_steps, family) for family in small_pi.FAMILIES}
    found = {}
    for family, after_steps in (families | {"smolvla": small_smolvla.after_steps}).items():
        for name, expected in load_file(small_pi.GOLDEN / f"{family}_lerobot_steps.safetensors").items():
            precision, _, count = name.partition(".")
            with in_float64() if precision == "float64" else nullcontext():
                found[f"{family} {name}"] = small_smolvla.difference(after_steps(int(count)), expected)
    return found


@torch.no_grad()
def openvla_differences(name: str, variant: str) -> dict[str, float]:
    """Of logits, and of the likeliest actions in units of the statistics."""
    network, golden = small_openvla.network(name, variant), small_openvla.golden(name)
    context, start = network.encode(small_openvla.observation(variant)), f"{variant}/" if name == "openvla_oft" else ""
    bins = small_openvla.given_bins()
    logits = network.action_logits(context, bins)[0]
    kept = logits.flatten(1, 2)[:, :: openvla_sizes.STEP if start else 1]
    chosen = logits.argmax(dim=-1) if start else small_openvla.choose_in_order(network, context)[:, None]
    actions = small_openvla.restore(network.bin_centres()[chosen]).reshape(golden[f"{start}actions"].shape)
    return {
        "logits": small_openvla.difference(kept, golden[f"{start}logits"]),
        "actions": small_openvla.difference(actions, golden[f"{start}actions"]),
        "largest logit": float(kept.abs().max()),
    }


if __name__ == "__main__":
    found = {name: differences(name) for name in small_pi.FAMILIES} | {"smolvla": smolvla_differences()}
    for variant in openvla_sizes.VARIANTS:
        found[f"openvla_oft {variant}"] = openvla_differences("openvla_oft", variant)
    found["openvla"] = openvla_differences("openvla", "one")
    for name, figures in found.items():
        print(name, {key: f"{value:.2g}" for key, value in figures.items()})
    for name, value in other_steps().items():
        print(name, f"{value:.2g}")
