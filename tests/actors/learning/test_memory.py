"""Bytes counted from shapes, against torch's profiler, what autograd saves, the real optimiser, and closed forms."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from embodied_rl.actors.learning import memory_budget, update_memory
from embodied_rl.actors.learning.memory_budget import LiveBytes, measure_peak
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.actors.learning.update_memory import UpdateMemory, count_acting, count_row_bytes, count_update
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch
from tests.benchmarks import networks
from tests.benchmarks.networks import TINY
from tests.support.experience import make_update

pytestmark = pytest.mark.thorough
ROWS = 24
ERROR = 0.01


def real(policy: str, train: str, saving: bool = False):
    """An actor that learns, with gradients of an earlier micro-batch, and a trace of what it keeps."""
    laid_out = networks.lay_out(policy, TINY, train=train, gradient_checkpointing=saving)
    actor = networks.fill_actor(laid_out, "cpu")
    for parameter in actor.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    return actor, networks.make_traces(actor, networks.make_inputs(actor, ROWS))[actor.keep]


def allocated(work: Callable[[], object]) -> int:
    """Peak of what torch's allocator handed out meanwhile, by its profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("policy", "train", "saving"),
    [("pi0", "full", False), ("pi0", "expert", False), ("pi05", "expert", True), ("pi05", "full", True)],
)
def test_the_peak_of_an_update_equals_that_of_the_allocator(policy: str, train: str, saving: bool) -> None:
    """Counted without memory from other numbers of rows, within 1 %."""
    actor, trace = real(policy, train, saving)
    work = partial(update_memory.evaluate_and_differentiate, actor, trace)
    work()
    counted = count_update(networks.lay_out(policy, TINY, train=train, gradient_checkpointing=saving))
    assert counted.peak(ROWS) == pytest.approx(allocated(work), rel=ERROR)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("train", "micro_batch"), [("full", 8), ("expert", 12)])
def test_a_whole_step_peaks_where_it_is_counted(train: str, micro_batch: int, autocast: bool) -> None:
    """Minibatch, loss, accumulated gradients and Adam, by torch's profiler on the CPU, within 5 %.

    On a CPU torch keeps no statistics as those of its CUDA allocator; the profiler records each allocation.
    """
    actor, trace = real("pi05", train)
    actor.autocast = autocast
    with torch.no_grad():
        before = actor.evaluate(trace).log_prob
    mask = torch.ones(before.shape[:2], dtype=torch.bool)
    batch = Batch(trace, before, mask, torch.linspace(-1, 1, ROWS), torch.arange(ROWS))
    update = make_update(actor, minibatch=ROWS, epochs=1, micro_batch=micro_batch)
    update.run([batch], 0)
    actor.zero_grad()
    measured = allocated(lambda: update.run([batch], 1))
    counted = count_update(networks.lay_out("pi05", TINY, train=train), autocast)
    expected = counted.needed(micro_batch) - counted.weights - counted.moments
    expected += ROWS * counted.recorded  # the minibatch, which stays on the host where there is a GPU
    assert measured == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("policy", "train"), [("pi0", "expert"), ("pi05", "full")])
