"""`embodied-rl critic serve`: a critic, or a vision-language model, behind an OpenAI-compatible server."""

from embodied_rl.config.assets import resolve_path
from embodied_rl.critic.critic_file import load_critic, read_header
from embodied_rl.schema import CriticServeConfig
from embodied_rl.serving.limits import RequestLimits, ServerSettings
from embodied_rl.serving.starting import check_served, check_settings, load_served, start_server


def run(config: CriticServeConfig) -> None:
    """Load the model, and serve it until a signal.

    Raises:
        UserError: the model cannot be loaded, the address cannot be taken, or the extra `serve` is missing.
    """
    check_start(config)
    path = resolve_path(config.model)
    model = load_served(path, load_critic, config.name, config.device, config.dtype, config.threads)
    start_server(model, _make_settings(config))


def check_start(config: CriticServeConfig) -> None:
    """Check what would keep the server from starting, without loading the model."""
    check_settings(_make_settings(config))
    check_served(resolve_path(config.model), config.device, read_header)


def _make_settings(config: CriticServeConfig) -> ServerSettings:
    pixels = int(config.megapixels * 1e6)
    limits = RequestLimits(config.body_mb * 2**20, config.pictures, pixels, seconds=config.deadline)
    return ServerSettings(
        config.host, config.port, config.token_variable, config.batch, config.wait_ms / 1e3, config.queue,
        config.memory_mb * 2**20, limits,
    )  # fmt: skip
