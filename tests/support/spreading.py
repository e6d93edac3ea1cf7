"""What the ranks of the tests of a sharded learner run; a module of its own because child processes import it."""

import os
from copy import deepcopy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.learning import checkpoint, sharded, shards, trainable
from embodied_rl.actors.learning.weights import gather_whole, publish_weights
from embodied_rl.checkpoints.policy_file import load_actor, save_actor
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.launch import Ranks
from embodied_rl.schema import LoraNode
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from tests.support import experience

ENVS = (3, 6)
"""Environments of each rank: unequal, so that a plain mean over ranks is wrong."""
UPDATES = 4


def make(kind: str = "full") -> FlowActor:
    """A tiny actor: all of it learns; a noise head, too; adapters; or the expert, on a frozen prefix, part bfloat16."""
    actor = experience.make_actor("noise" if kind == "noise" else "full", "expert")
    if kind in ("lora", "expert"):
        prefix = [*actor.backbone.perception_parameters(), *actor.backbone.prefix.parameters()]
        actor.backbone.prefix_parameters = lambda: prefix
        actor.backbone.adapted_modules = lambda: ["action_in", "modulation"]
        trainable.choose_trainable(actor.backbone, kind, LoraNode(2))
        for name, parameter in actor.backbone.named_parameters():
            if ".lora_B" in name:
                torch.nn.init.normal_(parameter)
    if kind == "expert":
        actor.backbone.views.data = actor.backbone.views.data.to(torch.bfloat16)
    return actor


def make_ppo(actor: FlowActor, ranks: Ranks, **settings: Any) -> PPO:
    plain = {"epochs": 1, "minibatch": 10**6, "critic_warmup": 1, "lr": 2e-5, "warmup_updates": 0, "target_kl": None}
    return PPO(PPOConfig(**(plain | settings)), actor, ranks, 0, 100)


def experienced(actor: FlowActor, iteration: int, envs: int, seed: int) -> Rollout:
    return experience.make_rollout(actor, num_envs=envs, seed=100 * iteration + seed)


def joined(parts: list[Rollout]) -> Rollout:
    """One rollout of all environments."""
    found: dict[str, Any] = {}
    for item in fields(Rollout):
        values = [getattr(part, item.name) for part in parts]
        if item.name == "trace":
            found["trace"] = {name: torch.cat([value[name] for value in values], dim=1) for name in values[0]}
        elif isinstance(values[0], Tensor):
            found[item.name] = torch.cat(values, dim=int(values[0].dim() > 1))
    return Rollout(**found)


def learned(kind: str, ranks: Ranks, spread: bool, rollouts: list[Rollout], **settings: Any) -> dict[str, Any]:
    """Some updates, on a sharded or a replicated actor."""
    actor = make(kind)
    sharding = sharded.shard_network(actor.backbone, "sharded" if spread else "replicated", ranks)
    ppo = make_ppo(actor, ranks, **settings)
    figures = [ppo.update([deepcopy(rollout)], iteration) for iteration, rollout in enumerate(rollouts)]
    return {"weights": copied(actor), "figures": figures, "actor": actor, "ppo": ppo, "sharding": sharding}


def copied(actor: FlowActor) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in gather_whole(actor).items()}


def rollouts_of(rank: int) -> list[Rollout]:
    actor = make()
    return [experienced(actor, iteration, ENVS[rank], rank) for iteration in range(UPDATES)]


