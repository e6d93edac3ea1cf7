"""Tokenizer of a lerobot policy folder: in the folder since version 0.6.2, before by a name on the hub.

A step of policy_preprocessor.json holds `tokenizer_name`. Since lerobot 0.6.2 the folder in `artifacts` replaces it.
Older versions ignore `artifacts`, and pass the name to transformers, which downloads it. An export therefore names the
tokenizer on the hub if that is known, and always has the folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.checkpoints.lerobot import BEFORE
from embodied_rl.checkpoints.lerobot_processors import TOKENIZER
from embodied_rl.checkpoints.weight_names import as_foreign
from embodied_rl.interfaces.policy import FlowBackbone

FOLDER, KEY = "tokenizer", "tokenizer_name"


def make_setting(network: FlowBackbone, robot: Embodiment) -> dict[str, str]:
    """Return the setting of the tokenizer's step: its name on the hub if it is known, or else the folder."""
    imported = _find_name(network.source.files.get(BEFORE, b"{}")) if network.source is not None else None
    if imported and imported != FOLDER:
        return {KEY: imported}
    cls, loaded = type(as_foreign(network)), tokenizer.load_tokenizer(robot.tokenizer)
    same = bool(cls.HUB_TOKENS) and all(loaded.token_to_id(token) == index for token, index in cls.HUB_TOKENS.items())
    return {KEY: (cls.HUB_TOKENIZER if same else None) or FOLDER}  # of the published policy, if the robot has that one


def _find_name(before: bytes) -> str | None:
    """Return the tokenizer's name in the content of a policy_preprocessor.json; None if it has none."""
    steps = [step for step in json.loads(before).get("steps", []) if step.get("registry_name") == TOKENIZER]
    return steps[0].get("config", {}).get(KEY) if steps else None


def describe_versions(out: Path) -> Iterator[str]:
    """Yield a note if an exported folder has a tokenizer that versions of lerobot before 0.6.2 do not find."""
    if (out / BEFORE).is_file() and _find_name((out / BEFORE).read_bytes()) == FOLDER:
        yield (
            "lerobot before 0.6.2 does not look for a tokenizer in the folder; give its make_pre_post_processors "
            f'preprocessor_overrides={{"{TOKENIZER}": {{"{KEY}": "{out / FOLDER}"}}}}.'
        )
