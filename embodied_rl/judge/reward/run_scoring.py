"""The scorers of a run: what is checked before it starts, and which writer each collector gets."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from embodied_rl.config import plugins
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Scorer, ScorerError, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.labels import list_columns
from embodied_rl.judge.requests.service import open_scorer
from embodied_rl.judge.reward.distill import Distiller, LabelWriter
from embodied_rl.judge.reward.scoring_writer import ScoringOptions, ScoringWriter
from embodied_rl.judge.scorers.cost import check_budget, check_prices
from embodied_rl.judge.scorers.http_json import explain_failure
from embodied_rl.judge.scorers.registry import configure_scorer, resolve_scorer
from embodied_rl.judge.scorers.vlm import NoSuchModelError, VlmScorer
from embodied_rl.rollout.buffer import Columns
from embodied_rl.rollout.writer import WriterFactory
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import RewardNode, TrainConfig

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


def check_reward(config: TrainConfig, spec: SimulatorSpec, needs: Needs) -> None:
    """Check that the run's scorer fits simulator and algorithm, and that it answers.

    Raises:
        UserError: the scorer or a key is unknown or does not fit the simulator, shaping has no effect on the
            algorithm, or the scorer's server cannot be used.
    """
    reward = config.reward
    if reward.name is None:
        if reward.options:
            key = next(iter(reward.options))
            raise UserError(
                f"reward.{key} has no meaning without a scorer: choose one with reward=<name>.", code="key-unused"
            )
        if reward.mode == "distill":
            raise UserError(
                "reward.mode=distill needs a scorer that the head learns from: choose one with reward=<name>.",
                code="scorer-missing",
            )
        return
    if reward.mode in ("late", "sync", "distill") and (needs.discount is None or not needs.critic):
        raise UserError(
            f"algo.name={config.algo.name} compares the returns of episodes that start alike, from which shaping by a "
            f"potential cancels: reward.mode={reward.mode} would change nothing. reward.mode=audit logs the scores; "
            "algo=flow_sde and algo=flow_noise learn from them.",
            code="reward-mode-without-effect",
        )
    kind, options = configure_scorer(reward)
    scorer = kind(options, spec)
    known = ", ".join(scorer.traits.kinds)
    if reward.mode == "terminal":
        check_terminal(config, scorer.traits)
    elif reward.mode == "distill" and "absolute" not in scorer.traits.kinds:
        raise UserError(
            f"reward.mode=distill learns how far a task is from single observations; reward.name={reward.name} answers "
            f"only: {known}. reward.mode=late makes potentials of pairs.",
            code="scorer-kind-unsupported",
        )
    elif not {"absolute", "pair"} & set(scorer.traits.kinds):
        raise UserError(
            f"reward.name={reward.name} judges neither observations nor pairs of them, but only: {known}.",
            code="scorer-kind-unsupported",
        )
    check_prices(reward, scorer.traits.counts_tokens)
    asyncio.run(check_scorer(scorer, reward.timeout))
    check_budget(reward, scorer.traits.counts_tokens)


def check_terminal(config: TrainConfig, traits: ScorerTraits) -> None:
    """Check that the scorer judges "done" and the simulator does not end episodes at success, or raise `UserError`."""
    if not traits.judges_done and "done" not in traits.kinds:
        raise UserError(
            f"reward.mode=terminal needs a scorer that says when a task is done; reward.name={config.reward.name} says "
            f"only how far it is ({traits.identity}).",
            code="scorer-without-done",
        )
    _, options = plugins.configure_plugin("sims", config.sim, "sim")
    if getattr(options, "terminate_on_success", False):
        raise UserError(
            f"reward.mode=terminal: sim.name={config.sim.name} ends an episode when its own goal is reached, before "
            "the scorer can see that. Add sim.terminate_on_success=false.",
            code="simulator-ends-at-success",
        )


def describe_reward(reward: RewardNode) -> list[str]:
    """Return the lines about the reward that the user reads at the start of a run."""
    judge = resolve_scorer(reward).name
    lines = [] if judge == reward.name else [f"Reward: without a server, reward={reward.name} means reward={judge}."]
    if judge is None:
        return lines
    if reward.mode == "rises":
        lines.append(
            f"Reward: each rise of what {judge} says is paid (mode=rises). This changes what is optimal: to fall and "
            "rise again pays, too. reward.mode=late shapes by the same scores, and does not."
        )
    elif reward.mode == "distill":
        lines.append(
            f"Reward: a head ({reward.head}) learns from {judge}; its predictions alone enter the reward "
            "(mode=distill)."
        )
        if reward.distill.bonus:
            lines.append(
                "Reward: reward.distill.bonus=true changes what is optimal: predictions are rewards, no potentials."
            )
    elif reward.mode == "terminal":
        lines.append(
            f"Reward: {judge} alone says when a task is done (mode=terminal). This changes what is optimal: the "
            "policy learns what the scorer takes for done. The simulator's success is only measured."
        )
    return lines


def name_model(reward: RewardNode, spec: SimulatorSpec) -> RewardNode:
    """Return the settings with the name of the only model of a server, where `reward.model` is open.

    So the name is part of the scorer's identity: in the run's configuration, its logs, calibrations and reports.

    Raises:
        UserError: the settings are wrong, the server cannot be asked, or it has several models or none.
    """
    model = _find_model(reward, spec)
    return reward if model is None else replace(reward, options=reward.options | {"model": model})


def check_model(reward: RewardNode, spec: SimulatorSpec) -> None:
    """Check that the server of a run that goes on still has the run's model, or raise `UserError`.

    A server that is down may come back.
    """
    _find_model(reward, spec, resumed=True)


def _find_model(reward: RewardNode, spec: SimulatorSpec, resumed: bool = False) -> str | None:
    """Return the model that a server has for an open `reward.model`; None for other scorers and settings.

    In a resumed run a server is asked in any case, and only a missing model is an error.
    """
    node = resolve_scorer(reward)
    if node.name is None:
        return None
    kind, options = plugins.configure_plugin("scorers", node, "reward")
    if kind is not VlmScorer or (options.model is not None and not resumed):
        return None
    scorer = VlmScorer(options, spec)
    try:
        return asyncio.run(_ask_scorer(scorer, scorer.choose_model, reward.timeout))
    except (ScorerError, UserError) as error:
        if resumed and not isinstance(error, NoSuchModelError):
            log.warning("The scorer's server does not answer now: %s", error)
            return None
        if isinstance(error, UserError):
            raise
        raise explain_failure(options.url, options.key_variable, error) from None


async def check_scorer(scorer: Scorer, timeout: float) -> None:
    """Check that a scorer answers within `timeout` seconds, or raise `UserError`."""
    await _ask_scorer(scorer, scorer.check, timeout)


async def _ask_scorer(scorer: Scorer, ask: Callable[[], Coroutine[Any, Any, Answer]], timeout: float) -> Answer:
    await open_scorer(scorer)
    try:
        return await asyncio.wait_for(ask(), timeout)
    except TimeoutError:
        raise UserError(
            f"the scorer did not answer within reward.timeout={timeout:g} s. Is its server still loading its model? "
            "Otherwise give a longer reward.timeout.",
            code="scorer-timeout",
        ) from None
    finally:
        await scorer.close()


def make_scoring(
    config: TrainConfig, spec: SimulatorSpec, needs: Needs, decisions: int, folder: RunFolder
) -> tuple[WriterFactory, ...]:
    """Return the factory of the writers that ask the run's scorer in rollouts of T decisions; nothing without one."""
    if config.reward.name is None:
        return ()
    options = ScoringOptions(
        config.reward,
        configure_scorer(config.reward),
        spec,
        decisions,
        needs.discount,
        config.train.time_limit == "terminal",
        config.plan.collectors,
        str(folder.path),
    )
    return (WriterFactory(f"{__name__}:{make_writer.__name__}", options),)


def make_writer(options: ScoringOptions, number: int) -> ScoringWriter:
    """Build the writer of collector `number`; for a `WriterFactory`."""
    return (LabelWriter if options.reward.mode == "distill" else ScoringWriter)(options, number)


def list_extra_columns(reward: RewardNode, spec: SimulatorSpec) -> Columns:
    """Return what collectors note in their rollouts for a head; nothing where there is none."""
    if reward.name is None or reward.mode != "distill":
        return {}
    return list_columns(HeadInputs(spec, reward.distill.pixels))


def make_distiller(config: TrainConfig, spec: SimulatorSpec, needs: Needs, ranks: Ranks) -> Distiller | None:
    """Return the head of one rank's rollouts, or None for a run without one."""
    if config.reward.name is None or config.reward.mode != "distill":
        return None
    assert needs.discount is not None, "`check_reward` requires it"
    return Distiller(
        config.reward,
        HeadInputs(spec, config.reward.distill.pixels),
        needs.discount,
        config.train.time_limit == "terminal",
        config.seed,
        config.sim.num_envs // ranks.size,
        ranks,
    )
