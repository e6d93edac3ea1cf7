"""A role that workers of the tests of boards have."""

from embodied_rl.runtime.processes.handle import BoardReader


class Reading:
    """A role that reads a board."""

    def __init__(self, board: BoardReader) -> None:
        self._board = board

    def newest(self, above: int) -> object:
        return self._board.newest(above)

    def close(self) -> None:
        self._board.close()
