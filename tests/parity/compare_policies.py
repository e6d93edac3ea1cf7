"""The largest differences between our networks and what other projects' own gave: `python compare_policies.py`.

Runs in our environment, on the recorded tensors in `golden/`; the scripts `lerobot_pi.py`, `openpi_pi.py` and
`lerobot_smolvla.py` make them in theirs. The same comparisons are tests in `tests/policies/`.
"""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "policies")]

import pi_inputs  # noqa: E402
import pi_sizes as sizes  # noqa: E402
import test_pi  # noqa: E402
import test_smolvla  # noqa: E402


@torch.no_grad()
def differences(family: str) -> dict[str, float]:
    """Over all rows: of velocities at three times, and of actions after four Euler steps."""
    expected, found = test_pi.golden(family), {"velocity": 0.0, "actions": 0.0, "largest action": 0.0}
    for index in range(sizes.ROWS):
        network, inputs = test_pi.row(family, index)
        context, noise = network.encode(inputs), pi_inputs.chunk("noise")[[index]]
        for moment in sizes.TIMES:
            velocity = network.velocity(noise, torch.tensor([moment]), context)[0][0]
            gap = (velocity - expected[f"network.velocity.{moment}"][index]).abs().max()
            found["velocity"] = max(found["velocity"], float(gap))
        actions = test_pi.integrate(network, noise, context, sizes.STEPS)[0]
        found["actions"] = max(found["actions"], float((actions - expected["network.actions"][index]).abs().max()))
        found["largest action"] = max(found["largest action"], float(actions.abs().max()))
    return found


@torch.no_grad()
def smolvla_differences() -> dict[str, float]:
    """The same for SmolVLA as it is published."""
    network = test_smolvla.network("base")
    context, golden = network.encode(test_smolvla.observation()), test_smolvla.GOLDEN
    turns = range(test_smolvla.sizes.ROWS)
    velocities = [network.velocity(test_smolvla.noise(), test_smolvla.times(turn), context)[0] for turn in turns]
    actions = test_smolvla.euler(network, context)
    pairs = zip(turns, velocities, strict=True)
    return {
        "velocity": max(test_smolvla.difference(found, golden[f"base/velocity/{turn}"]) for turn, found in pairs),
        "actions": test_smolvla.difference(actions, golden["base/actions"]),
        "largest action": float(actions.abs().max()),
    }


if __name__ == "__main__":
    found = {name: differences(name) for name in test_pi.FAMILIES} | {"smolvla": smolvla_differences()}
    for name, figures in found.items():
        print(name, {key: f"{value:.2g}" for key, value in figures.items()})
