"""The command that continues from a cloned policy by reinforcement learning."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from embodied_rl.config import plugins
from embodied_rl.config.freeze import thaw_config
from embodied_rl.config.option_files import find_option_file, list_options
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import PolicyNode, SftConfig, SimNode


def make_next_command(config: SftConfig, spec: SimulatorSpec, folder: Path) -> str:
    """Return the line to type that trains a cloned policy further, or evaluates one that nothing trains further."""
    if plugins.find_plugin("policies", config.policy.name).KIND == "imitation":
        return shlex.join(["embodied-rl", "eval", f"policy={folder}"])
    words = [*choose_sim(config.sim), *choose_policy(config.policy), f"policy.checkpoint={folder}"]
    if not spec.privileged_names:
        words.append("policy.critic=prefix")
    return shlex.join(["embodied-rl", "train", *words])


def choose_sim(node: SimNode) -> list[str]:
    """Return the words that choose a simulator as configured, except `num_envs`, which belongs to training."""
    mine, found = thaw_config(node), {}
    defaults = thaw_config(plugins.configure_plugin("sims", SimNode(node.name), "sim")[1])
    base = thaw_config(SimNode(node.name)) | defaults
    for name, keys in read_choices("sim", node.name).items():
        found[name] = {key: value for key, value in mine.items() if value != (base | keys).get(key)}
    name = min(found, key=lambda each: len(found[each]), default=None)
    changed = found[name] if name is not None else {key: value for key, value in mine.items() if value != base.get(key)}
    kept = {key: value for key, value in changed.items() if key not in ("name", "num_envs")}
    start = f"sim={name}" if name is not None else f"sim.name={node.name}"
    return [start, *(f"sim.{key}={format_value(value)}" for key, value in kept.items())]


def choose_policy(node: PolicyNode) -> list[str]:
    """Return the words that choose a policy; sizes are in its checkpoint, so a choice must not contradict them."""
    choices = read_choices("policy", node.name)
    fits = {
        name: sum(key in node.options for key in keys)
        for name, keys in choices.items()
        if all(node.options[key] == value for key, value in keys.items() if key in node.options)
    }
    name = max(fits, key=lambda each: (fits[each], each == node.name), default=None)
    mine, base = thaw_config(node), thaw_config(PolicyNode(node.name))
    base |= choices.get(name or "", {})
    kept = [key for key in base if key not in ("name", "checkpoint", *node.options) and mine.get(key) != base[key]]
    start = f"policy={name}" if name is not None else f"policy.name={node.name}"
    return [start, *(f"policy.{key}={format_value(mine[key])}" for key in kept if key != "lora")]


def read_choices(group: str, plugin: str) -> dict[str, dict[str, Any]]:
    """Return the keys of each file of a group that chooses this plug-in, by the name to type."""
    named = [option.name for option in list_options(group) if option.plugin == plugin]
    read: dict[str, Any] = {
        name: OmegaConf.to_container(OmegaConf.load(find_option_file(group, name))) for name in named
    }
    return {name: keys for name, keys in read.items() if isinstance(keys, dict) and "defaults" not in keys}


def format_value(value: object) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(format_value(item) for item in value)}]"
    return json.dumps(value)
