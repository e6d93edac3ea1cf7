"""Learning to continue what was executed: which prefixes are drawn, what the network is given, and what is scored."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput
from embodied_rl.interfaces.sim import Observation
from embodied_rl.testing.fakes import FakeSimulator
from embodied_rl.training.algorithms.imitation import cloning_data
from embodied_rl.training.algorithms.imitation.cloning import (
    SFT,
    CloningBatch,
    ExecutedPrefix,
    SFTConfig,
    conditional_flow_matching_loss,
)
from embodied_rl.training.algorithms.imitation.demonstrations import find_least_prefix
from embodied_rl_policies.pocket import Pocket
from tests.support.experience import MODEL_DIM, SMALL, weights


class Copying(FlowBackbone):
    """Returns `scale` times what it is given, and notes it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.5))
        self.x, self.t = torch.zeros(0), torch.zeros(0)

    def encode(self, inputs: PolicyInput) -> Context:
        return Context({}, inputs.state)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        self.x, self.t = x, t
        return self.scale * x, x


def blank(rows: int) -> PolicyInput:
    return PolicyInput({}, torch.zeros(rows, 1), torch.zeros(rows, 1, dtype=torch.int64))


def test_the_loss_by_hand() -> None:
    """Two rows, three actions of one entry: the first d are given clean, at time 0, and the mean is over the others.

    Padding is left out beside them. The draws are repeated in their order: times, noise, lengths.
    """
    actions = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    executed, padding = actions + 10, torch.tensor([[False, False, False], [False, False, True]])
    prefix = ExecutedPrefix(executed, torch.tensor([0, 1]), 1)  # the second row must have one action, the first may
    expected = set[float]()
    for seed in range(6):
        draws = torch.Generator().manual_seed(seed)
        t = (torch.rand(2, generator=draws) ** (2 / 3) * 0.999 + 0.001).tolist()
        noise = torch.randn(2, 3, 1, generator=draws)[..., 0].tolist()
        d = [int(torch.rand(2, 1, generator=draws)[0].item() * 2), 1]
        errors = []
        for row, column in product(range(2), range(3)):
            if column >= d[row] and not padding[row, column]:
                action = actions[row, column, 0].item()
                x = t[row] * noise[row][column] + (1 - t[row]) * action
                errors.append((0.5 * x - (noise[row][column] - action)) ** 2)
        network = Copying()
        loss = conditional_flow_matching_loss(
            network, blank(2), actions, torch.Generator().manual_seed(seed), padding, 1, prefix
        )
        assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-5)
        times = [[0.0 if column < d[row] else t[row] for column in range(3)] for row in range(2)]
        torch.testing.assert_close(network.t, torch.tensor(times))
        for row in range(2):
            torch.testing.assert_close(network.x[row, : d[row]], executed[row, : d[row]], rtol=0, atol=0)
        expected.add(d[0])
    assert expected == {0, 1}


def test_lengths_are_uniform_between_the_least_and_the_most() -> None:
    least = torch.arange(5).repeat(4000)
    drawn = ExecutedPrefix(torch.zeros(len(least), 6, 1), least, 4).draw(torch.Generator().manual_seed(0))
    lengths = drawn.sum(dim=1)
    assert torch.equal(drawn, torch.arange(6) < lengths[:, None])
    for smallest in range(5):
        counts = np.bincount(lengths[least == smallest], minlength=6)
        assert not counts[:smallest].any() and not counts[5:].any()
        assert np.abs(counts[smallest:5] - 4000 / (5 - smallest)).max() < 4 * np.sqrt(4000 / (5 - smallest))


def test_the_shortest_prefix_that_holds_all_disturbances() -> None:
    for pattern in product([False, True], repeat=5):
        expected = next(d for d in range(6) if not any(pattern[d:]))
        assert find_least_prefix(np.array([[pattern]])).tolist() == [[expected]]


