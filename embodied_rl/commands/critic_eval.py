"""`embodied-rl critic eval`: measure how reliable a scorer is, and whether its scores may be used as a reward."""

import asyncio
from pathlib import Path

from rich.console import Console

from embodied_rl.config.freeze import to_yaml
from embodied_rl.critic.assessment import assess_judge
from embodied_rl.critic.dataset_episodes import add_mismatches
from embodied_rl.critic.evaluation.calibration_fit import FILE as CALIBRATION
from embodied_rl.critic.evaluation.calibration_fit import (
    calibrate,
    check_calibration,
    describe_calibration,
    draw_calibration,
    write_calibration,
)
from embodied_rl.critic.evaluation.critic_report import (
    FILE,
    PAGE,
    describe_verdicts,
    make_report,
    make_table,
    make_verdicts,
    write_report,
)
from embodied_rl.critic.evaluation.episode_source import EpisodeSource, find_source
from embodied_rl.critic.evaluation.html_report import write_page
from embodied_rl.critic.sequence_scoring import build_scorer, choose_kind, judge_episodes, make_limits
from embodied_rl.interfaces.scorer import Scorer
from embodied_rl.judge.reward.run_scoring import check_scorer, name_model
from embodied_rl.schema import CriticEvalConfig
from embodied_rl.system.atomic_write import make_folder


def run(config: CriticEvalConfig) -> None:
    """Gather episodes, ask the scorer, print the table, and write `critic.json` and `critic.html`.

    Raises:
        UserError: see `open_evaluation`; or the scorer answered nothing.
    """
    source, scorer = open_evaluation(config)
    out = make_folder(Path(config.out), "out")
    console = Console(highlight=False)
    log = lambda line: console.print(line, markup=False, soft_wrap=True)  # noqa: E731 - a callback
    episodes = add_mismatches(source.gather(), config.seed)
    about = {"identity": scorer.traits.identity, "kind": choose_kind(scorer.traits), "source": source.description}
    judged = judge_episodes(scorer, episodes, make_limits(config.reward), config.others)
    found = assess_judge(episodes, judged, config.threshold, config.seed)
    report = make_report(found, episodes, about, config.threshold)
    write_report(out / FILE, report)
    fitted = calibrate(about["identity"], judged, config.seed) if config.calibrate else None
    drawn = "" if fitted is None else draw_calibration(fitted)
    write_page(out / PAGE, found, report, episodes, judged, to_yaml(config), drawn)
    log(f"{about['identity']}: {report['rests_on']['episodes']} episodes, {report['rests_on']['successes']} successes")
    console.print(make_table(found))
    if fitted is not None:
        write_calibration(out / CALIBRATION, fitted)
        for line in (*describe_calibration(fitted), f"Written: {out / CALIBRATION}"):
            log(line)
    for line in (*describe_verdicts(make_verdicts(found)), f"Written: {out / FILE}", f"Written: {out / PAGE}"):
        log(line)


def open_evaluation(config: CriticEvalConfig) -> tuple[EpisodeSource, Scorer]:
    """Find the episodes and the scorer, and check that it answers, before anything is simulated.

    Raises:
        UserError: there are no episodes, they do not fit the scorer, or it does not answer.
    """
    source = find_source(config)
    check_calibration(config)
    scorer = build_scorer(name_model(config.reward, source.spec), source.spec)
    choose_kind(scorer.traits)
    asyncio.run(check_scorer(scorer, config.reward.timeout))
    return source, scorer


def check_evaluation(config: CriticEvalConfig) -> None:
    """Check what `open_evaluation` does, for a dry run."""
    open_evaluation(config)
