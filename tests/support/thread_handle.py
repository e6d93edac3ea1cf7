"""A handle on a role in a thread of this process, whose calls a test can hold up."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from embodied_rl.runtime.processes.handle import WorkerError

PATIENCE = 200.0


class ThreadHandle:
    """A `Handle` that runs the calls of a role one after the other in a thread; `restart` builds the role again."""

    def __init__(self, build: Callable[[], Any], name: str) -> None:
        self.name, self._build = name, build
        self.restart()

    def restart(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._role = self._pool.submit(self._build)

    def submit(self, method: str, *args: Any) -> "ThreadCall":
        return ThreadCall(self.name, self._pool.submit(lambda: getattr(self._role.result(), method)(*args)))

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class ThreadCall:
    """A future of such a handle."""

    began = seconds = 0.0

    def __init__(self, name: str, future: Future[Any]) -> None:
        self._name, self._future = name, future
        readable, signal = Pipe(duplex=False)
        self._readable = cast("Connection", readable)
        future.add_done_callback(lambda _: signal.close())

    def done(self) -> bool:
        return self._future.done()

    def wait_on(self) -> tuple[Connection | None, float]:
        return (None, 0.0) if self.done() else (self._readable, PATIENCE)

    def result(self, timeout: float | None = None) -> Any:
        try:
            return self._future.result(PATIENCE)
        except Exception as error:
            raise WorkerError(f"{self._name} raised {error!r}") from error
