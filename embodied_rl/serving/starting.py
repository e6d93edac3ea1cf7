"""Start of `embodied-rl critic serve`: checks, loading of the model, and the command to use the server."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.provenance import count_cores
from embodied_rl.serving.embedded_critic import CriticNetwork, EmbeddedCritic
from embodied_rl.serving.limits import ServerSettings
from embodied_rl.serving.model import ChatModel
from embodied_rl.serving.model_folder import check_folder


def check_settings(settings: ServerSettings) -> None:
    """Check the settings before the model is loaded.

    Raises:
        UserError: the extra is missing, or the address requires a token and none is set.
    """
    if missing := [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]:
        message = f"a server needs {' and '.join(missing)}: pip install 'embodied-rl[serve]'"
        raise UserError(message, code="package-missing")
    from embodied_rl.serving.listening import find_token

    find_token(settings.host, settings.token_variable)


def check_served(path: Path, device: str, read_header: Callable[[Path], object]) -> None:
    """Check a critic file or a model folder, and the device, without loading it.

    Raises:
        UserError: it does not exist or is refused, also by `read_header`, or the device does not fit.
    """
    try:
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"device={device}: there is no CUDA device here.", code="device-missing")
    except RuntimeError:
        raise UserError(f"device={device} is unknown: cpu, cuda, or cuda:<number>.", code="device-unknown") from None
    if path.is_dir():
        check_folder(path)
        return
    if not path.is_file():
        raise UserError(
            f"model={path}: there is no such file or folder. `embodied-rl critic train` makes a critic.",
            code="model-missing",
        )
    read_header(path)
    if device != "cpu":
        raise UserError(
            f"device={device}: an embedded critic judges on the processor; leave device out.", code="key-unused"
        )


def load_served(
    path: Path,
    load_critic: Callable[[Path], CriticNetwork],
    name: str | None,
    device: str,
    dtype: Literal["float32", "bfloat16", "float16"],
    threads: int | None,
) -> ChatModel:
    """Load a critic file or a model folder, and set the number of torch's threads in this process.

    Args:
        path: of the file or folder.
        load_critic: opens a critic file.
        name: model name in requests; None takes that of the file or folder.
        device, dtype: of a vision-language model.
        threads: None takes one for a critic, and all cores for a vision-language model.
    """
    torch.set_num_threads(threads or (count_cores() if path.is_dir() else 1))
    if not path.is_dir():
        return EmbeddedCritic(load_critic(path), name or path.stem)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    from embodied_rl.serving.vision_language import load_model

    return load_model(path, name or path.resolve().name, device, dtype)


def start_server(model: ChatModel, settings: ServerSettings) -> None:
    """Serve a model until SIGINT or SIGTERM; raise `UserError` as `check_settings`, or if the address is in use."""
    check_settings(settings)
    from embodied_rl.serving.application import ChatServer
    from embodied_rl.serving.listening import find_token, format_url, open_socket, serve

    application = ChatServer(model, settings).make_application(find_token(settings.host, settings.token_variable))
    listening = open_socket(settings.host, settings.port)
    url = format_url(settings.host, listening)
    key = f" reward.key_variable={settings.token_variable}" if settings.token_variable else ""
    scorer = f"reward=vlm reward.url={url} reward.prompt={model.asked_with['prompt']}{key}"
    command = f"embodied-rl train experiment=tabletop {scorer}"
    said = f"Serving {model.name} ({model.identity}) at {url}; Ctrl-C ends it.\nAsk it: {command} reward.mode=audit"
    serve(application, listening, lambda: print(said, flush=True))
    print("The server has ended.")
