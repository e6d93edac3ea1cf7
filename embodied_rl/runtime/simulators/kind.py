"""Simulators of a `sim` node, built in this process or a worker, in this Python environment or another."""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from embodied_rl.config import plugins
from embodied_rl.interfaces.sim import Limited, Simulator, SimulatorLimits, SimulatorSpec, Unavailable
from embodied_rl.runtime.processes.handle import Deadlines, Handle, NodeShare, Runtime
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.local import InlineHandle, LocalRuntime
from embodied_rl.runtime.processes.remote import RemoteSimulator
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.schema import Plan, SimNode

DESCRIPTION_ROLE = "embodied_rl.runtime.processes.worker:DescribedSimulator"

LONG_DEADLINES = Plan(start_timeout=1800.0, call_timeout=1800.0)
"""Deadlines without a plan: some simulators take minutes to start, or to reset many environments."""

_specs: dict[tuple[str, str, str], SimulatorSpec] = {}
"""Cache of specs from other Python environments, which take seconds to read."""


@dataclass(frozen=True)
class SimulatorKind:
    """A configured simulator that is not built yet.

    Attributes:
        node: the `sim` node of the configuration.
        simulator: the plug-in's class.
        options: an instance of the plug-in's `Config`.
        interpreter: the Python environment of the simulator; None for the current environment.
    """

    node: SimNode
    simulator: type[Any]
    options: Any
    interpreter: Interpreter | None = None

    @staticmethod
    def find(node: SimNode, where: str = "sim") -> "SimulatorKind":
        """Find the plug-in that a node names, and its Python environment; `where` names the node in messages.

        Raises:
            UserError: the plug-in, a key or the interpreter does not exist.
        """
        simulator, options = plugins.configure_plugin("sims", node, where)
        return SimulatorKind(node, simulator, options, python_environments.find_interpreter(node))

    @property
    def spec(self) -> SimulatorSpec:
        """Return the spec of the simulator without building it.

        Raises:
            Unavailable: a package, or something else that the simulator needs, is not installed.
            UserError: the simulator does not accept the options.
        """
        if self.interpreter is None:
            return self.ask("spec_of")
        key = (self.interpreter.python, plugins.find_path("sims", self.node.name), repr(self.options))
        if key not in _specs:
            _specs[key] = replace(self.ask("spec_of"), device="cpu")  # its worker returns arrays on the host
        return _specs[key]

    @property
    def limits(self) -> SimulatorLimits:
        """Return the limits that the simulator's class states."""
        return self.simulator.limits(self.options) if isinstance(self.simulator, Limited) else SimulatorLimits()

    def without_human(self) -> "SimulatorKind":
        """Return the kind without a scripted human: in evaluations its help would count as the policy's success."""
        if getattr(self.options, "human", "none") == "none":
            return self
        return SimulatorKind.find(replace(self.node, options={**self.node.options, "human": "none"}))

    def limit_environments(self, wanted: int) -> int:
        """Return the largest possible number of environments, at most `wanted`; a robot has one."""
        most = self.limits.most_environments
        return wanted if most is None else min(wanted, most)

    def ask(self, method: str) -> Any:
        """Call a static method of the simulator's class with its options, in the simulator's Python environment.

        Raises:
            Unavailable: a package that the simulator needs is not installed.
        """
        if self.interpreter is not None:
            described = {"factory": plugins.find_path("sims", self.node.name)}
            name = f"simulator '{self.node.name}'"
            with closing(self._process(DESCRIPTION_ROLE, described, name, LONG_DEADLINES)) as handle:
                return handle.submit("ask", method, self.options).result()
        try:
            return getattr(self.simulator, method)(self.options)
        except ModuleNotFoundError as error:
            raise self._missing(error) from None

    def build(self, num_envs: int) -> Simulator:
        """Build a simulator with blocking calls, in this process or in a worker of its Python environment."""
        if self.interpreter is None:
            return self._here(num_envs)
        handle = self.worker(num_envs, f"simulator '{self.node.name}'", LONG_DEADLINES)
        return RemoteSimulator(handle, num_envs, self.simulator)

    def inline(self, num_envs: int, name: str, plan: Plan | None = None) -> Handle:
        """Return the handle of a simulator in this process, or of a worker if its Python environment differs."""
        if self.interpreter is not None:
            return self.worker(num_envs, name, plan or LONG_DEADLINES)
        return InlineHandle(partial(self._here, num_envs), name)

    def worker(
        self, num_envs: int, name: str, plan: Plan, runtime: Runtime | None = None, share: NodeShare | None = None
    ) -> Handle:
        """Return the handle of a simulator in its own process, with a plan's deadlines; by default on this machine."""
        factory = plugins.find_path("sims", self.node.name)
        return self._process(factory, {"config": self.options, "num_envs": num_envs}, name, plan, runtime, share)

    def _here(self, num_envs: int) -> Simulator:
        try:
            return self.simulator(self.options, num_envs)
        except ModuleNotFoundError as error:
            raise self._missing(error) from None

    def _process(
        self,
        factory: str,
        kwargs: dict[str, Any],
        name: str,
        plan: Plan,
        runtime: Runtime | None = None,
        share: NodeShare | None = None,
    ) -> Handle:
        own = plugins.find_path("sims", self.node.name).partition(":")[0].partition(".")[0]
        return (runtime or LocalRuntime()).worker(
            factory,
            kwargs,
            name=name,
            deadlines=Deadlines(plan.start_timeout, plan.call_timeout),
            share=share or NodeShare(),
            interpreter=self.interpreter,
            packages=(own,),
        )

    def _missing(self, error: ModuleNotFoundError) -> Unavailable:
        where = f"simulator '{self.node.name}' needs the package '{error.name}', which is not installed here."
        return Unavailable(f"{where} {python_environments.describe_remedy(self.node.name)}")


def make_handles(
    kind: SimulatorKind,
    plan: Plan,
    num_envs: int,
    purpose: str,
    runtime: Runtime | None = None,
    share: NodeShare | None = None,
) -> list[Handle]:
    """Make the simulators of one collector, slice by slice: `num_envs` environments in all; `runtime` starts workers.

    Colocated: one simulator per slice, in this process, or in a worker if it needs another Python environment.
    Split: each slice is divided over `plan.workers` workers.
    """
    if plan.allocation == "colocated":
        each = num_envs // plan.slices
        return [kind.inline(each, f"{purpose} simulator {part}", plan) for part in range(plan.slices)]
    count = plan.slices * plan.workers
    each = num_envs // count
    return [kind.worker(each, f"{purpose} simulator {part}", plan, runtime, share) for part in range(count)]
