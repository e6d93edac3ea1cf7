"""Reader of lerobot's processor files: the steps around a policy. Unknown steps are refused.

The steps are those that lerobot 0.4 to 0.6 writes for π0, π0.5, π0-FAST, SmolVLA, ACT and Diffusion Policy. Here the
embodiment (relative actions, normalisation, tokens) and the network (prompts, normalisation of images, tokens of
actions) do their work.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from embodied_rl.actors.learning.checkpoint import damaged_error, unsupported_error
from embodied_rl.checkpoints import foreign

STATE = "observation.state"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
NORMALISER, UNNORMALISER = "normalizer_processor", "unnormalizer_processor"
TOKENIZER, ACTION_TOKENIZER = "tokenizer_processor", "action_tokenizer_processor"
PROMPTS = {
    "pi0": "pi0_new_line_processor",
    "pi05": "pi05_prepare_state_tokenizer_processor_step",
    "pi0_fast": "pi0_fast_prepare_state_tokenizer_processor_step",
    "smolvla": "smolvla_new_line_processor",
}
"""lerobot's name of a policy → the step that writes its prompts."""
WORDLESS = ("act", "diffusion")
"""lerobot's policies that read no words."""

ALIASES = {"delta_actions_processor": RELATIVE}
"""Names of older versions (0.5)."""

Steps = Mapping[str, Mapping[str, Any]]
Rule = Callable[[Any], bool]


def accept(_: Any) -> bool:
    """Return True."""
    return True


def one_of(*values: object) -> Rule:
    """Return a rule that supports these values alone."""
    return lambda value: value in values


