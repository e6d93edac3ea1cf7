"""`sim=robot`: a robot reached over topics as a simulator of one environment, exact about what was executed.

Chunks pass the bridge's core: gates, watchdogs, takeover, safety filter. While the caller computes, the robot holds
("stop and go"). The rows of a result are the control steps since the observation, from all sources, except holds before
the chunk began; they show human takeovers and changes by the filter.
"""

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from embodied_rl.deployment.bridge.checks import wait_until
from embodied_rl.deployment.bridge.reporting import NO_EPISODE
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode, Motion
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorLimits, Source, StepResult
from embodied_rl.robot_simulator.episode_control import AttendedEpisodes, EpisodeEnd, EpisodeReturns, SimulatedEpisodes
from embodied_rl.robot_simulator.in_process_robot import InProcessRobot, ScriptedJoystick
from embodied_rl.robot_simulator.link import LockstepLink, RealTimeLink, RobotLink
from embodied_rl.robot_simulator.scripted_human import HumanSettings
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig, describe_robot


class RobotSimulator:
    """One robot; implements `embodied_rl.interfaces.sim.Simulator`. The reward comes with an episode's last step.

    Raises:
        UserError: more than one environment was asked for, or the robot does not fit its description.
    """

    Config = RobotSimulatorConfig
    spec_of = staticmethod(describe_robot)

    @staticmethod
    def limits(config: RobotSimulatorConfig) -> SimulatorLimits:
        """Return that there is one robot; a human attends it unless it is simulated.

        Outside of this process, two instances would command the same robot.
        """
        elsewhere = config.transport != "in_process"
        return SimulatorLimits(1, attended=config.simulator is None, one_robot=elsewhere, robot=True)

    def __init__(self, config: RobotSimulatorConfig, num_envs: int) -> None:
        if num_envs != 1:
            raise UserError(f"sim.num_envs={num_envs}: sim=robot is one robot. Set sim.num_envs=1.", "num-envs-invalid")
        self.config, self.num_envs, self.spec = config, num_envs, describe_robot(config)
        self.robot = load_robot(config.robot)
        self._returns = None if config.return_points is None else EpisodeReturns(config.return_points, self.robot)
        self._in_process = InProcessRobot(config, self.robot) if config.transport == "in_process" else None
        self._joystick: ScriptedJoystick | None = None
        if self._in_process is not None:
            self._link: RobotLink = LockstepLink(config, self.robot, self._in_process.node, self._in_process.spin)
        else:
            node = open_transport(config.transport, "policy_bridge")
            try:
                self._link = (LockstepLink if config.lockstep else RealTimeLink)(config, self.robot, node)
                self._link.check()
            except BaseException:
                node.close()
                raise
        self._episodes = self._open_episodes()
        self._episode: Episode | None = None
        self._steps = 0

    def _open_episodes(self) -> SimulatedEpisodes | AttendedEpisodes:
        link, topics = self._link, self.robot.operator
        if self.config.simulator is None:
            return AttendedEpisodes(topics, link.operator, self.config.attend)
        if not (topics.reset and topics.outcome):
            raise UserError(
                f"The file of {self.robot.name} needs operator.reset and outcome.",
                code="robot-topic-missing",
            )
        episodes = SimulatedEpisodes(link.node, topics)
        if not wait_until(link.node, lambda: episodes.publisher.count_matched() > 0, self.config.patience):
            raise UserError(
                f"{topics.reset} has no subscriber. Start the simulated robot: embodied-rl robot.", code="robot-missing"
            )
        if self._in_process is not None and self.config.human == "scripted":
            assert isinstance(link, LockstepLink), "an in-process robot runs in lockstep"

            def look() -> tuple[float, Mode]:
                return link.clock(), Mode.HOLD if link.controller is None else link.controller.core.mode

            robot = self._in_process
            self._joystick = ScriptedJoystick(robot.servoed, self.robot, robot.node, look, HumanSettings())
            link.before_step = self._joystick.update
        return episodes

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        self._begin(episodes[0])
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        _, chunk, _ = actions.shape
        result = StepResult(
            reward=np.zeros((1, chunk), np.float32),
            success=np.zeros((1, chunk), bool),
            steps=np.zeros(1, np.int64),
            executed=np.zeros(actions.shape, np.float32),
            source=np.full((1, chunk), Source.HOLD, np.uint8),
            terminated=np.zeros(1, bool),
            truncated=np.zeros(1, bool),
            observation=Observation({}, np.zeros((0, 0)), ()),
        )
        rows, end = ([], None) if self._episode is None else self._execute(actions[0], self._episode)
        result.steps[0] = len(rows)
        for number, row in enumerate(rows):
            result.executed[0, number], result.source[0, number] = row.executed, row.source
        between = self._link.take_counts() - Counter(row.source for row in rows)
        result.between = (tuple((int(who), steps) for who, steps in between.items() if who != Source.HOLD),)
        if end is not None:
            result.steps[0] = count = max(len(rows), 1)  # it may have ended before anything was done, in a hold
            result.reward[0, count - 1], result.success[0, count - 1] = end.reward, end.success
            result.truncated[0], result.terminated[0] = end.truncated, not end.truncated
            result.ended = np.zeros(1, np.int64)
            result.final_observation, result.failures = self._observe(), (end.failure,)
            if self._returns is not None:
                self._returns.end(end, aborted=self._link.operator.label == "abort")
            self._begin(next_episodes[0])
        result.observation = self._observe()
        return result

    def snapshot(self) -> dict[str, Array]:
        raise NotImplementedError("a robot cannot be saved in mid-episode: spec.can_snapshot is False")

    def restore(self, state: dict[str, Array]) -> Observation:
        raise NotImplementedError("a robot cannot be saved in mid-episode: spec.can_snapshot is False")

    def close(self) -> None:
        self._link.close()
        if self._in_process is not None:
            self._in_process.close()

    def follow(self, motion: Motion) -> str:
        """Execute a return or replay motion with the operator's consent; see `RobotLink.follow`.

        It ends the current episode: the next one begins with `reset`.
        """
        if self._episode is None:
            raise UserError("A motion needs an episode: call reset first.", code="episode-missing")
        if self._link.controller is None:
            self._link.prepare(1)
        said = self._link.follow(motion)
        self._steps = max(self._steps, 1)
        return said

    def _move_to_start(self, motion: Motion) -> str:
        """Execute a motion before the first chunk of an episode; return how it ended."""
        link = self._link
        horizon = link.horizon or 1
        if link.controller is None:
            link.prepare(horizon)
        said, since, until = link.follow(motion), link.clock(), self._find_deadline()
        while not link.is_settled(since):
            if time.monotonic() > until:
                raise RunFailed("The robot has not answered after a return for so long as sim.patience says.")
            link.listen()
        link.take_steps(NO_EPISODE)
        link.prepare(horizon)  # the episode begins where the robot is now, with an empty plan
        return said

    def _execute(self, chunk: Array, episode: Episode) -> tuple[list[ExecutedStep], EpisodeEnd | None]:
        """Return the control steps of a chunk, and the end of the episode if it ended in it."""
        link, rows = self._link, list[ExecutedStep]()
        if link.horizon != len(chunk):
            if self._steps:
                raise UserError(
                    f"sim=robot: chunks of {link.horizon} actions were followed by one of {len(chunk)} within an "
                    "episode. Use chunks of one length.",
                    code="chunk-length-changed",
                )
            link.prepare(len(chunk))
        waited: ExecutedStep | None = None
        refused = link.count_refused()
        link.chunks.offer(np.array(chunk, np.float32))
        until = self._find_deadline()
        while True:
            for step in link.take_steps(episode.index):
                if step.source == Source.HOLD and not rows and link.count_refused() == refused:
                    waited = step
                    continue
                rows.append(step)
                until = self._find_deadline()
            end = self._find_end(self._steps + len(rows))
            done = end is not None or len(rows) >= len(chunk)
            if done and link.is_settled(rows[-1].time if rows else 0.0):
                break
            if time.monotonic() > until:
                raise RunFailed(
                    f"The robot has executed {len(rows)} of {len(chunk)} actions, and none for "
                    f"{self.config.patience:g} s (sim.patience): {link.explain() or 'it does not say why'}."
                )
            (link.listen if done else link.advance)()
        link.chunks.offer(None)
        end = self._find_end(self._steps + len(rows))  # it may have ended with the last row
        rows = rows or ([] if waited is None else [waited])
        self._steps += len(rows)
        return rows[: len(chunk)], end

    def _find_deadline(self) -> float:
        """Return the deadline of the next control step; real robots have the longer one of their human."""
        patience = self.config.patience if self.config.simulator is not None else self.config.attend
        return time.monotonic() + patience

    def _find_end(self, steps: int) -> EpisodeEnd | None:
        """Return how the episode ended after `steps` control steps; None while it runs."""
        if isinstance(self._episodes, SimulatedEpisodes) and self._episodes.end is not None:
            return self._episodes.end
        if (end := self._link.operator.find_end()) is not None:
            return end
        attended = isinstance(self._episodes, AttendedEpisodes)
        return EpisodeEnd(False, "time limit", True, 0.0) if attended and steps >= self.spec.horizon else None

    def _begin(self, episode: Episode | None) -> None:
        """Begin an episode, and wait until it can be observed.

        Raises:
            RunFailed: the robot does not answer. UserError: the scene was not set up in time.
        """
        self._episode, self._steps = episode, 0
        if episode is None:
            return
        link, before = self._link, self._link.episodes.requested
        if isinstance(self._episodes, AttendedEpisodes):
            self._episodes.wait(self.spec.tasks[episode.task].name)
            link.begin_attended(episode.index, self.spec.tasks[episode.task].name)
        else:
            self._episodes.ask(episode)
        link.operator.label = ""
        until = self._find_deadline()
        while True:
            shown, asked = link.episodes, link.episodes.requested
            if asked is not None and asked is not before and shown.instruction is not None:
                named = shown.instruction_ns >= asked.source_ns
                if named and link.is_observed(shown.find_min_source_ns(asked)):
                    break
            if time.monotonic() > until:
                raise RunFailed(
                    f"Episode {episode.index} was asked for, and the robot has not shown it within "
                    f"{self.config.patience:g} s (sim.patience). See whether it runs, and publishes all its topics."
                )
            link.listen()
        if self._joystick is not None:
            self._joystick.begin()
        if self._returns is not None:
            self._returns.begin(episode, link.episodes.instruction or "", self._move_to_start)
            if self._joystick is not None:
                self._joystick.begin()  # until now no policy could make progress

    def _observe(self) -> Observation:
        link = self._link
        if self._episode is not None:
            seen = link.latest.observe(link.latest.snapshot(), link.episodes.instruction or "")
            if not np.isfinite(seen.state).all():
                raise RunFailed("The robot's state is not finite.")
            return seen
        images = {each.name: np.zeros((1, each.height, each.width, 3), np.uint8) for each in self.spec.cameras}
        return Observation(images, np.zeros((1, len(self.spec.state_names)), np.float32), ("",))
