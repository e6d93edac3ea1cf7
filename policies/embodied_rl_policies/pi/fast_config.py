"""Sizes of π0-FAST, and how a checkpoint of lerobot gives them.

The defaults are those of the published checkpoints: PaliGemma 3B with its tokenizer, and physical-intelligence/fast.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Text
from embodied_rl_policies.pi.config import VISION_HEADS
from embodied_rl_policies.pi.fast import load_bpe
from embodied_rl_policies.vlm import Shapes, check_resolution, check_towers, read_towers

OPENING, END = "Action: ", "|"
"""What stands before the tokens of a chunk, and what ends them."""


Rule = Callable[[Any], bool]


def _accept(_: Any) -> bool:
    return True


def _is_size(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


PROCESSOR: Mapping[str, Rule] = {
    "action_dim": _is_size,
    "auto_map": _accept,  # names code, which is never run
    "min_token": lambda value: type(value) is int and value <= 0,
    "processor_class": lambda value: value == "UniversalActionProcessor",
    "scale": lambda value: type(value) in (int, float) and 0 < value < math.inf,
    "time_horizon": _is_size,
    "vocab_size": _is_size,
}
"""Key of a FAST tokenizer's processor_config.json → which values are supported."""

TOKENIZER_CONFIG: Mapping[str, Rule] = dict.fromkeys(
    ("added_tokens_decoder", "auto_map", "backend", "extra_special_tokens", "is_local", "local_files_only",
     "model_max_length", "processor_class", "tokenizer_class"), _accept,
) | {"clean_up_tokenization_spaces": lambda value: value is not True}  # fmt: skip
"""The same for its tokenizer_config.json."""


@dataclass(frozen=True)
class Pi0FastConfig:
    """Sizes of the network and of its two tokenizers; a checkpoint's own sizes replace them."""

    width: int = 2048
    """of the language model."""
    layers: int = 18
    """of the language model."""
    hidden: int = 16_384
    """of a feed-forward block of the language model."""
    heads: int = 8
    """of the attention of the language model."""
    head_dim: int = 256
    """of that attention; even."""
    vocabulary: int = 257_152
    """rows of the language model's token table, and of its output layer."""
    vision_width: int = 1152
    """of the vision tower."""
    vision_layers: int = 27
    """of the vision tower."""
    vision_hidden: int = 4304
    """of a feed-forward block of the vision tower."""
    vision_heads: int = 16
    """of the vision tower; they divide its width."""
    patch: int = 14
    """pixels a side of a patch."""
    resolution: int = 224
    """pixels a side that images are brought to."""
    horizon: int = 50
    """H, actions predicted at once."""
    action_dim: int | None = None
    """D; null takes the robot's."""
    state_dim: int | None = None
    """entries of the state, which the prompt contains; null takes the robot's."""
    token_length: int = 200
    """L, tokens of a prompt at most."""
    longest: int = 253
    """M, tokens of a chunk at most, with the one that ends it."""
    action_tokens: int = 2048
    """N, tokens of the FAST tokenizer."""
    fast: Text = ""
    """content of the FAST tokenizer's tokenizer.json; empty for one token for each number that a rounded coefficient
    can be, from -`offset` on."""
    scale: float = 10.0
    """of the FAST tokenizer: what coefficients are multiplied by before they are rounded."""
    offset: int = 354
    """of the FAST tokenizer: what is added to rounded coefficients, -`min_token`."""
    tokenizer_size: int = 257_152
    """ids of the prompt's tokenizer; FAST's tokens are the last of them, from the largest id down."""
    skipped: int = 128
    """last ids of that tokenizer that FAST leaves out."""
    start_token: int = 2
    """id of the token behind the prompt, before a chunk."""
    opening: tuple[int, ...] = (4022, 235_292, 235_248)
    """ids of "Action: ", which stands before the tokens of a chunk."""
    end_token: int = 235_371
    """id of "|", which ends a chunk."""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass instead of storing them."""

    @property
    def last_action_token(self) -> int:
        """Return the id of FAST's token 0; its token i has the id that is i less."""
        return self.tokenizer_size - 1 - self.skipped

    def __post_init__(self) -> None:
        """Raise `UserError` if a size is invalid; the message names the key to change."""
        check_towers(self, may_be_zero=("offset", "skipped", "start_token", "end_token"))
        if self.resolution % self.patch:
            message = f"policy.resolution={self.resolution} must be a multiple of policy.patch={self.patch}."
            raise UserError(message, code="policy-sizes-invalid")
        if not self.scale > 0 or not self.opening:
            message = f"policy.scale={self.scale} must be above 0, and policy.opening={self.opening} hold a token."
            raise UserError(message, code="value-out-of-range")
        ids = {"start_token": (self.start_token,), "end_token": (self.end_token,), "opening": self.opening}
        first = self.last_action_token + 1 - self.action_tokens
        ids |= {f"action_tokens={self.action_tokens}, with ids": (first, self.last_action_token)}
        for key, values in ids.items():
            if min(values) < 0 or max(values) >= self.vocabulary:
                message = f"policy.{key} {values}, has no place among policy.vocabulary={self.vocabulary} ids."
                raise UserError(message, code="policy-sizes-invalid")


