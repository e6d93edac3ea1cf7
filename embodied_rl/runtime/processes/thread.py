"""Handle on a role in a thread of this process, for roles that wait or compute outside Python, such as a service."""

import queue
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from embodied_rl.runtime.processes.handle import NoAnswer, WorkerError


class ThreadHandle:
    """A `Handle` that runs the calls of a role sequentially in a thread.

    A thread cannot be killed. A thread that exceeds its deadline is abandoned with its unfinished work, which is lost;
    `restart` builds the role again in another thread.

    Args:
        build: builds the role, in the thread; `restart` calls it again.
        name: for messages.
        call_timeout: seconds in which a call must be answered.
    """

    def __init__(self, build: Callable[[], Any], name: str, call_timeout: float = 120.0):
        self.name, self.call_timeout = name, call_timeout
        self._build = build
        self._launch()

    @property
    def alive(self) -> bool:
        return self._alive

    def submit(self, method: str, *args: Any) -> "ThreadCall":
        assert self._alive, f"{self.name} is closed or was abandoned"
        call = ThreadCall(self, method, args)
        self._calls.put(call)
        return call

    def restart(self) -> None:
        self.close()
        self._launch()

    def memory(self) -> int:
        return 0

    def close(self) -> None:
        self._calls.put(None)
        self._alive = False

    def _launch(self) -> None:
        self._calls: queue.Queue[ThreadCall | None] = queue.Queue()
        self._alive = True
        threading.Thread(target=_serve, args=(self._build, self._calls), name=self.name, daemon=True).start()


class ThreadCall:
    """A future that is answered by a thread."""

    def __init__(self, handle: ThreadHandle, method: str, args: tuple[Any, ...]):
        self.method, self.args = method, args
        self.began, self.seconds = time.monotonic(), 0.0
        self._handle = handle
        self._submitted = self.began
        self._ended = threading.Event()
        readable, self._signal = Pipe(duplex=False)
        self._readable = cast("Connection", readable)
        self._value: Any = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._ended.is_set()

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self.done() else (self._readable, self._left(None))

    def result(self, timeout: float | None = None) -> Any:
        if not self._ended.wait(self._left(timeout)):
            self._handle.close()  # abandons the thread
            seconds = self._handle.call_timeout if timeout is None else timeout
            raise NoAnswer(f"{self._handle.name} gave no answer within {seconds:g} s during '{self.method}'.")
        if self._error is not None:
            raise WorkerError(f"{self._handle.name}: '{self.method}' raised an exception") from self._error
        return self._value

    def run(self, role: Any) -> None:
        """Run the call. Only the thread calls this."""
        self.began = time.monotonic()
        try:
            self._value = getattr(role, self.method)(*self.args)
        except Exception as error:  # noqa: BLE001  a thread's border: the caller must see every error
            self.fail(error)
        else:
            self._end()

    def fail(self, error: Exception) -> None:
        """Set the error. Only the thread calls this."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self.seconds = time.monotonic() - self.began
        self._ended.set()
        self._signal.close()

    def _left(self, timeout: float | None) -> float:
        if timeout is not None:
            return timeout
        return max(0.0, self._submitted + self._handle.call_timeout - time.monotonic())


def _serve(build: Callable[[], Any], calls: "queue.Queue[ThreadCall | None]") -> None:
    """Build the role, then answer calls until None arrives. If the build fails, every call fails."""
    role, broken = None, None
    try:
        role = build()
    except Exception as error:  # noqa: BLE001  see `ThreadCall.run`
        broken = error
    while (call := calls.get()) is not None:
        if broken is not None:
            call.fail(broken)
        else:
            call.run(role)
        del call
    close = getattr(role, "close", None)
    if close is not None:
        close()
