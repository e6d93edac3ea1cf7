"""Small training runs, drawn by chance from what a configuration allows."""

import math
from dataclasses import dataclass
from random import Random

from tests.support.running import POLICY, REACHING, TABLETOP

SIZES = ("train.eval_episodes=2", "train.final_episodes=2", "algo.minibatch=4")  # two environments decide 4 times
METHODS = {
    "ppo flow_sde": ("algo=flow_sde", "algo.critic_steps=2"),
    "ppo flow_noise": ("algo=flow_noise", "algo.critic_steps=2", "algo.entropy=0.01"),
    "grpo": ("algo=grpo", "algo.group_size=2"),
    "nft": ("algo=nft", "algo.group_size=2"),
    "awr": ("algo=awr", "algo.steps=2", "algo.critic_steps=2", "replay.capacity=8"),
    "dsrl": ("algo=dsrl", "algo.updates=2", "algo.hidden=16", "algo.n_step=2"),
}
ON_REPLAY, IN_GROUPS = ("awr", "dsrl"), ("grpo", "nft")
POCKET = (
    (*POLICY, "policy.autocast=false"),
    (*POLICY, "policy.autocast=true"),
    (*POLICY, "policy.freeze_perception=true"),
)
PI0 = (
    "policy=pi0_tiny", "policy.width=32", "policy.layers=1", "policy.hidden=32", "policy.heads=2", "policy.head_dim=16",
    "policy.expert_width=32", "policy.expert_hidden=32", "policy.vision_width=32", "policy.vision_layers=1",
    "policy.vision_hidden=32", "policy.vision_heads=2", "policy.resolution=32", "policy.horizon=2",
    "policy.train=expert", "policy.precision=bfloat16",
)  # fmt: skip


@dataclass(frozen=True)
class DrawnRun:
    """A run of seconds.

    Attributes:
        words: what is typed after `train`.
        iterations: how many it has.
        staleness: by how many versions the weights that decide may be too old.
        exact: whether its seed fixes every bit.
    """

    words: tuple[str, ...]
    iterations: int
    staleness: int
    exact: bool


def draw_run(seed: int) -> DrawnRun:
    """Draw a run; the same seed gives the same one."""
    rng = Random(f"run {seed}")
    mode = rng.choice(("sync", "sync", "stream", "async"))
    staleness = rng.randrange(2) if mode == "async" else 0
    allocation, order = rng.choice((*[("colocated", "exact")] * 4, *[("split", "exact")] * 3, ("split", "ready")))
    ranks, slices, workers = rng.choice(((1, 1, 2), (1, 2, 1), (1, 1, 1), (2, 1, 1), (2, 1, 1)))
    collectors = rng.choice((0, 0, 0, 1) if mode == "sync" else (1, 1, 2))
    iterations, method = rng.choice((3, 4)), rng.choice(list(METHODS))
    if method in ON_REPLAY:
        mode = "sync" if mode == "stream" else mode
        collectors = ranks * min(collectors, 1)
    words = [
        *SIZES,
        *rng.choice((REACHING, TABLETOP)),
        *METHODS[method],
        *rng.choice((*POCKET, *POCKET, POCKET[0], POCKET[0] if method == "dsrl" else PI0)),
        f"plan={allocation}",
        f"plan.ranks={ranks}",
        f"plan.slices={slices}",
        f"plan.rollout_workers={collectors}",
        f"mode={mode}",
        f"seed={seed}",
        f"train.iterations={iterations}",
        "train.decisions=2",
        f"train.eval_every={rng.choice((0, 1, 2))}",
        f"checkpoint.every={rng.choice((1, 1, 2, 3))}",
        f"checkpoint.keep={rng.choice((1, 2))}",
        f"curriculum={rng.choice(('uniform', 'success_rate', 'learning_progress'))}",
        f"logger={'tensorboard' if rng.random() < 0.2 else 'json'}",
        f"plan.learner={rng.choice(('replicated', 'sharded')) if ranks > 1 and method != 'dsrl' else 'replicated'}",
    ]
    if method not in ON_REPLAY:
        words += [f"algo.epochs={rng.choice((1, 2))}", f"train.late_starts={rng.choice((0, 0.5))}"]
        words += ["train.late_decisions=1"]
    if method in IN_GROUPS:
        words += [f"algo.dynamic_sampling={rng.choice((0, 3))}", "algo.longest_wait=3"]
    else:
        critics = ("privileged", "prefix") if method == "dsrl" else ("privileged", "prefix", "expert")
        words += [f"policy.critic={rng.choice(critics)}"]
    if method.startswith("ppo"):
        words += ["algo.critic_warmup=0"]
    if allocation == "split":
        words += [f"plan.workers={workers}", f"plan.order={order}"]
    if collectors == 0:
        words += [f"plan.policy={rng.choice(('shared', 'shared', 'process'))}"]
    if mode == "stream":
        words += ["segments=2"]
    if mode == "async":
        words += [f"staleness={staleness}"]
    simulators = slices * (workers if allocation == "split" else 1)
    words += [f"sim.num_envs={_count_envs(ranks, collectors or ranks, simulators)}"]
    return DrawnRun(tuple(words), iterations, staleness, exact=staleness == 0 and order == "exact")


def _count_envs(ranks: int, collectors: int, simulators: int) -> int:
    """At least two a simulator; each rank and each collector has whole groups of two."""
    return math.lcm(2 * collectors * simulators, 2 * ranks)