def test_operations_are_those_of_torchs_counter_on_real_tensors(policy: str, train: str) -> None:
    """Exactly; torch's counter is told the formulas of attention on the CPU, which it does not know."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    known = {
        attention: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
            sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    actor, trace = real(policy, train)
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        update_memory.evaluate_and_differentiate(actor, trace)
    counted = count_update(networks.lay_out(policy, TINY, train=train))
    assert counted.operations * ROWS == counter.get_total_flops() > 0
    assert len(counter.get_flop_counts()["Global"]) >= 4, "attention and its gradients are among them"


def test_acting_peaks_where_it_is_counted() -> None:
    """An observation is encoded from its images and a chunk is drawn; counted by an evaluation, within 10 %."""
    actor, _ = real("pi05", "expert")
    given = networks.make_inputs(actor, ROWS)
    keys, shape = NoiseKeys(0, np.arange(ROWS), np.zeros(ROWS, np.int64)), (actor.backbone.spec.horizon, 8)

    def act() -> None:
        with torch.no_grad():
            context = actor.backbone.encode(given)
            actor.sampler.sample(lambda x, t: actor.backbone.velocity(x, t, context), keys, shape, True, actor.device)

    act()
    outline = networks.lay_out("pi05", TINY, train="expert")
    outline.keep = "images"
    inputs = ROWS * count_row_bytes(outline.trace_spec())
    assert count_acting(outline, ROWS) - inputs == pytest.approx(allocated(act), rel=0.1)


@pytest.mark.parametrize(("policy", "train"), [("pi0", "expert"), ("pi05", "full"), ("pi0", "lora")])
def test_an_outline_serves_several_counts(policy: str, train: str) -> None:
    """A count of one that was counted before, with other recorded data, is that of a new one."""
    used, *new = (networks.lay_out(policy, TINY, train=train) for _ in range(3))
    count_update(used, autocast=True)
    assert count_acting(used, ROWS) == count_acting(new[0], ROWS)
    used.keep = new[1].keep = "images"
    assert count_update(used, autocast=True) == count_update(new[1], autocast=True)


def test_live_bytes_of_simple_work() -> None:
    """[250] float32 is 1000 bytes; views and what was there before count nothing; the peak outlasts what it counted."""
    before = torch.zeros(250)

    def work() -> None:
        first = before + 1
        view = first[10:].view(-1, 5)
        second = torch.cat([first, view.flatten()])
        del first, view
        before.mul_(2)
        second.add_(1)

    assert measure_peak(work) == 1000 + 1960
    with LiveBytes() as live:
        one = before * 2
        assert live.now == 1000
        del one
        assert live.now == 0 and live.peak == 1000


def test_moments_and_gradients_are_those_of_the_optimiser() -> None:
    actor, trace = real("pi0", "expert")
    counted = count_update(networks.lay_out("pi0", TINY, train="expert"))
    optimiser = Optimiser(actor.parameter_groups(), {"actor": 1e-4, "critic": 1e-4}, grad_clip=1.0)
    update_memory.evaluate_and_differentiate(actor, trace)
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in actor.parameters())
    optimiser.step(Ranks())
    moments = [value for name, value in optimiser.state().items() if "exp_avg" in name]
    assert counted.moments == sum(value.nbytes for value in moments)
    assert counted.gradients == sum(p.grad.nbytes for p in actor.parameters() if p.grad is not None)
    assert counted.weights == sum(value.nbytes for value in actor.state_dict().values()) - buffers(actor)
    assert counted.recorded == sum(value[0].nbytes for value in trace.values())


def test_the_largest_micro_batch() -> None:
    """100 held, 20 for Adam's step; micro-batches of 5 + 8 a row, from 11 rows on 12 a row; 2 of the trace."""
    peaks = ((1, 13), (11, 93), (21, 213), (31, 333))
    found = UpdateMemory(weights=60, gradients=10, moments=30, step=20, peaks=peaks, recorded=2)
    assert found.held == 100 and found.row_bytes == 14
    assert [found.peak(rows) for rows in (0, 1, 3, 11, 12, 31, 41)] == [5, 13, 29, 93, 105, 333, 453]
    assert [found.needed(rows) for rows in (0, 1, 2)] == [120, 120, 125]
    assert [found.most_rows(size) for size in (119, 120, 124, 125, 134, 135, 228, 229)] == [0, 1, 1, 2, 2, 3, 11, 12]
    assert found.most_rows(100 + 453 + 82) == 41


@pytest.mark.slow
def test_nothing_of_full_size_is_allocated() -> None:
    """Weights of more than 12 GB are counted in a process that takes less than a megabyte for it."""
    laid_out = networks.lay_out("pi0", networks.FULL, train="expert")
    found: list[UpdateMemory] = []
    assert allocated(lambda: found.append(count_update(laid_out))) < 1e6
    assert found[0].weights > 12e9


def buffers(actor: torch.nn.Module) -> int:
    state, named = actor.state_dict(), dict(actor.named_parameters())
    return sum(value.nbytes for name, value in state.items() if name not in named)


def test_as_many_rows_as_memory_allows() -> None:
    """A row takes 400 bytes beside 1,000 that are always there; nothing is asked for beyond the rows there are."""

    def work(rows: int) -> list[torch.Tensor]:
        return [torch.zeros(1000, dtype=torch.uint8), torch.zeros(rows, 100)]

    assert memory_budget.find_affordable_rows(work, 50, budget=1000 + 400 * 20) == 20
    assert memory_budget.find_affordable_rows(work, 50, budget=1e9) == 50
    assert memory_budget.find_affordable_rows(work, 50, budget=0) == 1
    assert memory_budget.find_affordable_rows(work, 1, budget=0) == 1