def compare(config: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """The same updates, replicated and sharded."""
    torch.set_num_threads(1)
    kind, settings = config["kind"], config["settings"]
    actor = make(kind)
    rollouts = [experienced(actor, i, ENVS[ranks.rank], ranks.rank) for i in range(UPDATES)]
    plain = learned(kind, ranks, False, rollouts, **settings)
    spread = learned(kind, ranks, True, rollouts, **settings)
    sent = publish_weights(spread["actor"], 3, everything=True)
    assert not publish_weights(make(kind), 3).tensors.keys() - sent.tensors.keys()
    shards_of = [shard for _, shard in spread["sharding"]._pairs]
    held = sum(shard.to_local().numel() for shard in shards_of)
    result = {
        "plain": plain["weights"], "spread": spread["weights"], "figures": (plain["figures"], spread["figures"]),
        "published": {name: data.tobytes() for name, data in sent.tensors.items()},
        "elements": (sum(ranks.gather(held)), sum(shard.numel() for shard in shards_of), held),
    }  # fmt: skip
    assert all(torch.equal(other[name], value) for other in ranks.gather(spread["weights"])
               for name, value in spread["weights"].items()), "ranks hold different weights"  # fmt: skip
    sharded.leave_group()
    return result


def save(folder: Path, number: int, run: dict[str, Any], ranks: Ranks) -> None:
    """As a trainer does."""
    files = shards.write_shards(folder, run["sharding"], ranks)
    states = ranks.gather(run["ppo"].state())
    if ranks.rank == 0:
        tensors = {f"{rank}/{name}": value for rank, state in enumerate(states) for name, value in state.items()}
        policy = partial(save_actor, actor=run["actor"], policy="pocket", config={})
        checkpoint.save_checkpoint(folder, number, tensors, {}, 2, {"policy.safetensors": policy, **files})
    ranks.barrier()


def resumed(folder: Path, number: int, ranks: Ranks, rollouts: list[Rollout], rank: int) -> dict[str, Any]:
    """What continues from a checkpoint, on any number of ranks."""
    run = learned("full", ranks, True, [])
    path = folder / f"{number:08d}"
    load_actor(path / "policy.safetensors", run["actor"])
    tensors = checkpoint.load_checkpoint(path)[1]
    mine = {name.removeprefix(f"{rank}/"): value for name, value in tensors.items() if name.startswith(f"{rank}/")}
    run["ppo"].load(mine)
    shards.read_shards(path, run["sharding"], [run["ppo"].policy.optimiser])
    for iteration, rollout in enumerate(rollouts, start=number):
        run["ppo"].update([deepcopy(rollout)], iteration)
    return run


def moments(run: dict[str, Any]) -> dict[str, Tensor]:
    """Adam's, whole."""
    found = run["ppo"].policy.optimiser.shards(everything=True)
    return {name: getattr(value, "full_tensor", value.clone)() for name, value in found.items()}


def checkpointed(config: tuple[str, int], ranks: Ranks) -> dict[str, Any]:
    """Some updates, a checkpoint, the others; and the same from the checkpoint."""
    torch.set_num_threads(1)
    folder, before, rollouts = Path(config[0]), config[1], rollouts_of(ranks.rank)
    run = learned("full", ranks, True, rollouts[:before])
    save(folder, before, run, ranks)
    save(folder, before, run, ranks)  # again, as after a failure: nothing of the first is in the way
    stopped = {"weights": copied(run["actor"]), "moments": moments(run)}
    for iteration, rollout in enumerate(rollouts[before:], start=before):
        run["ppo"].update([deepcopy(rollout)], iteration)
    again = resumed(folder, before, ranks, rollouts[before:], ranks.rank)
    result = {
        "stopped": stopped,
        "straight": {"weights": copied(run["actor"]), "moments": moments(run)},
        "resumed": {"weights": copied(again["actor"]), "moments": moments(again)},
    }
    sharded.leave_group()
    return result


def taken_up(config: str, ranks: Ranks) -> dict[str, Any]:
    """What is in a checkpoint, whoever wrote it."""
    torch.set_num_threads(1)
    run = resumed(Path(config), 2, ranks, [], 0)
    result = {"weights": copied(run["actor"]), "moments": moments(run)}
    save(Path(config), 3, run, ranks)
    sharded.leave_group()
    return result


def lose(config: object, ranks: Ranks) -> None:
    """One rank is killed; the other is in an operation of PyTorch's, not ours."""
    sharding = sharded.shard_network(make().backbone, "sharded", ranks)
    assert sharding is not None
    sharding.release()
    ranks.barrier()
    if ranks.rank == 1:
        os.kill(os.getpid(), 9)
    sharding.gather()
