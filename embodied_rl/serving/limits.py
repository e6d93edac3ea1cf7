"""What one request, and all of them together, may take of the machine."""

from dataclasses import dataclass
from threading import Lock

from embodied_rl.serving.refusal import Refusal


@dataclass(frozen=True)
class RequestLimits:
    """The limits of one request.

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
    """Bytes that all requests hold together: their bodies, and what is decoded of them.

    Args:
        size: bytes.
    """

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0
        self._lock = Lock()

    def reserve(self) -> "Reservation":
        """Return an empty reservation, for a `with` block."""
        return Reservation(self)

    def add(self, amount: int) -> None:
        """Take bytes; a negative amount gives them back.

        Raises:
            Refusal: there are not so many left (429), or never will be (413).
        """
        with self._lock:
            if amount > self.size:
                raise Refusal(413, f"the request takes {amount} bytes; the server has {self.size} for all requests.")
            if self.used + amount > self.size:
                raise Refusal(429, "the server holds as many pictures as it can.", code="server_busy", retry_after=1)
            self.used += amount


class Reservation:
    """What one request holds; given back at the end of the `with` block."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._taken = memory, 0

    def add(self, amount: int) -> None:
        """Take bytes; see `Memory.add`."""
        self._memory.add(amount)
        self._taken += amount

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.add(-self._taken)
