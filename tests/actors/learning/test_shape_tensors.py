"""Bytes counted on tensors without values, against those that torch's own `FakeTensorMode` gives, and closed forms."""

from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from embodied_rl.actors.learning.memory_budget import measure_peak
from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.actors.learning.update_memory import (
    MARKED,
    ROWS,
    count_acting,
    count_update,
    count_work,
    evaluate_and_differentiate,
    make_blank_trace,
)
from embodied_rl.interfaces.policy import Actor
from tests.benchmarks import networks
from tests.benchmarks.networks import TINY


def fake(actor: Actor) -> Actor:
    """The actor with torch's fake tensors for weights and gradients, in their mode."""
    actor = actor.to_empty(device="cpu")
    for parameter in actor.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    return actor


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("policy", "train", "autocast"), [("pi0", "expert", True), ("pi05", "full", False), ("pi0", "lora", True)]
)
def test_one_pass_gives_the_peaks_of_fake_tensors_at_every_number_of_rows(
    policy: str, train: str, autocast: bool
) -> None:
    """To the byte; at one row, too, where torch copies less."""
    counted = count_update(networks.lay_out(policy, TINY, train=train), autocast)
    actor = networks.lay_out(policy, TINY, train=train)
    with FakeTensorMode(allow_non_fake_inputs=True):
        actor = fake(actor)
        for rows, peak in counted.peaks:
            trace = make_blank_trace(actor.trace_spec(), rows)
            assert peak == measure_peak(partial(evaluate_and_differentiate, actor, trace, autocast)), rows
    assert tuple(rows for rows, _ in counted.peaks) == ROWS


@pytest.mark.thorough
def test_deciding_takes_the_memory_of_fake_tensors() -> None:
    counted = count_acting(networks.lay_out("pi05", TINY, train="expert"), 5)
    actor = networks.lay_out("pi05", TINY, train="expert")
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        actor = fake(actor)
        actor.keep = "images"
        trace = make_blank_trace(actor.trace_spec(), 5)
        inputs = sum(value.nbytes for value in trace.values())
        assert counted == measure_peak(lambda: actor.evaluate(trace)) + inputs


def test_what_has_rows_is_told_from_what_has_none() -> None:
    """Three numbers a row and their sum beside 500 others; or, of many rows, the sum beside five more a row."""

    def work() -> None:
        fixed, rows = torch.zeros(500), torch.zeros(MARKED, 3)
        rows = rows.sum(dim=1)
        del fixed
        torch.zeros(5, MARKED)

    peaks, operations = count_work(work, (1, 10, 1000))
    assert [size for _, size in peaks] == [2000 + 16, 2000 + 160, 24 * 1000]
    assert operations == 0


def test_operations_of_a_product_and_its_gradients() -> None:
    """2 · 4 · 8 a row, and as many for each of the two gradients: of the input and of the weight."""
    weight = torch.zeros(8, 4, requires_grad=True)

    def work() -> None:
        given = torch.zeros(MARKED, 4, requires_grad=True)
        nn.functional.linear(given, weight).sum().backward()

    assert count_work(work, (1,))[1] == 3 * 2 * 4 * 8


def test_views_and_changes_in_place_share_storage() -> None:
    """Autocast multiplies in bfloat16, and keeps its copy of the weight; nothing is computed."""
    layer = nn.Linear(4, 8, device="meta")
    with ShapeMode():
        layer = layer.to_empty(device="cpu")
        given = torch.zeros(MARKED, 4)
        with torch.autocast("cpu", torch.bfloat16):
            made = layer(given)
        same = made.add_(1)
        parts = made.split(4, dim=1)
    assert made.dtype == torch.bfloat16 and made.shape == (MARKED, 8) and made.device.type == "cpu"
    assert same is made
    storages = {each.shape_only.untyped_storage()._cdata for each in (made, *parts)}
    assert len(storages) == 1


def test_values_are_refused() -> None:
    with ShapeMode(), pytest.raises(RuntimeError, match="meta"):
        torch.zeros(1).item()
    with ShapeMode():
        blank = torch.zeros(2)
    with pytest.raises(TypeError):
        torch.add(blank, 1)
