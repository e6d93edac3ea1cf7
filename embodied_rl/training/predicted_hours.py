"""Least hours of a run's network on one GPU, from operations counted in shapes and an assumed efficiency."""

from collections.abc import Sequence

import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.head import HeadActor
from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.actors.learning.update_memory import MARKED, make_blank_trace
from embodied_rl.actors.network_actor import read_inputs
from embodied_rl.actors.sequence import SequenceActor
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.schema import TrainConfig

EFFICIENCY = 0.35
"""Assumed, not measured: the part of a card's operations that is reached; the one of docs/scale.md."""
CARDS: dict[float, tuple[str, float]] = {
    24: ("RTX 4090", 165.2e12),
    48: ("L40S", 362e12),
    80: ("H100", 989.5e12),
    141: ("H200", 989.5e12),
}
"""By memory in GB: a card, and its bfloat16 operations a second with float32 sums, without sparsity.

Sources: NVIDIA Ada GPU Architecture whitepaper, appendix A; data sheets of L40S, H100 SXM and H200 SXM (halves of the
figures with sparsity).
"""


def describe_hours(
    config: TrainConfig, needs: Needs, actor: Actor, rows: int, update: float, sizes: Sequence[float]
) -> str:
    """Describe the hours that the network takes on cards of these sizes, or why they are not known.

    Args:
        config: of the run, with `policy.precision` and `policy.autocast` resolved.
        needs: of its algorithm.
        actor: the run's outline, which may have been counted before; it serves further counts only afterwards.
        rows: decisions of a rollout in all environments.
        update: operations of one row of the update.
        sizes: memory of the cards that the run fits, in GB.
    """
    if not config.policy.autocast or needs.learns_from != "rollouts":
        return "not known for products in float32, or for learning from replay. embodied-rl plan measures this machine"
    if (decision := count_decision(config, needs, actor)) is None:
        return "not known for this kind of policy. embodied-rl plan measures this machine"
    each = decision + needs.epochs * update
    work = config.train.iterations * rows * each
    names = {size: CARDS[size] for size in sizes if size in CARDS}
    hours = [f"{name} {work / (EFFICIENCY * speed) / 3600:,.0f}" for name, speed in names.values()]
    counted = f"{decision / 1e12:.3g} · 10¹² operations a decision, {update / 1e12:.3g} · 10¹² a row of each epoch"
    return (
        f"of the network alone, if a card reaches {EFFICIENCY:.0%} of its bfloat16 operations (an assumption): "
        f"{', '.join(hours) or 'no such card'}. {counted}. The simulator's time is not known here and comes on top; "
        "embodied-rl plan measures it"
    )


def count_decision(config: TrainConfig, needs: Needs, actor: Actor) -> float | None:
    """Count the operations of a decision with its value: the prefix, and an action head or the steps of a flow.

    A flow takes a velocity for each denoise step, and one more for a critic that reads the expert. None for policies
    that are neither, and for sequences, whose length is not known.
    """
    if not isinstance(actor, FlowActor | HeadActor) or isinstance(actor, SequenceActor):
        return None
    actor.keep = "images"
    with ShapeMode() as shapes, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        actor = actor.to_empty(device="cpu")
        network = actor.backbone
        inputs = read_inputs(make_blank_trace(actor.input_spec(), MARKED))
        chunk = torch.zeros(MARKED, network.spec.horizon, network.spec.action_dim)
        shapes.operations = 0
        context = network.encode(inputs)
        prefix = shapes.operations
        if isinstance(actor, HeadActor):
            actor.choose(context, None)
            return shapes.operations / MARKED
        actor.backbone.velocity(chunk, torch.ones(MARKED), context)
    velocities = config.algo.sampler.denoise_steps + (needs.critic and config.policy.critic == "expert")
    return (prefix + velocities * (shapes.operations - prefix)) / MARKED
