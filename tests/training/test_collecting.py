"""Writers are made where experience is collected, on ranks and in rollout workers, and told what rollouts are told."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from embodied_rl.cli import run_command
from embodied_rl.cli.command import list_commands
from embodied_rl.commands.preparation import compose_config
from embodied_rl.rollout.writer import WriterFactory
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import TrainConfig
from embodied_rl.training.run_parts import assemble_parts
from embodied_rl.training.trainer import Trainer
from tests.support.running import SMALL, TABLETOP

pytestmark = pytest.mark.thorough


def configured(*overrides: str, small: Sequence[str] = SMALL) -> TrainConfig:
    """A small run."""
    command = list_commands()["train"]
    words = (*small, *TABLETOP, "plan=colocated", "plan.ranks=1", *overrides)
    config = run_command.freeze_command_config(command, compose_config(command.config, words, command.values), words)
    return run_command.load_preparation(command).check(config)[0]


def notes(folder: Path) -> list[dict]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


@pytest.mark.process
@pytest.mark.parametrize(
    "plan, collectors, elsewhere",
    [
        (("plan.rollout_workers=0",), 1, False),
        (("plan.rollout_workers=0", "plan=split", "plan.slices=2"), 1, False),
        (("plan.rollout_workers=2",), 2, True),
    ],
)
def test_every_collector_calls_its_writer(
    tmp_path: Path, plan: tuple[str, ...], collectors: int, elsewhere: bool
) -> None:
    torch.set_num_threads(1)
    config, said = configured(*plan), tmp_path / "notes"
    said.mkdir()
    folder = RunFolder.create(tmp_path / "runs", "test", 0)
    factory = WriterFactory("tests.support.noting_writer:make_writer", str(said))
    parts = assemble_parts(config, folder, Ranks(), [factory])
    trainer = Trainer(parts)
    try:
        figures = trainer.step()
    finally:
        parts.close()
    found = notes(said)
    assert sorted(file.stem for file in said.iterdir()) == [str(number) for number in range(collectors)]
    assert all((note["process"] != os.getpid()) == elsewhere for note in found if "process" in note)
    assert sum(note["sizes"][0] for note in found if "sizes" in note) == config.sim.num_envs
    decided = [tuple(pair) for note in found for pair in note.get("decided", [])]
    assert len(decided) == len(set(decided)) == figures["total/decisions"] == config.sim.num_envs * 3
    assert sum(note.get("steps", 0) for note in found) == figures["total/control_steps"]


@pytest.mark.process
def test_a_rollout_knows_how_far_its_episodes_are(tmp_path: Path) -> None:
    """`decision` counts from 0 in each episode, over rollouts."""
    torch.set_num_threads(1)
    parts = assemble_parts(configured("train.iterations=3"), RunFolder.create(tmp_path / "runs", "test", 0), Ranks())
    seen: dict[int, list[int]] = {}
    try:
        for _ in range(3):
            parts.experience.offer()
            rollout = parts.experience.collect()
            for episode, decision in zip(
                rollout.episode.flatten().tolist(), rollout.decision.flatten().tolist(), strict=True
            ):
                seen.setdefault(episode, []).append(decision)
    finally:
        parts.close()
    assert len(seen) > 8 and all(sorted(numbers) == list(range(len(numbers))) for numbers in seen.values())


@pytest.mark.process
def test_evaluations_that_choose_share_no_noise_with_those_that_are_reported(tmp_path: Path) -> None:
    """Their episodes have equal indices; training with the seed 0 has them, too."""
    torch.set_num_threads(1)
    config = configured("plan.rollout_workers=0", "seed=0")
    parts = assemble_parts(config, RunFolder.create(tmp_path / "runs", "test", 0), Ranks())
    trainer, drawn = Trainer(parts), list[int]()
    infer, act = trainer.actor.infer, trainer.actor.act
    trainer.actor.infer = lambda observation, keys: drawn.append(keys.seed) or infer(observation, keys)
    trainer.actor.act = lambda observation, keys, explore: drawn.append(keys.seed) or act(observation, keys, explore)
    found = list[set[int]]()
    try:
        for run in (trainer.step, lambda: trainer.evaluate(2, "select"), lambda: trainer.evaluate(2, "report")):
            run()
            found.append(set(drawn))
            drawn.clear()
    finally:
        parts.close()
    assert [len(seeds) for seeds in found] == [1, 1, 1] and len(set.union(*found)) == 3


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["filtered", "awr", "recap"])
@pytest.mark.parametrize(
    ("words", "strengths", "same"),
    [
        (("policy=pocket_tokens", "algo.sampler.name=tokens"), ("temperature=0.1", "temperature=1"), False),
        ((), ("noise_level=0.1", "noise_level=1"), True),
    ],
)
def test_only_a_policy_without_start_noise_is_sampled_for_replay(
    tmp_path: Path, algorithm: str, words: tuple[str, ...], strengths: tuple[str, ...], same: bool
) -> None:
    """A flow explores by its start noise, to the bit as it is deployed."""
    torch.set_num_threads(1)
    small, actions = [word for word in SMALL if "critic" not in word], list[torch.Tensor]()
    for strength in strengths:
        config = configured(f"algo={algorithm}", *words, f"algo.sampler.{strength}", small=small)
        parts = assemble_parts(config, RunFolder.create(tmp_path / strength, "test", 0), Ranks())
        try:
            parts.experience.offer()
            actions.append(parts.experience.collect().trace["actions"].clone())
        finally:
            parts.close()
    assert torch.equal(*actions) == same
