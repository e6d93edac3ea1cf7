"""`embodied-rl critic train`: train an embedded critic, and say what it is worth on episodes that it has not seen."""

import time

from rich.console import Console

from embodied_rl.config.schema import CriticTrainConfig
from embodied_rl.critic.examination.report import make_table
from embodied_rl.critic.making import make_critic, prepare_critic


def run(config: CriticTrainConfig) -> None:
    """Gather or read episodes, train, measure, and write the critic's file.

    Raises:
        UserError: see `embodied_rl.critic.making.make_critic`.
    """
    console, began = Console(highlight=False), time.monotonic()
    found = make_critic(config, lambda line: console.print(line, markup=False, soft_wrap=True))
    console.print(make_table(found))
    console.print(f"{config.out}, after {time.monotonic() - began:.0f} s", markup=False, soft_wrap=True)


def check_training(config: CriticTrainConfig) -> None:
    """Check that the policy can carry a critic and that the simulator can teach it, for a dry run.

    Raises:
        UserError: see `embodied_rl.critic.making.prepare_critic`.
    """
    prepare_critic(config)