def read_sizes(shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `Pi0FastConfig` that a checkpoint of lerobot determines; its reader adds the key `fast`.

    Raises:
        UserError: tensors that determine sizes are missing, the number of the vision tower's heads is neither known nor
            given, lerobot would decode fewer actions than a chunk has, or see `read_fast`.
    """
    try:
        found: dict[str, Any] = read_towers(shapes, "language.", "vision.")
        found["head_dim"] = shapes["language.layers.0.self_attn.k_proj.weight"][0]
        found["heads"] = shapes["language.layers.0.self_attn.q_proj.weight"][0] // found["head_dim"]
        fast = config["fast"]
    except KeyError as error:
        message = f"The checkpoint is not a π0-FAST of lerobot: {error.args[0]} is missing."
        raise UserError(message, code="checkpoint-unsupported") from None
    check_resolution(config, found["resolution"], "image_resolution")
    if (width := found["vision_width"]) in VISION_HEADS:
        found["vision_heads"] = VISION_HEADS[width]
    elif "vision_heads" not in given:
        message = "The checkpoint does not say how many attention heads its vision tower has: give policy.vision_heads="
        raise UserError(f"{message}<number>.", code="checkpoint-incomplete")
    found["horizon"] = _find(config, "chunk_size", 50)
    if action := (config.get("output_features") or {}).get("action"):
        found["action_dim"] = action["shape"][0]
    found |= read_fast(fast, {"time_horizon": found["horizon"], "action_dim": found.get("action_dim")})
    if fast["prompt_tokenizer"]:
        found |= find_ids(load_bpe(fast["prompt_tokenizer"]))
    opening = given.get("opening", found.get("opening", Pi0FastConfig.opening))
    found["longest"] = _find(config, "max_decoding_steps", 256) - len(opening)
    found["skipped"] = _find(config, "fast_skip_tokens", Pi0FastConfig.skipped)
    if "token_length" not in given:
        found["token_length"] = _find(config, "tokenizer_max_length", Pi0FastConfig.token_length)
    if (steps := _find(config, "n_action_steps", 50)) != found["horizon"]:
        raise UserError(
            f"config.json has n_action_steps={steps} and chunk_size={found['horizon']}: lerobot decodes a chunk as one "
            f"of {steps} actions, which it is not. Set n_action_steps={found['horizon']} in a copy of the file, and "
            f"give policy.executed={steps}.",
            code="checkpoint-unsupported",
        )
    return found


def read_fast(files: Mapping[str, Any], shape: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the keys of `Pi0FastConfig` that the files of a FAST tokenizer determine.

    Args:
        files: the contents of tokenizer.json, as text, processor_config.json and tokenizer_config.json.
        shape: `time_horizon` and `action_dim` of the policy's chunks.

    Raises:
        UserError: a setting is unknown or not supported, or the tokenizer is for chunks of another shape.
    """
    processor = files["processor"]
    for name, settings, rules in (
        ("processor_config.json", processor, PROCESSOR),
        ("tokenizer_config.json", files["tokenizer_config"], TOKENIZER_CONFIG),
    ):
        for key, value in settings.items():
            if key not in rules or not rules[key](value):
                problem = "has an unknown key," if key not in rules else "has"
                message = f"The FAST tokenizer's {name} {problem} {key}={value!r:.60}, which is not supported."
                raise UserError(message, code="checkpoint-unsupported")
    for key, size in shape.items():
        if size is not None and processor.get(key) not in (None, size):
            message = f"The FAST tokenizer has {key}={processor[key]}, and the policy's chunks have {size}."
            raise UserError(f"{message} Give the tokenizer that belongs to the policy.", code="tokenizer-does-not-fit")
    return {
        "fast": files["tokenizer"],
        "action_tokens": load_bpe(files["tokenizer"]).get_vocab_size(),
        "scale": float(processor.get("scale", 10)),
        "offset": -processor.get("min_token", 0),
    }


def _find(config: Mapping[str, Any], key: str, default: int) -> int:
    """Return a number of lerobot's configuration; its default where the key is left out."""
    return default if config.get(key) is None else config[key]


def check_tokenizer(config: Pi0FastConfig, tokenizer: Any) -> None:
    """Check that the ids of a configuration are those of the prompt's tokenizer.

    A tokenizer without "|", of a network with new weights, must have none of these ids.

    Raises:
        UserError: they are not; the message names keys.
    """
    size, end = tokenizer.get_vocab_size(with_added_tokens=False), tokenizer.token_to_id(END)
    least = min(config.last_action_token + 1 - config.action_tokens, config.start_token, config.end_token)
    if end is None and size <= min(least, *config.opening):
        return
    expected = find_ids(tokenizer)
    differing = [key for key, value in expected.items() if getattr(config, key) != value]
    if end is None or differing:
        needed = " ".join(f"policy.{key}={expected[key]}" for key in differing)
        raise UserError(
            f"The tokenizer has other ids than the network: by it {needed}. Give policy.tokenizer=<file or folder>, "
            "that of the language model the policy was made from.",
            code="tokenizer-does-not-fit",
        )


def find_ids(tokenizer: Any) -> dict[str, Any]:
    """Return the keys of `Pi0FastConfig` that the prompt's `tokenizers.Tokenizer` determines."""
    return {
        "tokenizer_size": tokenizer.get_vocab_size(with_added_tokens=False),
        "start_token": tokenizer.token_to_id("<bos>"),
        "opening": tuple(tokenizer.encode(OPENING, add_special_tokens=False).ids),
        "end_token": tokenizer.token_to_id(END),
    }
