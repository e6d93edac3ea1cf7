"""`embodied-rl critic eval`: measure what a scorer is worth, and say whether its scores may become a reward."""

import asyncio
from pathlib import Path

from rich.console import Console

from embodied_rl.config.freeze import to_yaml
from embodied_rl.config.schema import CriticEvalConfig
from embodied_rl.critic.assessment import assess_judge
from embodied_rl.critic.evaluation import add_mismatches, build_scorer, choose_kind, judge_episodes, make_limits
from embodied_rl.critic.examination.calibrating import FILE as CALIBRATION
from embodied_rl.critic.examination.calibrating import (
    calibrate,
    check_calibration,
    describe_calibration,
    draw_calibration,
    write_calibration,
)
from embodied_rl.critic.examination.episode_source import EpisodeSource, find_source
from embodied_rl.critic.examination.page import write_page
from embodied_rl.critic.examination.report import (
    FILE,
    PAGE,
    describe_verdicts,
    judge_uses,
    make_report,
    make_table,
    write_report,
)
from embodied_rl.interfaces.scorer import Scorer
from embodied_rl.judge.reward.run_scoring import check_scorer, name_model
from embodied_rl.runs.atomic_write import make_folder


def run(config: CriticEvalConfig) -> None:
    """Gather episodes, ask the scorer, print the table, and write `critic.json` and `critic.html`.

    Raises:
        UserError: see `find_examined`; or the scorer answered nothing.
    """
    source, scorer = find_examined(config)
    out = make_folder(Path(config.out), "out")
    console = Console(highlight=False)
    say = lambda line: console.print(line, markup=False, soft_wrap=True)  # noqa: E731 - a callback
    episodes = add_mismatches(source.gather(), config.seed)
    told = {"identity": scorer.traits.identity, "kind": choose_kind(scorer.traits), "source": source.told}
    judged = judge_episodes(scorer, episodes, make_limits(config.reward), config.others)
    found = assess_judge(episodes, judged, config.threshold, config.seed)
    report = make_report(found, episodes, told, config.threshold)
    write_report(out / FILE, report)
    fitted = calibrate(told["identity"], judged, config.seed) if config.calibrate else None
    drawn = "" if fitted is None else draw_calibration(fitted)
    write_page(out / PAGE, found, report, episodes, judged, to_yaml(config), drawn)
    say(f"{told['identity']}: {report['rests_on']['episodes']} episodes, {report['rests_on']['successes']} successes")
    console.print(make_table(found))
    if fitted is not None:
        write_calibration(out / CALIBRATION, fitted)
        for line in (*describe_calibration(fitted), f"Written: {out / CALIBRATION}"):
            say(line)
    for line in (*describe_verdicts(judge_uses(found)), f"Written: {out / FILE}", f"Written: {out / PAGE}"):
        say(line)


def find_examined(config: CriticEvalConfig) -> tuple[EpisodeSource, Scorer]:
    """Find the episodes and the scorer, and check that it answers, before anything is simulated.

    Raises:
        UserError: there are none, they do not fit each other, or the scorer does not answer.
    """
    source = find_source(config)
    check_calibration(config)
    scorer = build_scorer(name_model(config.reward, source.spec), source.spec)
    choose_kind(scorer.traits)
    asyncio.run(check_scorer(scorer, config.reward.timeout))
    return source, scorer


def check_evaluation(config: CriticEvalConfig) -> None:
    """Check what `find_examined` does, for a dry run."""
    find_examined(config)
