"""`embodied-rl critic serve`: a critic, or a vision-language model, behind an OpenAI-compatible server."""

import os
from pathlib import Path

from embodied_rl.config.schema import CriticServeConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.limits import RequestLimits
from embodied_rl.serving.model import ChatModel
from embodied_rl.serving.starting import ServerSettings, check_settings, start_server


def run(config: CriticServeConfig) -> None:
    """Load the model, and serve it until a signal.

    Raises:
        UserError: the model cannot be loaded, the address cannot be taken, or the extra `serve` is missing.
    """
    settings = _make_settings(config)
    check_settings(settings)
    start_server(_load_model(config), settings)


def check_start(config: CriticServeConfig) -> None:
    """Check what would keep the server from starting, without loading the model.

    Raises:
        UserError: see `run`.
    """
    check_settings(_make_settings(config))
    _check_model(Path(config.model))


def _check_model(path: Path) -> None:
    if path.is_dir():
        from embodied_rl.serving.model_folder import check_folder

        check_folder(path)
    elif not path.is_file():
        raise UserError(f"model={path}: there is no such file or folder.")


def _load_model(config: CriticServeConfig) -> ChatModel:
    import torch

    path = Path(config.model)
    _check_model(path)
    name = config.name or path.stem
    torch.set_num_threads(config.threads or (len(os.sched_getaffinity(0)) if path.is_dir() else 1))
    if path.is_dir():
        from embodied_rl.serving.vision_language import load_model

        return load_model(path, name, config.device, config.dtype)
    from embodied_rl.critic.critic_file import load_critic
    from embodied_rl.serving.embedded_critic import EmbeddedCritic

    return EmbeddedCritic(load_critic(path).to(config.device), name)


def _make_settings(config: CriticServeConfig) -> ServerSettings:
    limits = RequestLimits(
        body=config.body_mb * 2**20,
        pictures=config.pictures,
        pixels=int(config.megapixels * 1e6),
        seconds=config.deadline,
    )
    return ServerSettings(
        config.host, config.port, config.token_variable, config.batch, config.wait_ms / 1e3, config.queue,
        config.memory_mb * 2**20, limits,
    )  # fmt: skip
