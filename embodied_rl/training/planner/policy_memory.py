"""Memory of a run's policy for the planner, counted from shapes: what no allocation can go below.

Costs that were measured or assumed say nothing of a policy that was not built; shapes do, on any machine.
"""

from dataclasses import dataclass, replace

from embodied_rl.actors.learning.memory_budget import format_bytes
from embodied_rl.actors.learning.update_memory import UpdateMemory, count_acting
from embodied_rl.actors.placement import resolve_placement
from embodied_rl.assembly import build
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import TrainConfig
from embodied_rl.training.device_memory import choose_keep, count_memory, place_on_gpu
from embodied_rl.training.planner.allocation import Allocation, Resources

ADVICE = "Give policy.train=expert or lora, policy.precision=bfloat16, a smaller policy, or resources with more memory."


@dataclass(frozen=True)
class PolicyMemory:
    """The counted memory of a policy in one process; all sizes but `parameters` are in bytes.

    Attributes:
        parameters: their number in network and critic.
        update: of a process that learns.
        acting, all_acting: peak of temporary tensors while it decides for one environment, and for all `envs` of them.
        envs: environments of the run.
        sharded: whether ranks share gradients, moments and the optimiser's step.
    """

    parameters: int
    update: UpdateMemory
    acting: int
    all_acting: int
    envs: int
    sharded: bool = False

    def least(self, plan: Allocation) -> float:
        """Return the bytes below which no rank works: it learns from one row at a time, and acts in one environment.

        If there are rollout workers, ranks do not act.
        """
        shards = plan.ranks if self.sharded else 1
        parts = {name: getattr(self.update, name) // shards for name in ("gradients", "moments", "step")}
        update = replace(self.update, **parts)
        return max(update.needed(1), update.held + (0 if plan.rollout_workers else self.acting))

    def describe(self) -> str:
        """Return a text for the user."""
        update = self.update
        return (
            f"Policy, counted from shapes: {self.parameters:,} parameters; with gradients and "
            f"optimiser {format_bytes(update.held)}. Acting in {self.envs} environments at once takes "
            f"{format_bytes(self.all_acting)} more; the peak of an update is {format_bytes(update.needed(1))} with "
            f"micro-batches of one row, and {format_bytes(update.row_bytes)} more for each further row."
        )


def count_policy(config: TrainConfig, resources: Resources) -> PolicyMemory:
    """Count the memory of a run's policy, in the precision that it has on the resources, without its weights.

    Raises:
        UserError, Unavailable: the checkpoint or the simulator is missing, or settings do not fit each other.
    """
    needs, spec = build.find_method(config.algo).needs, SimulatorKind.find(config.sim).spec
    placed = replace(config, policy=resolve_placement(config.policy))
    config = place_on_gpu(config) if resources.devices else placed
    actor = build.outline_actor(config.policy, config.algo.sampler, spec, needs)
    parameters = sum(parameter.numel() for parameter in actor.parameters())
    keep, _ = choose_keep(config, needs, spec, actor)
    update, acting = count_memory(config, actor, keep, 1)
    together = count_acting(actor, config.sim.num_envs)
    sharded = config.plan.learner == "sharded"
    return PolicyMemory(parameters, update, acting, together, config.sim.num_envs, sharded)


def report_policy(config: TrainConfig, resources: Resources) -> PolicyMemory | None:
    """Count and describe a run's policy; if it cannot be counted here, print the reason and return None."""
    try:
        found = count_policy(config, resources)
    except (UserError, Unavailable) as error:
        print(f"The policy's memory is not counted: {error}")
        return None
    print(found.describe())
    return found


def check_host(policy: PolicyMemory, resources: Resources) -> None:
    """Check that one rank fits into the memory of the host, before anything is built to be measured.

    Raises:
        UserError: it does not.
    """
    least = policy.least(Allocation("colocated", 1))
    if resources.memory is not None and least > resources.memory:
        raise UserError(
            f"plan: one rank needs {format_bytes(least)} at least, counted from shapes, of the "
            f"{format_bytes(resources.memory)} of the host. {ADVICE}",
            code="plan-infeasible",
        )
