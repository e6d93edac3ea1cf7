"""What lerobot's own ACT and Diffusion Policy make of the weights and inputs of `imitation_sizes`.

    python3.11 -m venv oracle && oracle/bin/pip install torch==2.13.0
    oracle/bin/pip install --no-deps torchvision==0.28.0 diffusers==0.42.1
    oracle/bin/pip install torch==2.13.0 safetensors draccus==0.11.6 einops gymnasium termcolor packaging deepdiff \\
        pillow imageio huggingface-hub regex requests importlib_metadata 'numpy<2.5'
    oracle/bin/python lerobot_imitation.py golden golden/imitation   # small files of each variant, actions and losses
    oracle/bin/python lerobot_imitation.py load VARIANT FOLDER       # does lerobot take a folder of ours? its actions

PYTHONPATH names the checkout, for `support`, and lerobot 0.6.1, unpacked, with its Python 3.12 syntax outside of the
policies rewritten for 3.11. torchvision's compiled operations, which need a GPU's torch and no policy uses, are left
out, as is the initialisation of `lerobot.policies`, which imports every policy.
"""

# pyright: reportMissingImports=false

import hashlib
import json
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support import imitation_sizes as sizes
from tests.support import recipe
from tests.support.double_precision import in_float64

register = torch.library.register_fake
with patch.object(
    torch.library, "register_fake",
    lambda op, *rest, **more: (lambda f: f) if str(op).startswith("torchvision::") else register(op, *rest, **more),
):  # fmt: skip
    import torchvision  # noqa: F401
import lerobot  # noqa: E402

package = sys.modules["lerobot.policies"] = types.ModuleType("lerobot.policies")
package.__path__ = [f"{lerobot.__path__[0]}/policies"]

from lerobot.configs import FeatureType, PolicyFeature  # noqa: E402
from lerobot.policies.act.configuration_act import ACTConfig  # noqa: E402
from lerobot.policies.act.modeling_act import ACTPolicy  # noqa: E402
from lerobot.policies.act.processor_act import make_act_pre_post_processors  # noqa: E402
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig  # noqa: E402
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy  # noqa: E402
from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors  # noqa: E402
from lerobot.processor import PolicyProcessorPipeline  # noqa: E402
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action  # noqa: E402

CLASSES = {
    "act": (ACTPolicy, ACTConfig, make_act_pre_post_processors),
    "diffusion": (DiffusionPolicy, DiffusionConfig, make_diffusion_pre_post_processors),
}
RANDOM = "diffusers.schedulers.scheduling_ddpm.randn_tensor"


def wide(values: Any) -> Tensor:
    """Numbers in the precision of the networks."""
    return torch.from_numpy(values).to(torch.get_default_dtype())


def make(variant: str) -> tuple[Any, Any, Any]:
    """The policy with the recipe's weights, and its processors."""
    kind, changes = sizes.VARIANTS[variant]
    policy, config, processors = CLASSES[kind]
    image = PolicyFeature(FeatureType.VISUAL, (3, *sizes.SIZE))
    seen = {f"observation.images.{camera}": image for camera in sizes.CAMERAS}
    seen |= {"observation.state": PolicyFeature(FeatureType.STATE, (sizes.STATE_DIM,))}
    acted = {"action": PolicyFeature(FeatureType.ACTION, (sizes.ACTION_DIM,))}
    made = policy(config(input_features=seen, output_features=acted, **changes))
    with torch.no_grad():
        for name, tensor in made.state_dict().items():
            if (value := sizes.weight(name, tuple(tensor.shape))) is not None:
                tensor.copy_(torch.from_numpy(value))
    known = {name: {key: wide(value) for key, value in sizes.statistics(name).items()} for name in seen | acted}
    return made.eval(), *processors(made.config, known)


def observe(before: Any, step: int) -> dict[str, Tensor]:
    """A control step's observation as lerobot's networks get it."""
    seen = sizes.observation(step)
    images = {f"observation.images.{name}": torch.from_numpy(seen[name]) for name in sizes.CAMERAS}
    shown = {name: image.permute(0, 3, 1, 2).float() / 255 for name, image in images.items()}
    return before(shown | {"observation.state": wide(seen["state"])})


