"""Normalisation of each entry, its inverse, and invalid statistics."""

import numpy as np
import pytest
import torch

from embodied_rl.actors.embodiment import Normalisation
from tests.support.refusals import refuses

COLUMNS = np.stack([np.arange(101.0), 10 * np.arange(101.0) - 500, np.full(101, 7.0)], axis=1)
"""0 … 100; -500 … 500; a constant."""


def test_quantiles_of_each_column_become_minus_one_and_one() -> None:
    """By hand: 1 % and 99 % of 0 … 100 are 1 and 99; a constant lies in the middle of two units."""
    found = Normalisation.from_values(COLUMNS, "quantiles")
    assert (found.kind, found.center, found.scale) == (
        "quantiles",
        pytest.approx((50, 0, 7)),
        pytest.approx((49, 490, 1)),
    )


def test_mean_and_deviation_are_those_of_each_column() -> None:
    """The variance of 0 … 100 is (101² - 1) / 12; a constant keeps its unit."""
    found = Normalisation.from_values(COLUMNS)
    assert found.kind == "mean_std"
    assert found.center == pytest.approx((50, 0, 7))
    assert found.scale == pytest.approx((850**0.5, 10 * 850**0.5, 1))


def test_there_and_back() -> None:
    bounds = Normalisation.from_bounds("limits", [-1, 0, 5], [3, 0.1, 6])
    assert bounds.normalise(torch.tensor([[-1, 0, 5], [3, 0.1, 6], [1, 0.05, 5.5]])).tolist() == [
        [-1, -1, -1],
        [1, 1, 1],
        pytest.approx([0, 0, 0], abs=1e-6),
    ]
    values = np.array([[0.5, 0.02, 5.7]])
    assert bounds.restore(bounds.normalise(torch.from_numpy(values)).numpy()) == pytest.approx(values, rel=1e-6)
    assert len(bounds) == 3 and Normalisation.identity(2) == Normalisation("identity", (0, 0), (1, 1))


@pytest.mark.parametrize(
    ("center", "scale", "kept"),
    [
        ((2, 0), (3, 1e-6), 1),
        ((2, 1e-5), (3, 1e-5), 1),
        ((2, 0), (3, 2e-5), 2),
        ((2, -1), (3, 1e-6), 2),
        ((2,), (3,), 1),
    ],
)
def test_only_padding_is_cut_off(center: tuple, scale: tuple, kept: int) -> None:
    assert len(Normalisation("mean_std", center, scale).unpadded(1)) == kept


@pytest.mark.parametrize(
    ("kind", "center", "scale", "named"),
    [
        ("means", (0.0,), (1.0,), "'means'"),
        ("mean_std", (0.0, 1.0), (1.0,), "2 centres"),
        ("mean_std", (float("nan"),), (1.0,), "finite"),
        ("mean_std", (0.0,), (float("inf"),), "finite"),
        ("mean_std", (0.0, 0.0), (1.0, 0.0), "every scale positive"),
        ("mean_std", (0.0,), (-1.0,), "every scale positive"),
    ],
)
def test_impossible_statistics_are_refused(kind: str, center: tuple, scale: tuple, named: str) -> None:
    with refuses("statistics-invalid", named):
        Normalisation(kind, center, scale)
