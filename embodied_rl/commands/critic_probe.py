"""`embodied-rl critic probe`: find out what a vision-language model's server supports, and print settings for it."""

import asyncio

from embodied_rl.config import plugins
from embodied_rl.critic.evaluation.server_probe import ProbeLimits, make_fake_spec, probe_server
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.scorers.vlm import PICTURE_SIZE, VlmConfig
from embodied_rl.schema import CriticProbeConfig

_WIDTH = 26


def run(config: CriticProbeConfig) -> None:
    """Print what a server can do, and the settings to type. Raises `UserError`: the server cannot be used."""
    _, options = plugins.configure_plugin("scorers", config.reward, "reward")
    if not isinstance(options, VlmConfig):
        raise UserError(
            f"reward.name={config.reward.name} has no server to probe; reward=vlm has.", code="scorer-without-server"
        )
    limits = ProbeLimits(config.reward.timeout, config.seconds, config.most)
    spec = make_fake_spec(config.cameras, options.picture_size or PICTURE_SIZE)
    settings = asyncio.run(probe_server(options, spec, limits, lambda what, found: print(f"{what:{_WIDTH}}{found}")))
    print(f"{'settings to type':{_WIDTH}}{' '.join(settings)}")
