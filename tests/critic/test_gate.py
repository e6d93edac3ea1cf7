"""The gate: which critics pass, what is said to the others, and who asks for it."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.config.freeze import freeze_config, thaw_config
from embodied_rl.critic.assessment import MEANINGS, Assessment
from embodied_rl.critic.evaluation.critic_report import FORMAT, VERSION
from embodied_rl.critic.evaluation.validation import (
    check_run_scorer,
    read_evaluation,
    read_stored_measures,
)
from embodied_rl.critic.gate import CRITERIA, LEAST_COUNT, GateVerdict, Use, check_gate
from embodied_rl.critic.measures import Estimate, estimate_share
from embodied_rl.critic.pipeline import Material, describe_critic
from embodied_rl.critic.scorer import CriticScorer
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScorerTraits
from embodied_rl.schema import CriticTrainConfig, RewardNode, SimNode
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.judging import PROGRESS_SPEC
from tests.support.refusals import refuses

CONFIG = CriticTrainConfig(SimNode("tabletop"))
ROOT = Path(__file__).parents[2]
GOOD = {
    "valid": 1.0, "voc": 0.98, "gap_object": 0.89, "gap_task": 0.81, "wrong_object_share": 0.008, "failures": 0.77,
    "done_recall": 0.73, "done_false": 0.044,
}  # fmt: skip
"""A critic on a policy's features, as measured on the tabletop."""
BLIND = GOOD | {"voc": 0.94, "gap_object": 0.22, "gap_task": 0.52, "wrong_object_share": 0.48, "failures": 0.44}
"""One that cannot tell the object."""


def measured(values: Mapping[str, float | None], count: int = 200) -> dict[str, Estimate]:
    """Measures with an interval of a hundredth to either side."""
    bounds = {name: (None,) * 2 if v is None else (v - 0.01, v + 0.01) for name, v in values.items()}
    return {name: Estimate(value, *bounds[name], count) for name, value in values.items()}


def write(folder: Path, values: Mapping[str, float | None] = GOOD, **changes: Any) -> Path:
    measures = {name: asdict(each) for name, each in measured(values).items()}
    said = {"format": FORMAT, "version": VERSION, "identity": "critic a1b2", "measures": measures, "more": 1}
    path = folder / "critic.json"
    path.write_text(json.dumps(said | changes))
    return path


def test_voc_alone_does_not_pass() -> None:
    verdict = check_gate(measured(BLIND), "shaping")
    assert check_gate(measured(GOOD), "terminal") == check_gate(measured(GOOD), "shaping") == GateVerdict(True)
    assert not verdict.passed and [reason.split()[0] for reason in verdict.reasons] == [
        "gap_object", "wrong_object_share", "failures",
    ]  # fmt: skip
    assert "gap_object is 0.22 [0.21, 0.23]" in verdict.reasons[0] and "at least 0.5" in verdict.reasons[0]


@pytest.mark.parametrize("criterion", CRITERIA, ids=lambda each: each.measure)
def test_each_criterion_decides(criterion: Any) -> None:
    use, bound = criterion.uses[-1], criterion.least if criterion.least is not None else criterion.most
    good, better = measured(GOOD), bound + (0.05 if criterion.least is not None else -0.05)
    low, high = sorted((bound, better))
    wide = Estimate(better, low - 0.01, high + 0.01, 200)
    assert check_gate(good | {criterion.measure: Estimate(better, low, high, LEAST_COUNT)}, use).passed
    rare, without_interval = Estimate(better, low, high, LEAST_COUNT - 1), Estimate(better, count=200)
    for bad in (wide, Estimate(None), rare, without_interval, Estimate(better, *(float("nan"),) * 2, 200)):
        verdict = check_gate(good | {criterion.measure: bad}, use)
        assert not verdict.passed and criterion.measure in verdict.reasons[0]
    without = {name: each for name, each in good.items() if name != criterion.measure}
    assert "was not measured" in check_gate(without, use).reasons[0]


@pytest.mark.parametrize(
    ("measure", "row"),
    [
        ("valid", "requests with a valid score"), ("voc", "VOC: order of time"), ("failures", "order of the truth on"),
        ("gap_object", "gap at the end to another object, and"), ("gap_task", "gap at the end to another object, and"),
        ("wrong_object_share", "wrong objects above one half"), ("done_recall", "done: successes that it says"),
        ("done_false", "done: failures called successes"),
    ],
)  # fmt: skip
def test_the_documented_thresholds_are_those_of_the_gate(measure: str, row: str) -> None:
    (line,) = (each for each in (ROOT / "docs/judges.md").read_text().splitlines() if each.startswith(f"| {row}"))
    (sign, number, percent), *_ = re.findall(r"([≥≤]) ([.\d]+)( %)?", line)
    criterion = next(each for each in CRITERIA if each.measure == measure)
    bound = criterion.least if sign == "≥" else criterion.most
    assert bound == pytest.approx(float(number) / (100 if percent else 1))


@pytest.mark.parametrize(
    ("measure", "wrong", "fewest"),
    [("done_false", 0, 35), ("done_false", 7, 140), ("wrong_object_share", 0, 73), ("wrong_object_share", 1, 110)],
)
def test_a_share_needs_as_many_cases_as_documented(measure: str, wrong: int, fewest: int) -> None:
    for cases in (LEAST_COUNT + 1, fewest - 1, fewest):
        found = measured(GOOD) | {measure: estimate_share(wrong, cases)}
        assert check_gate(found, "terminal").passed == (cases == fewest)
    (line,) = (each for each in (ROOT / "docs/judges.md").read_text().splitlines() if each.startswith(f"| {wrong} |"))
    assert str(fewest) in line.split()


