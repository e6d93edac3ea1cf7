"""Columns of numbers have the type of the dataset's description, or are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.info import DatasetError, Feature
from embodied_rl.datasets.lerobot.tables import read_numbers
from tests.support.making_datasets import made
from tests.support.refusals import refuses


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        (pa.array(["a", "b"]), "uint8", None),
        (pa.array([4, 260]), "uint8", None),
        (pa.array([-1, 2]), "uint8", None),
        (pa.array([1.0, float("nan")]), "uint8", None),
        (pa.array([1.5, 2.0]), "int64", None),
        (pa.array([2, 0]), "bool", None),
        (pa.array([1.0, 4.0]), "uint8", [1, 4]),
        (pa.array([1, 0]), "bool", [True, False]),
        (pa.array([0.1, float("nan")]), "float32", np.float32([0.1, np.nan]).tolist()),
        (pa.array([True, False]), "float32", [1.0, 0.0]),
    ],
)
def test_numbers_have_the_declared_type(values: pa.Array, dtype: str, found: list[Any] | None) -> None:
    """They are not truncated; only floats are rounded."""
    feature = Feature(dtype, (1,))
    if found is None:
        with refuses("dataset-damaged", "here", dtype, kind=DatasetError):
            read_numbers(values, feature, "here")
    else:
        np.testing.assert_array_equal(read_numbers(values, feature, "here").ravel(), np.array(found, dtype))


def test_frames_of_several_files_in_any_order(tmp_path: Path) -> None:
    dataset = LeRobotDataset(made(tmp_path / "data", 9, chunks_size=2, data_files_size_in_mb=0.15))
    assert len({episode.data for episode in dataset.episodes}) > 2
    rows = np.random.default_rng(0).integers(0, len(dataset), 300)
    assert dataset.column("index", rows).ravel().tolist() == rows.tolist()
