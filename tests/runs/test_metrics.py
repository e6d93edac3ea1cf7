"""metrics.jsonl holds one valid JSON object per iteration; a resumed run continues at its checkpoint."""

import json
import warnings

import numpy as np
import pytest
import torch

from embodied_rl.runs.metrics_file import MetricsWriter, find_first_reached, read_metrics
from embodied_rl.system.atomic_write import StorageError
from tests.support.refusals import refuses


def write(path, iterations, resumed=None):
    with MetricsWriter(path, resumed) as writer:
        for iteration in iterations:
            writer.write(iteration, {"rollout/success": iteration / 10})


def test_values_of_every_type_become_json(tmp_path):
    values = {
        "a": np.float32(0.5),
        "b": torch.tensor(2),
        "c": float("nan"),
        "d": 3,
        "e": "text",
        "f": np.inf,
        "g": True,
    }
    with MetricsWriter(tmp_path / "metrics.jsonl") as writer:
        writer.write(7, values)
        line = (tmp_path / "metrics.jsonl").read_text()  # written at once
    expected = {"iteration": 7, "a": 0.5, "b": 2, "c": None, "d": 3, "e": "text", "f": None, "g": True}
    assert json.loads(line, parse_constant=pytest.fail) == expected


def test_a_resumed_run_removes_later_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    write(path, range(1, 8))
    with path.open("a") as file:
        file.write('{"iteration": 8, "rollout/succ')
    write(path, [5, 6], resumed=4)
    write(tmp_path / "whole", range(1, 7))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes(), "as of an uninterrupted run"


@pytest.mark.parametrize(
    "damage",
    [b'{"iteration": 3, "roll', b"\xff\xfe\x80", b"", b"[3]", b'{"iteration": 3} 4', b'{"a": 1%s}' % (b"0" * 400)],
)
def test_a_damaged_line_is_skipped_with_a_warning(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 7))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]))
    with pytest.warns(RuntimeWarning, match=rf"{path} .* line 3\."):
        assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 4, 5, 6]
    with pytest.warns(RuntimeWarning, match="line 3"):
        write(path, [6], resumed=5)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (None, "5 of 5 iterations, from 1 to 5"),
        ([], "5 of 5 iterations"),
        ([1, 2, 3], "2 of 5 iterations, from 4 to 5"),
    ],
)
def test_missing_iterations_of_a_resumed_run_are_listed(tmp_path, kept, expected):
    path = tmp_path / "metrics.jsonl"
    if kept is not None:
        write(path, kept)
    with pytest.warns(RuntimeWarning, match=rf"{path} .*{expected}"):
        write(path, [6, 7], resumed=5)
    assert [row["iteration"] for row in read_metrics(path)] == [*(kept or []), 6, 7]


@pytest.mark.parametrize("part", [b'{"iteration": 7, "ro', b'{"name": "\xc3', b""])
def test_an_incomplete_last_line_is_skipped_without_a_warning(tmp_path, part):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 7))
    with path.open("ab") as file:
        file.write(part)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [row["iteration"] for row in read_metrics(path)] == list(range(1, 7))


def test_a_full_disk_is_reported_at_a_write_and_at_the_end(tmp_path, files_up_to):
    path = tmp_path / "metrics.jsonl"
    full = "disk-full", "metrics.jsonl", "run.root"
    with files_up_to(100), refuses(*full, kind=StorageError), MetricsWriter(path) as writer, refuses(*full):
        for iteration in range(1, 4):
            writer.write(iteration, {"rollout/success": 0.123456789})


def test_find_first_reached_success():
    rows = [
        {"iteration": number, "time/elapsed": 2.0 * number, **({} if success is None else {"eval/success": success})}
        for number, success in enumerate([None, 0.4, 0.72, None, 0.69, 0.9], start=1)
    ]
    assert find_first_reached(rows, 0.4) == (2, 4.0)
    assert find_first_reached(rows, 0.7) == (3, 6.0)
    assert find_first_reached(rows, 0.9) == (6, 12.0)
    assert find_first_reached(rows, 0.91) is None and find_first_reached([], 0.1) is None


@pytest.mark.parametrize("remove", ["root", "run", "file"])
def test_a_removed_file_is_reported_at_the_next_write(tmp_path, remove):
    run = tmp_path / "runs" / "demo"
    run.mkdir(parents=True)
    path = run / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {})
        {"root": run.parent, "run": run, "file": path}[remove].rename(tmp_path / "elsewhere")
        with refuses("path-gone", path, "run.root"):
            writer.write(2, {})
