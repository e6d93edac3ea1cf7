"""A role that has something to say to the person at the terminal, itself or by a worker of its own."""

from embodied_rl.runtime.processes.local import ProcessHandle
from embodied_rl.system.terminal import tell_person


class Teller:
    """`below` workers lie between it and the one that speaks."""

    def __init__(self, below: int) -> None:
        self._below = ProcessHandle("tests.support.telling:Teller", {"below": below - 1}) if below else None

    def tell(self, line: str) -> None:
        if self._below is None:
            return tell_person(line)
        self._below.submit("tell", line).result()

    def close(self) -> None:
        if self._below is not None:
            self._below.close()
