"""Server start: checks of extra, address and token, and the command to use the server."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.batcher import MicroBatcher
from embodied_rl.serving.limits import Memory, RequestLimits
from embodied_rl.serving.model import ChatModel, ModelInput
from embodied_rl.serving.reply import ChatReply

if TYPE_CHECKING:
    from embodied_rl.serving.meters import Meters


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        host, port: listening address; port 0 takes a free port.
        token_variable: environment variable of the token; None requires none.
        batch: maximum batch size.
        wait: seconds that a request waits for others.
        places: capacity of the queue.
        memory: bytes that all requests may hold together.
        limits: of one request.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token_variable: str | None = None
    batch: int = 32
    wait: float = 0.005
    places: int = 256
    memory: int = 512 * 2**20
    limits: RequestLimits = field(default_factory=RequestLimits)


def check_settings(settings: ServerSettings) -> None:
    """Check the settings before the model is loaded.

    Raises:
        UserError: the extra is missing, or the address requires a token and none is set.
    """
    if missing := [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]:
        message = f"a server needs {' and '.join(missing)}: pip install 'embodied-rl[serve]'"
        raise UserError(message, code="package-missing")
    from embodied_rl.serving.access import find_token

    find_token(settings.host, settings.token_variable)


def make_batcher(model: ChatModel, settings: ServerSettings, meters: "Meters") -> MicroBatcher[ModelInput, ChatReply]:
    """Return the request queue of a model; a batch does not wait once all open requests are in the queue."""
    return MicroBatcher(
        model.answer, settings.batch, settings.wait, settings.places, meters.watch_batch, lambda: meters.open
    )


def start_server(model: ChatModel, settings: ServerSettings) -> None:
    """Serve a model until SIGINT or SIGTERM.

    Raises:
        UserError: the address is not available, or see `check_settings`.
    """
    check_settings(settings)
    from embodied_rl.serving.access import find_token
    from embodied_rl.serving.application import ChatServer
    from embodied_rl.serving.listening import format_url, open_socket, serve
    from embodied_rl.serving.meters import Meters

    meters = Meters()
    batcher = make_batcher(model, settings, meters)
    server = ChatServer(model, batcher, settings.limits, Memory(settings.memory), meters)
    application = server.make_application(find_token(settings.host, settings.token_variable))
    listening = open_socket(settings.host, settings.port)
    url = format_url(settings.host, listening)
    key = f" reward.key_variable={settings.token_variable}" if settings.token_variable else ""
    scorer = f"reward=vlm reward.url={url} reward.prompt={model.asked_with['prompt']}{key}"
    command = f"embodied-rl train experiment=tabletop {scorer}"
    said = f"Serving {model.name} ({model.identity}) at {url}; Ctrl-C ends it.\nAsk it: {command} reward.mode=audit"
    serve(application, listening, lambda: print(said, flush=True))
    print("The server has ended.")