def test_done_matters_where_it_is_the_reward() -> None:
    found = measured(GOOD | {"done_false": 0.5})
    assert check_gate(found, "shaping").passed and not check_gate(found, "terminal").passed


def test_reports_are_judged_anew(tmp_path: Path) -> None:
    path = write(tmp_path, BLIND, verdicts={"shaping": {"passed": True, "reasons": []}})
    assert not check_gate(read_evaluation(path)[1], "shaping").passed
    assert check_gate(read_evaluation(write(tmp_path))[1], "terminal").passed


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "a report"}, "critic eval"),
        ({"version": 7}, "version 7"),
        ({"identity": 3}, "identity"),
        ({"measures": {"voc": {"value": "high"}}}, "measures.voc.value"),
        ({"measures": {"voc": {"valeu": 1}}}, "valeu"),
        ({"measures": [1]}, "measures"),
        ({}, "damaged"),
    ],
    ids=str,
)
def test_foreign_and_damaged_reports(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = write(tmp_path, **changes)
    if not changes:
        path.write_text("[")
    with pytest.raises(UserError, match=said) as problem:
        read_evaluation(path)
    assert str(path) in str(problem.value) and "\n" not in str(problem.value)


# -- what a critic's file carries --------------------------------------------------------------------------------------

CARRIED = {name: asdict(each) for name, each in measured(GOOD).items()} | {"episodes": 900, "threshold": 0.95}


def check_carried(held_out: Any, use: Use = "shaping") -> GateVerdict:
    measures = read_stored_measures({"held_out": held_out})
    assert measures is not None
    return check_gate(measures, use)


def test_a_file_carries_measures_and_not_a_verdict() -> None:
    assert check_carried(CARRIED).passed and check_carried(CARRIED, "terminal").passed
    bad = check_carried(CARRIED | {"gap_object": asdict(Estimate(0.2, 0.1, 0.6, 99)), "passed": True})
    assert "gap_object is 0.2 [0.1, 0.6]" in bad.reasons[0]


def test_what_is_written_into_a_file_is_what_is_read() -> None:
    found = Assessment(dict.fromkeys(MEANINGS, Estimate(None)) | measured(GOOD), {}, (), (), {}, "done")
    provenance = json.loads(json.dumps(describe_critic(CONFIG, Material((), ()), found)))
    assert check_carried(provenance["held_out"], "terminal") == GateVerdict(True)


def test_too_few_held_out_episodes_are_refused_before_anything_is_gathered() -> None:
    with pytest.raises(UserError, match="held_out"):
        freeze_config(CriticTrainConfig, thaw_config(CONFIG) | {"held_out": 100})
    assert freeze_config(CriticTrainConfig, thaw_config(CONFIG)) == CONFIG


def test_a_file_without_intervals_decides_nothing() -> None:
    assert read_stored_measures({}) is None and read_stored_measures({"held_out": 3}) is None
    verdict = check_carried(GOOD | {"episodes": 900})
    assert not verdict.passed and "critic eval" in verdict.reasons[0]


@pytest.mark.parametrize(
    "value", [None, "0.99", [1], True, {}, {"value": "1"}, {"value": 1.0, "low": "0.9"}, {"valeu": 1.0}], ids=str
)
def test_what_is_no_measure_was_not_measured(value: Any) -> None:
    assert check_carried(CARRIED | {"voc": value}).reasons[0].startswith("voc ")


class Learned(CriticScorer):
    Config: Any = None

    def __init__(self, provenance: dict[str, Any]) -> None:
        self.provenance, self.traits = provenance, ScorerTraits(("absolute",), "critic a1b2")


def test_a_learned_critic_must_have_passed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    carried, reward = {"held_out": CARRIED}, RewardNode("embedded")
    made = lambda node: (lambda options, spec: Learned(carried), None)  # noqa: E731
    monkeypatch.setattr("embodied_rl.critic.evaluation.validation.configure_scorer", made)
    assert check_run_scorer(reward, PROGRESS_SPEC) is None
    carried["held_out"] = CARRIED | {"done_false": asdict(Estimate(0.5, 0.4, 0.6, 99))}
    assert check_run_scorer(reward, PROGRESS_SPEC) is None
    with refuses("scorer-not-passed", "done_false is 0.5 ", "reward.mode=audit"):
        check_run_scorer(replace(reward, mode="terminal"), PROGRESS_SPEC)
    assert check_run_scorer(replace(reward, mode="audit"), PROGRESS_SPEC) is None
    examined = replace(reward, mode="terminal", examined=str(write(tmp_path)))
    assert check_run_scorer(examined, PROGRESS_SPEC) is None, "a report counts more than the file"
    write(tmp_path, BLIND)
    with refuses("scorer-not-passed", "critic.json"):
        check_run_scorer(replace(examined, mode="late"), PROGRESS_SPEC)
    write(tmp_path, identity="critic c3d4")
    with refuses("report-of-another-scorer", "a1b2", "c3d4"):
        check_run_scorer(examined, PROGRESS_SPEC)
    del carried["held_out"]
    with refuses("scorer-not-evaluated"):
        check_run_scorer(reward, PROGRESS_SPEC)


def test_scorers_for_experiments_need_no_evaluation() -> None:
    assert check_run_scorer(RewardNode("scripted"), PROGRESS_SPEC) is None
    assert check_run_scorer(RewardNode(), PROGRESS_SPEC) is None
    warning = check_run_scorer(RewardNode("vlm", options={"url": "http://127.0.0.1:9/v1"}), PROGRESS_SPEC)
    assert warning is not None and "has not been evaluated" in warning and "\n" not in warning


@pytest.mark.parametrize("mode", ["late", "terminal"])
def test_the_shipped_critic_passed(mode: Any) -> None:
    assert check_run_scorer(RewardNode("embedded", mode=mode), spec_of(TabletopConfig())) is None