def test_without_prefixes_nothing_is_drawn_for_them() -> None:
    """Times and noise are all that the generator gives, and the network gets one flow time a row."""
    network, generator = Copying(), torch.Generator().manual_seed(4)
    loss = conditional_flow_matching_loss(network, blank(3), torch.ones(3, 2, 4), generator)
    plain = torch.Generator().manual_seed(4)
    t = (torch.rand(3, generator=plain) ** (1 / 1.5) * 0.999 + 0.001)[:, None, None]
    noise = torch.randn(3, 2, 4, generator=plain)
    assert torch.equal(loss, (0.5 * (t * noise + (1 - t)) - (noise - 1)).square().mean())
    assert torch.equal(generator.get_state(), plain.get_state()) and network.t.shape == (3,)


@pytest.mark.parametrize("stage", ["clone", "finetune"])
def test_both_stages_learn_from_executed_actions(stage: str) -> None:
    """Other executed actions teach something else; with `algo.prefix=0` there are none, and nothing changes."""
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (8, 16, 16, 3), generator=random, dtype=torch.uint8)
    tokens = torch.ones(8, 1, dtype=torch.int64)
    inputs, actions = PolicyInput({"front": images}, torch.zeros(8, 2), tokens), torch.zeros(8, 3, MODEL_DIM)
    learned = []
    for executed in (0.0, 1.0):
        torch.manual_seed(0)
        network = Pocket(SMALL, MODEL_DIM, 2, ("front",), (16, 16), 3, 1)
        prefix = ExecutedPrefix(torch.full_like(actions, executed), torch.ones(8, dtype=torch.int64), 2)
        steps = {"clone": (3, 0), "finetune": (0, 3)}[stage]
        options = SFTConfig(batch=4, prefix=2, steps=steps[0], finetune_steps=steps[1])
        SFT(options, network, 0, lambda *_: None).clone(inputs, actions, prefix)
        learned.append(weights(network))
    assert not torch.equal(learned[0]["action_in.weight"], learned[1]["action_in.weight"])


def test_a_batch_takes_its_prefix_to_the_network_s_device() -> None:
    prefix = ExecutedPrefix(torch.zeros(2, 3, 1), torch.zeros(2, dtype=torch.int64), 1)
    moved = CloningBatch(blank(2), torch.zeros(2, 3, 1), prefix=prefix).prefix
    assert moved is not None and moved.to(torch.device("meta")).least.device.type == "meta"


@pytest.mark.parametrize("prefix", [0, 2])
def test_a_dataset_s_actions_are_their_own_prefix(prefix: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the model's units; without `algo.prefix` there is none."""
    spec = replace(FakeSimulator.spec_of(FakeSimulator.Config()), cameras=())
    robot = Embodiment.of_simulator(spec, executed=3, token_length=4)
    seen = Observation({}, np.zeros((2, 3), np.float32), ("go left", "go right"))
    given = np.random.default_rng(0).uniform(-1, 1, (2, 3, 2)).astype(np.float32)
    samples = SimpleNamespace(observation=seen, actions=given, padding=np.zeros((2, 3), bool))
    monkeypatch.setattr("embodied_rl.datasets.lerobot.stream.SampleStream", lambda *_, **__: iter([samples]))
    monkeypatch.setattr(cloning_data, "match_dataset", lambda *_: {})
    network = Pocket(SMALL, MODEL_DIM, 3, (), (0, 0), robot.vocabulary_size, 4)
    batch = next(cloning_data.stream_batches(cast(Any, None), robot, network, 2, 0, prefix=prefix))
    if not prefix:
        assert batch.prefix is None
        return
    assert batch.prefix is not None and torch.equal(batch.prefix.actions, batch.actions)
    assert batch.prefix.least.tolist() == [0, 0] and batch.prefix.most == 2


@pytest.mark.parametrize("prefix", [0, 2])
def test_a_network_stores_its_trained_prefix_length(prefix: int) -> None:
    """Also 0, where it goes on without; no step changes nothing."""
    network = Copying()
    network.prefix_trained_to = 4
    given = ExecutedPrefix(torch.zeros(4, 3, 1), torch.zeros(4, dtype=torch.int64), prefix) if prefix else None
    for steps, expected in ((0, 4), (1, prefix)):
        options = SFTConfig(steps=0, finetune_steps=steps, prefix=prefix, batch=2)
        SFT(options, network, 0, lambda *_: None).clone(blank(4), torch.zeros(4, 3, 1), given)
        assert network.prefix_trained_to == expected
