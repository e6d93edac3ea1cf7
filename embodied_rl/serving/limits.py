"""Resource limits of one request and of all requests together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from embodied_rl.serving.refusal import Refusal


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request.

    Attributes:
        body: bytes of its body.
        pictures: number of pictures.
        pixels: of one picture.
        tokens: of the answer.
        seconds: from its first byte to the answer.
    """

    body: int = 16 * 2**20
    pictures: int = 16
    pixels: int = 2048 * 2048
    tokens: int = 1024
    seconds: float = 30.0


class Memory:
    """Budget of `size` bytes shared by all requests, for their bodies and decoded pictures."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0
        self._lock = Lock()

    @contextmanager
    def reserve(self) -> Iterator[Callable[[int], None]]:
        """Yield `add` for one request, whose bytes are released at the end of the `with` block."""
        taken = 0

        def add(amount: int) -> None:
            nonlocal taken
            self.add(amount)
            taken += amount

        try:
            yield add
        finally:
            self.add(-taken)

    def add(self, amount: int) -> None:
        """Reserve bytes; a negative amount releases them.

        Raises:
            Refusal: too few bytes are free (429), or the amount exceeds the whole budget (413).
        """
        with self._lock:
            if amount > self.size:
                raise Refusal(413, f"the request takes {amount} bytes; the server has {self.size} for all requests.")
            if self.used + amount > self.size:
                raise Refusal(429, "the server holds as many pictures as it can.", code="server_busy", retry_after=1)
            self.used += amount


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
