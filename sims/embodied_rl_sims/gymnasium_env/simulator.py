"""The simulator out of n Gymnasium environments."""

from collections.abc import Callable, Sequence

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Diagnosis
from embodied_rl_sims.gymnasium_env import diagnosis, fetch
from embodied_rl_sims.gymnasium_env.environment import GymnasiumEnvironment
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.specification import spec_of
from embodied_rl_sims.rows import Rows


class Gymnasium(Rows):
    """n environments of one id; implements `embodied_rl.interfaces.sim.Simulator`.

    Whatever `env.reset(seed=…)` and `env.step` give is what the engine gets. The time limit is `sim.horizon`; drawing
    a picture changes nothing, although in some MuJoCo environments of their own it does. The privileged state is the
    whole observation. Exact where the environment itself is: where a `reset` with a seed leaves nothing behind of what
    was before.
    """

    Config = GymnasiumConfig
    spec_of = staticmethod(spec_of)

    def __init__(self, config: GymnasiumConfig, num_envs: int) -> None:
        spec = spec_of(config)
        super().__init__(spec, num_envs, lambda row: GymnasiumEnvironment(config, spec))
        self.config = config

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """The operator of FetchReach, FetchPush or FetchPickAndPlace, for all environments.

        Call the result for one control step's actions, float32 [n, A].

        Raises:
            UserError: the environment has no operator, or no faulty one.
        """
        operate = fetch.make_operator(self.config.id)
        if faulty:
            raise UserError(f"sim.id={self.config.id} has no operator with faults; ask for the expert.")

        def actions() -> Array:
            moves = np.zeros((self.num_envs, self.spec.action_dim), np.float32)
            for row in range(self.num_envs):
                if self.episode(row) is not None:
                    environment = self.environment(row)
                    assert isinstance(environment, GymnasiumEnvironment)
                    moves[row] = operate(environment.observation)
            return moves

        return actions

    @staticmethod
    def diagnose(config: GymnasiumConfig) -> Sequence[Diagnosis]:
        """Versions against pins, the environment, and the renderer."""
        return diagnosis.diagnose(config)

    @staticmethod
    def provenance(config: GymnasiumConfig) -> dict[str, str]:
        """Versions of the packages that results depend on."""
        return diagnosis.provenance(config)
