"""Several simulators in one worker of the environment that has MuJoCo Warp: starting a worker for each takes longer."""

from typing import Any

from embodied_rl.interfaces.sim import Array, Diagnosis, SimulatorSpec
from embodied_rl_sims.tabletop_warp import TabletopWarp, TabletopWarpConfig, bodies


class Several:
    """A role that makes simulators and calls them by their number. Answers are in tuples, so that pictures are, too."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def make(self, num_envs: int, settings: dict[str, Any]) -> tuple[int, SimulatorSpec]:
        self._made.append(TabletopWarp(TabletopWarpConfig(**settings), num_envs))
        return len(self._made) - 1, self._made[-1].spec

    def make_cramped(self, num_envs: int) -> tuple[int, SimulatorSpec]:
        """With room for a few contacts only."""
        room, bodies._CONTACTS, bodies._ROWS = (bodies._CONTACTS, bodies._ROWS), 4, 16
        try:
            return self.make(num_envs, {"image_size": 8})
        finally:
            bodies._CONTACTS, bodies._ROWS = room

    def describe(self) -> tuple[dict[str, str], list[Diagnosis]]:
        config = TabletopWarpConfig(device="cpu")
        return TabletopWarp.provenance(config), TabletopWarp.diagnose(config)

    def call(self, number: int, method: str, args: tuple[Any, ...]) -> tuple[Any]:
        """What a method gives; None closes the simulator."""
        if method == "close":
            self._made[number].close()
            self._made[number] = None
            return (None,)
        return (getattr(self._made[number], method)(*args),)

    def operate(self, number: int, faulty: bool) -> int:
        """A simulator's operator, called by its number as `act`."""
        self._made.append(self._made[number].expert(faulty))
        return len(self._made) - 1

    def bare(self, number: int, actions: Array) -> int:
        """A simulator's bare loop, called by its number as `act`, which gives where the joints are in each picture."""
        simulator, seen = self._made[number], []
        run = simulator._worlds.recorded_loop(
            simulator._controls_of(actions), lambda: seen.append(simulator._worlds.worlds.qpos.numpy().copy())
        )

        def loop() -> list[Array]:
            seen.clear()
            run()
            return list(seen)

        self._made.append(loop)
        return len(self._made) - 1

    def act(self, number: int) -> tuple[Any]:
        return (self._made[number](),)

    def close(self) -> None:
        """All go with the process."""
