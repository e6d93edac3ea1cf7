"""Stage costs: lines fitted to measurements, and their file."""

import json

import numpy as np
import pytest

from embodied_rl.training.planner.costs import CostFile, Costs, LinearCost
from tests.support.refusals import refuses


def test_a_line_is_fitted_under_noise():
    draw = np.random.default_rng(0)
    sizes = [8, 16, 32, 64] * 50
    values = [(0.02 + 0.003 * n) * draw.lognormal(0, 0.05) for n in sizes]
    line = LinearCost.fit(sizes, values)
    assert line.fixed == pytest.approx(0.02, rel=0.1)
    assert line.per_item == pytest.approx(0.003, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "values", "expected"),
    [
        ([1, 2, 4], [1.0, 2.1, 4.4], (0.0, 1.05)),  # the intercept would be negative
        ([1, 2, 4], [2.2, 2.1, 2.0], (2.1, 0.0)),  # the slope would be
    ],
)
def test_neither_part_of_a_line_is_negative(sizes, values, expected):
    line = LinearCost.fit(sizes, values)
    assert (line.fixed, line.per_item) == pytest.approx(expected, rel=0.03, abs=1e-12)


def test_a_line_needs_two_sizes():
    with refuses("costs-invalid", [4, 4]):
        LinearCost.fit([4, 4], [1.0, 1.1])


def test_ratio_and_fixed_share():
    costs = Costs(
        step=LinearCost(0.01, 0.001),
        render=LinearCost(0.01, 0.001),
        inference=LinearCost(0.02, 0.0005),
        update=LinearCost(),
    )
    assert costs.ratio(20) == pytest.approx(0.03 / 0.06)
    assert costs.fixed_share(20) == pytest.approx(0.02 / 0.06)


def test_a_file_of_costs_is_read_as_written(tmp_path):
    costs = Costs(
        step=LinearCost(0.1, 0.01),
        inference=LinearCost(0.2, 0.02),
        update=LinearCost(0.3, 0.03),
        jitter=0.3,
        step_on="device",
    )
    written = CostFile(costs, {"where": "here"}, {"step": 0.02})
    (tmp_path / "costs.json").write_text(written.text())
    assert CostFile.read(tmp_path / "costs.json") == written


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("{", ""),
        ("[]", ""),
        ('{"costs": {"stepp": {"fixed": 1}}}', "'stepp'. Did you mean 'step'"),
        ('{"costs": {"step": {"fixed": 1}, "update": {}}}', ": inference "),
        ('{"costs": {"step": {"fixed": 1}, "update": {}, "inference": 3}}', ": inference: "),
        ('{"costs": {"step": {"fixed": -1}, "update": {}, "inference": {}}}', "step.fixed"),
        ('{"costs": {"step": {"fixed": 1}, "update": {}, "inference": {}, "switch": NaN}}', ""),
    ],
)
def test_a_wrong_file_of_costs_is_refused(tmp_path, content, names):
    file = tmp_path / "costs.json"
    file.write_text(content)
    with refuses("costs-invalid", file, names):
        CostFile.read(file)


def test_a_missing_file_of_costs_is_refused_with_the_command_that_writes_one(tmp_path):
    with refuses("costs-missing", tmp_path, "embodied-rl plan"):
        CostFile.read(tmp_path / "none.json")


def test_a_file_needs_only_the_three_stages(tmp_path):
    file = tmp_path / "costs.json"
    stage = {"fixed": 1.0, "per_item": 0.5}
    file.write_text(json.dumps({"costs": {"step": stage, "inference": stage, "update": stage}}))
    assert CostFile.read(file).costs == Costs(LinearCost(1.0, 0.5), LinearCost(1.0, 0.5), LinearCost(1.0, 0.5))