def _of_type(*types: type) -> Rule:
    return lambda value: isinstance(value, types)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _is_names(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _mapping_to(kind: type) -> Rule:
    return lambda value: isinstance(value, Mapping) and all(isinstance(entry, kind) for entry in value.values())


NORMALISATION: Mapping[str, Rule] = {
    "eps": lambda value: isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < 1,
    "features": _mapping_to(Mapping),
    "norm_map": _mapping_to(str),
    "normalize_observation_keys": lambda value: _is_names(value) and STATE in (value or [STATE]),
}
RULES: Mapping[str, Mapping[str, Rule]] = {
    "rename_observations_processor": {"rename_map": accept},
    "to_batch_processor": {},
    "device_processor": {"device": accept, "float_dtype": one_of(None, "float32", "float")},
    RELATIVE: {"enabled": _of_type(bool), "exclude_joints": _is_names, "action_names": _is_names},
    NORMALISER: NORMALISATION,
    TOKENIZER: {
        "max_length": _is_count,
        "task_key": one_of("task"),
        "padding_side": one_of("right"),
        "padding": accept,
        "truncation": accept,
        "tokenizer_name": accept,
    },
    PROMPTS["pi0"]: {},
    PROMPTS["smolvla"]: {},
    PROMPTS["pi05"]: {
        "max_state_dim": accept,
        "task_key": one_of("task"),
        "include_state_in_prompt": one_of(True),
    },
    PROMPTS["pi0_fast"]: {"max_state_dim": accept, "task_key": one_of("task")},
    ACTION_TOKENIZER: {
        "action_tokenizer_name": accept,
        "paligemma_tokenizer_name": accept,
        "trust_remote_code": accept,  # no code is run here
        "max_action_tokens": _is_count,
        "fast_skip_tokens": accept,  # compared with config.json's
        "allow_truncation": accept,
    },
    UNNORMALISER: NORMALISATION,
    ABSOLUTE: {"enabled": _of_type(bool)},
}
"""Step → its settings → which values are supported."""

REPEATABLE = ("rename_observations_processor", "to_batch_processor", "device_processor")
AFTER_STEPS = (UNNORMALISER, ABSOLUTE, "device_processor", "to_batch_processor")
BEFORE_STEPS = tuple(name for name in RULES if name not in (UNNORMALISER, ABSOLUTE, *PROMPTS.values()))
ORDER = (
    (RELATIVE, NORMALISER),
    (NORMALISER, PROMPTS["pi05"]),
    (NORMALISER, PROMPTS["pi0_fast"]),
    (NORMALISER, ACTION_TOKENIZER),
    *((prompt, TOKENIZER) for prompt in PROMPTS.values()),
    (UNNORMALISER, ABSOLUTE),
)
"""Pairs of steps of which the first must come first."""


def read_processors(before: Path, after: Path, policy: str | None) -> tuple[Steps, Steps]:
    """Read the steps of policy_preprocessor.json and policy_postprocessor.json, by name; without a file there are none.

    `policy` is lerobot's name of the policy; the steps of a policy without a network here are not checked.

    Raises:
        CheckpointError: a file is damaged, has a step, a setting or an order that is not understood, or does not undo
            what the other does.
    """
    if policy not in (*PROMPTS, *WORDLESS):
        return dict(read_steps(before)), dict(read_steps(after))
    words = (PROMPTS[policy], TOKENIZER) if policy in PROMPTS else ()
    words += (ACTION_TOKENIZER,) if policy == "pi0_fast" else ()
    known = tuple(name for name in BEFORE_STEPS if name not in (TOKENIZER, ACTION_TOKENIZER))
    first = _read_checked_steps(before, (*known, *words), needed=words)
    second = _read_checked_steps(after, AFTER_STEPS, needed=())
    if after.is_file():
        for done, undone in ((RELATIVE, ABSOLUTE), (NORMALISER, UNNORMALISER)):
            if _enabled(first, done) != _enabled(second, undone):
                which, inverse = (done, undone) if _enabled(first, done) else (undone, done)
                raise unsupported_error(f"{after}: {which} is enabled, but its inverse {inverse} is not.")
    return first, second


def _enabled(steps: Steps, name: str) -> bool:
    return name in steps and bool(_settings(steps[name]).get("enabled", True))


def _settings(step: Mapping[str, Any]) -> Mapping[str, Any]:
    return step.get("config") or {}


def list_state_files(folder: Path, *steps: Steps) -> list[Path]:
    """Return the files of a folder in which steps keep their tensors."""
    return [folder / Path(step["state_file"]).name for each in steps for step in each.values() if "state_file" in step]


def read_steps(file: Path) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return the names and entries of the steps; none without the file.

    Raises:
        CheckpointError: the file is damaged.
    """
    if not file.is_file():
        return []
    listed = foreign.parse_json(file).get("steps")
    if not isinstance(listed, list) or not all(isinstance(step, dict) for step in listed):
        raise damaged_error(f"{file} is damaged: its 'steps' should be a list of mappings.")
    named = [(str(step.get("registry_name", step.get("class"))), step) for step in listed]
    for name, step in named:
        if not isinstance(_settings(step), Mapping) or not isinstance(step.get("state_file", ""), str):
            raise damaged_error(f"{file} is damaged: {name} should have a mapping 'config' and a name 'state_file'.")
    return [(ALIASES.get(name, name), step) for name, step in named]


def _read_checked_steps(file: Path, known: Sequence[str], needed: Sequence[str]) -> Steps:
    listed = read_steps(file)
    names = [name for name, _ in listed]
    for name, step in listed:
        if name not in known or (names.count(name) > 1 and name not in REPEATABLE):
            problem = "more than once" if name in known else "which is not understood"
            raise unsupported_error(
                f"{file} has the step {name!r}, {problem}: the policy would act differently than in lerobot. "
                f"Understood are {', '.join(known)}."
            )
        for key, value in _settings(step).items():
            if key not in RULES[name]:
                raise unsupported_error(f"{file}: the step {name} has the setting {key!r}, which is not understood.")
            if not RULES[name][key](value):
                raise unsupported_error(f"{file}: {key}={value!r} of the step {name} is not supported.")
    if absent := [name for name in needed if file.is_file() and name not in names]:
        raise unsupported_error(f"{file} has no step {absent[0]!r}: the policy would act differently than in lerobot.")
    for first, second in ORDER:
        if first in names and second in names and names.index(first) > names.index(second):
            raise unsupported_error(f"{file}: {second} comes before {first}, which is not supported.")
    return dict(listed)
