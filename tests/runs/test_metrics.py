"""One valid JSON object per iteration, and a resumed run continues where its checkpoint is."""

import errno
import json
import warnings

import numpy as np
import pytest
import torch

from embodied_rl.runs.atomic_write import StorageError
from embodied_rl.runs.metrics_file import MetricsWriter, find_first_reached, read_metrics


def write(path, iterations, resumed=None):
    with MetricsWriter(path, resumed) as writer:
        for iteration in iterations:
            writer.write(iteration, {"rollout/success": iteration / 10})


def test_values_of_every_kind_become_plain_json(tmp_path):
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
    line = (tmp_path / "metrics.jsonl").read_text()
    expected = {"iteration": 7, "a": 0.5, "b": 2, "c": None, "d": 3, "e": "text", "f": None, "g": True}
    assert json.loads(line, parse_constant=pytest.fail) == expected


def test_a_resumed_run_drops_what_its_checkpoint_does_not_know(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 8))
    with path.open("a") as file:
        file.write('{"iteration": 8, "rollout/succ')
    assert [row["iteration"] for row in read_metrics(path)] == list(range(1, 8))
    write(path, [5, 6], resumed=4)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 3, 4, 5, 6]


def test_resuming_gives_the_file_of_an_uninterrupted_run(tmp_path):
    write(tmp_path / "whole", range(1, 6))
    write(tmp_path / "resumed", range(1, 5))
    write(tmp_path / "resumed", range(3, 6), resumed=2)
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("damage", [b'{"iteration": 3, "roll', b"\xff\xfe\x80", b"", b"[3]", b'{"iteration": 3} 4'])
def test_a_damaged_line_is_named_and_costs_no_other(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 7))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], damage, *lines[3:]]))
    with pytest.warns(RuntimeWarning, match=rf"{path} is damaged: left out line 3\."):
        assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 4, 5, 6]
    with pytest.warns(RuntimeWarning, match="line 3"):
        write(path, [6], resumed=5)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (None, r"was cut or removed: it lacks 5 of 5 iterations, from 1 to 5\."),
        ([], r"lacks 5 of 5 iterations"),
        ([1, 2, 3], r"lacks 2 of 5 iterations, from 4 to 5\."),
    ],
)
def test_iterations_that_a_resumed_run_lacks_are_named_with_the_remedy(tmp_path, kept, expected):
    """They are whole lines, so that nothing else shows."""
    path = tmp_path / "metrics.jsonl"
    if kept is not None:
        write(path, kept)
    with pytest.warns(RuntimeWarning, match=rf"{path} .*{expected}.*restore these lines from a copy"):
        write(path, [6, 7], resumed=5)
    assert [row["iteration"] for row in read_metrics(path)] == [*(kept or []), 6, 7]


@pytest.mark.parametrize("part", [b'{"iteration": 7, "ro', b'{"name": "\xc3', b""])
def test_what_a_kill_leaves_of_the_last_line_is_no_damage(tmp_path, part):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 7))
    with path.open("ab") as file:
        file.write(part)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [row["iteration"] for row in read_metrics(path)] == list(range(1, 7))


def test_no_file_has_no_rows(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_each_iteration_is_on_disk_at_once(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(1, {"a": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"iteration": 1, "a": 1}]
    writer.close()


def test_a_full_disk_names_path_and_key(tmp_path, monkeypatch):
    writer = MetricsWriter(tmp_path / "metrics.jsonl")

    class Full:
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(StorageError, match=r"disk is full.*metrics\.jsonl.*run\.root"):
        writer.write(1, {})


def test_a_disk_that_stays_full_is_named_at_the_end_too(tmp_path, files_up_to):
    """Closing a file writes what is left in its buffer."""
    path = tmp_path / "metrics.jsonl"
    refused = pytest.raises(StorageError, match=r"disk is full.*metrics\.jsonl.*run\.root")
    with files_up_to(100), refused, MetricsWriter(path) as writer:
        for iteration in range(1, 4):
            writer.write(iteration, {"rollout/success": 0.123456789})


def test_when_a_share_of_success_was_first_seen():
    rows = [
        {"iteration": number, "time/elapsed": 2.0 * number, **({} if success is None else {"eval/success": success})}
        for number, success in enumerate([None, 0.4, 0.72, None, 0.69, 0.9], start=1)
    ]
    assert find_first_reached(rows, 0.4) == (2, 4.0)
    assert find_first_reached(rows, 0.7) == (3, 6.0)
    assert find_first_reached(rows, 0.9) == (6, 12.0)
    assert find_first_reached(rows, 0.91) is None and find_first_reached([], 0.1) is None


@pytest.mark.parametrize("remove", ["root", "run", "file"])
def test_a_file_that_is_gone_is_found_at_the_next_write(tmp_path, remove):
    """The system would go on writing, to nowhere."""
    run = tmp_path / "runs" / "demo"
    run.mkdir(parents=True)
    path = run / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {})
        {"root": run.parent, "run": run, "file": path}[remove].rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match=rf"{path}.* is gone.*run\.root"):
            writer.write(2, {})
