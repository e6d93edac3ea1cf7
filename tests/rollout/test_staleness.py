"""The bound on the lag of data, whatever happens; figures and the mask by hand."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.rollout.staleness import Gate, mask_older, summarise_staleness
from tests.support.refusals import refuses


@dataclass
class Piece:
    """Rows that one worker collects together."""

    version: int
    rows: int
    done: bool = False


@dataclass
class Run:
    """Workers, a learner that takes B rows in the order they were started, and the gate between them.

    Attributes:
        pieces: started and not learned from, in order. lags: what the learner saw, row by row.
        early: for each start, by how many versions before that of its last row's batch it was.
        saved: the version of the newest checkpoint.
    """

    gate: Gate
    pieces: list[Piece] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    early: list[int] = field(default_factory=list)
    saved: int = 0

    def start(self, choice: int) -> None:
        """As many rows as are asked for, and as the gate lets in."""
        rows = 1 + choice % self.gate.rows
        if self.gate.may_start(rows):
            self.early.append((sum(piece.rows for piece in self.pieces) + rows - 1) // self.gate.rows)
            self.gate.start(rows)
            self.pieces.append(Piece(self.gate.version, rows))

    def finish(self, choice: int) -> None:
        if running := [piece for piece in self.pieces if not piece.done]:
            piece = running[choice % len(running)]
            piece.done = True
            self.gate.finish(piece.rows)

    def lose(self, choice: int) -> None:
        if running := [piece for piece in self.pieces if not piece.done]:
            piece = running[choice % len(running)]
            self.pieces.remove(piece)
            self.gate.lose(piece.rows)

    def learn(self, choice: int) -> None:
        """From B rows, where the first B are there."""
        rows = [piece for piece in self.pieces for _ in range(piece.rows)][: self.gate.rows]
        if len(rows) < self.gate.rows or not all(piece.done for piece in rows):
            return
        self.lags += [self.gate.version - piece.version for piece in rows]
        for piece in rows:
            piece.rows -= 1
        self.pieces = [piece for piece in self.pieces if piece.rows]
        self.gate.publish(self.gate.version + 1)
        if choice % 2:
            self.saved = self.gate.version

    def crash(self, choice: int) -> None:
        """Everything is gone but the checkpoint; the gate is the old one, or a new one."""
        self.pieces = []
        if choice % 2:
            self.gate.recover(self.saved)
        else:
            self.gate = Gate(self.gate.staleness, self.gate.rows, self.saved)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start"] * 4 + ["finish"] * 4 + ["learn"] * 3 + ["lose", "crash"]), st.integers(0, 2**16)
    ),
    min_size=40,
    max_size=120,
)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(bound=st.integers(0, 3), rows=st.integers(1, 5), steps=STEPS)
def test_nothing_is_older_than_the_bound_when_its_turn_comes(bound: int, rows: int, steps: list) -> None:
    run = Run(Gate(bound, rows))
    for step, choice in steps:
        getattr(run, step)(choice)
        assert run.gate.running == sum(piece.rows for piece in run.pieces if not piece.done)
        assert run.gate.capacity >= 0
    assert all(0 <= lag <= bound for lag in run.lags)
    assert all(versions <= bound for versions in run.early)  # for 0: never before the version it is for


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_gate_lets_in_all_that_the_bound_allows(bound: int) -> None:
    """Were it narrower it would keep the bound, too: bound + 1 batches at once, one more for each version, always."""
    gate = Gate(bound, 4)
    for _ in range(bound + 1):
        gate.start(4)
    assert not gate.may_start(1)
    for version in range(1, 4):
        gate.finish(4)
        assert not gate.may_start(1)
        gate.publish(version)
        assert gate.may_start(4) and not gate.may_start(5)
        gate.start(4)
    gate.lose(4)
    assert gate.may_start(4) and not gate.may_start(5)


def test_a_resumed_run_is_as_strict_as_one_from_the_start() -> None:
    """A count from 0 would let in seven batches more."""
    gate = Gate(1, 4)
    gate.recover(7)
    assert gate.capacity == Gate(1, 4, version=7).capacity == 8


@pytest.mark.parametrize(("bound", "rows"), [(-1, 4), (1, 0)])
def test_impossible_gates_are_refused(bound: int, rows: int) -> None:
    with refuses("staleness-out-of-range"):
        Gate(bound, rows)


def test_figures_by_hand() -> None:
    version = torch.tensor([[5, 4, 3], [5, 0, 4]])
    valid = torch.tensor([[True, True, True], [True, False, True]])
    assert summarise_staleness(version, valid, 5, 2) == pytest.approx(
        {
            "staleness/mean": (0 + 1 + 2 + 0 + 1) / 5,
            "staleness/max": 2,
            "staleness/share_0": 2 / 5,
            "staleness/share_1": 2 / 5,
            "staleness/share_2": 1 / 5,
        }
    )
    nothing = summarise_staleness(version, torch.zeros_like(valid), 5, 1)
    assert set(nothing.values()) == {0.0} and len(nothing) == 4


@pytest.mark.parametrize(("bound", "left", "masked"), [(0, [0, 3], 3), (1, [0, 1, 3, 5], 1), (2, [0, 1, 2, 3, 5], 0)])
def test_decisions_older_than_the_bound_become_invalid(bound: int, left: list[int], masked: int) -> None:
    """And is counted, without what was invalid already."""
    version = torch.tensor([[5, 4, 3], [5, 0, 4]])
    valid = torch.tensor([[True, True, True], [True, False, True]])
    assert mask_older(version, valid, 5, bound) == masked
    assert valid.flatten().nonzero().flatten().tolist() == left