def act(policy: Any, before: Any, after: Any) -> Tensor:
    """The actions [rows, executed, A] after as many observations as the policy reads, in the robot's units."""
    count = policy.config.n_obs_steps
    if isinstance(policy, ACTPolicy):
        return after(policy.predict_action_chunk(observe(before, count - 1)))
    shape = (sizes.ROWS, policy.diffusion.num_inference_steps, policy.config.horizon, sizes.ACTION_DIM)
    noise = wide(recipe.normal("noise", shape))
    policy.reset()
    for step in range(count):
        drawn = iter(noise[:, 1:].unbind(1))
        policy._queues["action"].clear()
        with patch(RANDOM, lambda *_, drawn=drawn, **__: next(drawn)):
            first = policy.select_action(observe(before, step), noise=noise[:, 0])
    return after(torch.stack([first, *policy._queues["action"]], dim=1))


def learn(policy: Any, before: Any) -> Tensor:
    """The loss: ACT's in training mode without dropout; Diffusion Policy's as it acts, without random crops."""
    config, acting = policy.config, isinstance(policy, DiffusionPolicy)
    steps = [observe(before, step) for step in range(config.n_obs_steps)]
    names = [name for name in steps[0] if name.startswith("observation") and torch.is_tensor(steps[0][name])]
    seen = {name: torch.stack([step[name] for step in steps], dim=1) if acting else steps[-1][name] for name in names}
    length = config.horizon if acting else config.chunk_size
    actions, padding = map(torch.from_numpy, sizes.chunk(length))
    noise = torch.from_numpy(recipe.normal("noise of the loss", actions.shape if acting else (sizes.ROWS, 8)))
    for module in policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    policy.train(not acting)
    with (
        patch.object(torch, "randn_like", lambda _: noise) if not acting else nullcontext(),
        patch.object(torch, "randn", lambda *_, **__: noise) if acting else nullcontext(),
        patch.object(torch, "randint", lambda **_: torch.from_numpy(sizes.STEPS)) if acting else nullcontext(),
    ):
        return policy.forward(seen | {"action": actions, "action_is_pad": padding})[0]


def golden(place: Path) -> None:
    """Write the config.json of each variant, the processors of each policy, all actions and losses, and digests."""
    found, listed = dict[str, Tensor](), dict[str, str]()
    for variant in sizes.VARIANTS:
        policy, before, after = make(variant)
        (place / variant).mkdir(parents=True)
        policy.config._save_pretrained(place / variant)
        if variant in CLASSES:  # the other variants have the same
            before.save_pretrained(place / variant)
            after.save_pretrained(place / variant)
        lines = sorted(f"{name} {list(t.shape)} {t.dtype}" for name, t in policy.state_dict().items())
        listed[variant] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        with torch.no_grad():
            found[f"{variant}/actions"] = act(policy, before, after).contiguous()
            found[f"{variant}/loss"] = learn(policy, before)[None]
        with in_float64(), torch.no_grad():
            found[f"{variant}/actions64"] = act(*make(variant)).contiguous()
    save_file(found, place / "golden.safetensors")
    (place / "tensors.json").write_text(json.dumps(listed, indent=1) + "\n")


def load(variant: str, folder: Path) -> None:
    """Load a folder strictly, and print how far its actions are from the golden ones."""
    from safetensors.torch import load_file

    policy = CLASSES[sizes.VARIANTS[variant][0]][0].from_pretrained(folder, strict=True).eval()
    before = PolicyProcessorPipeline.from_pretrained(folder, "policy_preprocessor.json")
    after = PolicyProcessorPipeline.from_pretrained(
        folder, "policy_postprocessor.json",
        to_transition=policy_action_to_transition, to_output=transition_to_policy_action,
    )  # fmt: skip
    expected = load_file(Path(__file__).parent / "golden/imitation/golden.safetensors")[f"{variant}/actions"]
    found = act(policy, before, after)
    count = min(found.shape[1], expected.shape[1])
    print(variant, "difference", float(np.abs(found[:, :count] - expected[:, :count]).max()))


if __name__ == "__main__":
    {"golden": lambda: golden(Path(sys.argv[2])), "load": lambda: load(sys.argv[2], Path(sys.argv[3]))}[sys.argv[1]]()
