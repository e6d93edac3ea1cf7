"""`embodied-rl critic train`: train an embedded critic, and measure it on held-out episodes."""

import time

from rich.console import Console

from embodied_rl.critic.evaluation.critic_report import make_table
from embodied_rl.critic.pipeline import make_critic, prepare_critic
from embodied_rl.schema import CriticTrainConfig


def run(config: CriticTrainConfig) -> None:
    """Gather or read episodes, train, measure, and write the critic's file."""
    console, began = Console(highlight=False), time.monotonic()
    found = make_critic(config, lambda line: console.print(line, markup=False, soft_wrap=True))
    console.print(make_table(found))
    console.print(f"{config.out}, after {time.monotonic() - began:.0f} s", markup=False, soft_wrap=True)


def check_training(config: CriticTrainConfig) -> None:
    """Check, for a dry run, that the policy supports a critic and that the simulator provides its targets."""
    prepare_critic(config)
