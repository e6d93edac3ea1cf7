"""Evaluation while inference takes time: how each part is run, and what a report says of it."""

from collections.abc import Callable, Sequence
from typing import Any

from embodied_rl.config.schema import EvalConfig
from embodied_rl.evaluate.benchmark import EvaluationPart
from embodied_rl.interfaces.errors import UserError
from embodied_rl.rollout.delay import Chunks, Delay, choose_delay


def find_delay(config: EvalConfig, part: EvaluationPart, who: str, read: Callable[[], Chunks | None]) -> Delay | None:
    """Return how a part is run under the configured delay; None without one.

    Args:
        config: of the evaluation.
        part: what is run.
        who: by whom.
        read: returns its chunks; None where it chooses one action at a time.

    Raises:
        UserError: the policy or the simulator cannot be run so; see `choose_delay`.
    """
    if not config.delay and config.replan is None:
        return None
    if (chunks := read()) is None:
        raise UserError(f"delay={config.delay}: {who} chooses one action at a time. Leave delay and replan out.")
    if config.delay and any(each := part.kind.node.options.get("inference_delay") or ()):
        said = f"sim.inference_delay={each} already lets the robot wait. Add sim.inference_delay=[0,0]"
        raise UserError(f"delay={config.delay}: {said}, or leave delay out.")
    return choose_delay(config.delay, config.strategy, config.replan, config.hold, chunks, part.spec)


def describe_delays(config: EvalConfig, delays: Sequence[Delay | None]) -> dict[str, Any]:
    """Return what a report says of the delays of all parts."""
    found = [delay for delay in delays if delay is not None]
    if not found:
        return {"delay": 0}
    strategies, replans = ({getattr(delay, name): None for delay in found} for name in ("strategy", "replan"))
    texts = [", ".join(map(str, each)) for each in (strategies, replans)]
    return {"delay": config.delay, "strategy": texts[0], "replan": texts[1] if len(replans) > 1 else found[0].replan}
