"""The trainer of one rank: it runs iterations, evaluates, and saves and restores checkpoints."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.actors.learning import checkpoint, shards
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import load_actor, save_actor
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.reward.reward_hacking import RewardHackingMonitor
from embodied_rl.judge.reward.score_table import summarise_scores
from embodied_rl.judge.scorers.cost import find_prices
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import is_as_good
from embodied_rl.rollout.audit import EvaluationAudit, summarise_sources
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.delay import follow_training
from embodied_rl.rollout.episode_sampler import Purpose
from embodied_rl.rollout.replay.experience import check_offline
from embodied_rl.rollout.staleness import mask_older, summarise_staleness
from embodied_rl.rollout.timeline import LEARN, RANK, Span, Timeline, keep_timelines
from embodied_rl.runs import provenance
from embodied_rl.runtime.processes.process import read_resident_bytes
from embodied_rl.training import metrics
from embodied_rl.training.restoring import explain_state_mismatch, read_progress
from embodied_rl.training.run_parts import Parts, count_evaluation_envs
from embodied_rl.training.sources import Experience, NoCollection, SharedExperience

log = logging.getLogger(__name__)


class Trainer:
    """One rank of a run: it collects, learns, evaluates, saves, and continues from a checkpoint.

    Args:
        parts: the parts of the rank; see `embodied_rl.training.run_parts.assemble_parts`.

    Attributes:
        delay: of inference in evaluations, if the policy learns under a delay.
        iteration: the next iteration, counted from 0.
        begin_phase: called with the name of each phase of an iteration when it begins; shows nothing by default.
        totals: of the run so far.
        timelines: of the last iteration, one for each rank and rollout worker.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts, self.config, self.folder, self.ranks = parts, parts.config, parts.folder, parts.ranks
        self.actor, self.algorithm, self._experience = parts.actor, parts.algorithm, parts.experience
        self._source: Experience = parts.experience  # of the present iteration
        self.kind, self.spec = parts.kind.without_human(), parts.kind.spec  # of evaluations and films
        self.delay = follow_training(self.actor, self.spec)
        self._guard = RewardHackingMonitor(self.config.reward, speaks=self.ranks.rank == 0)
        self._bound = self.config.staleness if self.config.mode == "async" else 0
        self._published = -1
        self._collecting = 0.0  # seconds in which this rank waited for the rollouts of this iteration
        self._learning: tuple[float, int] | None = None  # when the last rollout arrived, and its rows
        self._aged: list[tuple[Tensor, Tensor, int]] = []  # versions and valid rows of each; how many were too old
        self._cores = int(provenance.describe_hardware()["cores"])
        self.timelines: list[Timeline] = []
        self.totals = metrics.RunTotals()
        self.iteration = 0
        self.begin_phase: Callable[[str], None] = lambda phase: None

    def step(self) -> dict[str, Any]:
        """Run one iteration: collect and learn. Return figures for the log; only times differ between ranks."""
        began, online = time.perf_counter(), self.iteration - self.config.replay.offline_iterations
        self._source = self._experience if online >= 0 else NoCollection()
        self._publish_weights()
        self._collecting, self._learning, self._aged = time.perf_counter() - began, None, []
        experience: Any = self._rollouts()
        if self.parts.replay is not None:
            if isinstance(self._source, NoCollection):
                self.begin_phase("learning")
                self._learning = time.monotonic(), 0
            else:
                for _ in experience:  # which also writes it to the replay storage
                    pass
            assert self._learning is not None, "it began above, or with the rollout"
            experience = replace(self.parts.replay, collected=self._learning[1])
        learns = not 0 <= online < self.config.replay.warmup_iterations
        update = self.algorithm.update(experience, self.iteration) if learns else {}
        self._stop_learning()
        means = torch.tensor([*update.values()], dtype=torch.float64)  # those of a rank are of its rows alone
        self.ranks.sum_([means])
        update = dict(zip(update, (means / self.ranks.size).tolist(), strict=True))
        self.actor.version += 1
        self.iteration += 1
        now = time.perf_counter()
        seconds = {"iteration": now - began, "rollout": self._collecting, "update": now - began - self._collecting}
        ages: dict[str, float] = {}
        if self.config.mode != "sync":
            aged = [part for parts in self.ranks.gather(self._aged) for part in parts]
            versions, valid, older = zip(*aged, strict=True)
            versions, valid = (torch.cat([part.flatten() for part in parts]) for parts in (versions, valid))
            ages = summarise_staleness(versions, valid, self.actor.version - 1, self._bound)
            ages["staleness/masked"] = sum(older)
        figures = self._figures(seconds) | ages | {f"update/{name}": value for name, value in update.items()}
        if self.config.mode != "sync" and self.iteration < self.config.train.iterations:
            self._publish_weights()  # at once, so that evaluations and checkpoints do not delay the collectors
        return figures

    def _rollouts(self) -> Iterator[Rollout]:
        """Yield the rollouts of this version, one for each segment, with too old decisions masked."""
        for _ in range(self.parts.segments):
            self.begin_phase("collecting")
            self._stop_learning()
            began = time.monotonic()
            rollout = self._experience.collect()
            self._learning = time.monotonic(), int(rollout.valid.sum())
            self._collecting += self._learning[0] - began
            if self.parts.distiller is not None:  # before any decision is masked
                self.parts.distiller.settle(rollout)
            if self.config.mode != "sync":
                masked = mask_older(rollout.version, rollout.valid, self.actor.version, self._bound)
                self._aged.append((rollout.version, rollout.valid, masked))
            if self.config.train.time_limit == "terminal":
                rollout.end_at_time_limit()
            if self.config.reward.name is not None:
                self._guard.fade(rollout)
            self.begin_phase("learning")
            yield rollout

    def _stop_learning(self) -> None:
        """Record the time since the last rollout as learning."""
        if self._learning is not None:
            began, rows = self._learning
            self._source.timeline.add(RANK, LEARN, began, time.monotonic() - began, rows)
        self._learning = None

    def _publish_weights(self) -> None:
        """Publish the present version to the source of rollouts, unless this has already been done."""
        if self._published < self.iteration:
            self.algorithm.prepare(self.iteration)
            self._experience.offer()
            self._published = self.iteration

    def _figures(self, seconds: Mapping[str, float]) -> dict[str, Any]:
        experience = self._source
        own = not isinstance(experience, SharedExperience)
        own_part = (experience.timeline, experience.reports(), read_resident_bytes(os.getpid()))
        gathered = self.ranks.gather(own_part, Timeline, Span, metrics.CollectorReport, EpisodeRecord)
        ranks, reports = [line for line, _, _ in gathered], [report for _, some, _ in gathered for report in some]
        resident = [] if own else [size for _, _, size in gathered]
        self.timelines = ranks if own else [*ranks, *(report.timeline for report in reports)]
        if self.ranks.rank == 0:
            for note in (note for report in reports[int(own) :] for note in report.notes):  # its own are logged
                log.warning("%s", note)
        inline, finished = self.config.plan.allocation == "colocated", metrics.list_finished(reports)
        drawn_by = experience.figures()  # of this rollout, before the curriculum is updated for the next
        experience.update_curriculum(finished)
        scores = metrics.add_counts([report.scores for report in reports])
        found = {
            **metrics.count_totals(reports, self.totals),
            **metrics.measure_times(reports, ranks, resident, seconds, self.totals, cores=self._cores, inline=inline),
            **drawn_by,
            **metrics.summarise_outcomes(finished, self.spec),
            **summarise_sources(scores),
            **summarise_scores(scores),
            **metrics.count_cost(scores, self.totals, find_prices(self.config.reward)),
            **({} if self.parts.distiller is None else self.parts.distiller.figures()),
        }
        return found | self._guard.note(found) | metrics.worker_warnings(reports)

    def evaluate(self, episodes: int, purpose: Purpose) -> list[EpisodeResult]:
        """Evaluate the deployed policy on enumerated episodes, divided among ranks; return all results on every rank.

        Evaluations with the purpose "select" choose a checkpoint, so their time counts as training time.
        """
        began = time.perf_counter()
        listed = enumerate_episodes(self.spec, "eval", episodes, self.config.train.task, purpose)
        mine = listed[self.ranks.rank :: self.ranks.size]
        evaluators, executed = self.parts.evaluators, self.actor.embodiment.executed
        envs = count_evaluation_envs(self.config, self.ranks) // len(evaluators)
        audit, version = self.parts.audit, self.actor.version
        observers = () if audit is None else (EvaluationAudit(audit, self.spec, purpose, version),)
        with self._experience.lend_simulators() if self.kind.limits.one_robot else nullcontext():
            results = evaluate_policy(
                self.actor, evaluators, self.spec, mine, 0, envs, executed, purpose=purpose, delay=self.delay,
                observers=observers,
            )  # fmt: skip
        everything = [result for part in self.ranks.gather(results, EpisodeResult) for result in part]
        if purpose == "select":
            self.totals.seconds += time.perf_counter() - began
        return sorted(everything, key=lambda result: result.index)

    def evaluate_and_choose(self) -> dict[str, float]:
        """Evaluate on the episodes that choose the checkpoint, note the result, and return figures for the log."""
        episodes = self.config.train.eval_episodes
        self.begin_phase("evaluating")
        found = metrics.summarise_evaluation(self.evaluate(episodes, "select"), self.spec)
        self.note_evaluation(found["eval/success"], episodes)
        return found | {"time/elapsed": self.totals.seconds}

    def save(self) -> None:
        """Write a checkpoint while no slice is in flight. Its own time enters the totals of the next checkpoint."""
        began = time.perf_counter()
        self.begin_phase("saving")
        state = {f"collector/{name}": torch.as_tensor(value) for name, value in self._experience.state().items()}
        state |= {f"algorithm/{name}": value for name, value in self.algorithm.state().items()}
        state |= {f"guard/{name}": value for name, value in self._guard.state().items()}
        if self.parts.distiller is not None:
            state |= {f"distiller/{name}": value for name, value in self.parts.distiller.state().items()}
        if self.parts.replay is not None:
            for storage in self._experience.storages:
                storage.flush()
            state |= {f"replay/{name}": torch.from_numpy(value) for name, value in self.parts.replay.state().items()}
        gathered = self.ranks.gather(state)
        spread = shards.write_shards(self.folder.checkpoints, self.parts.sharding, self.ranks)
        if self.ranks.rank == 0:
            tensors = {f"rank/{rank}/{name}": part[name] for rank, part in enumerate(gathered) for name in part}
            metadata = {"version": self.actor.version, "ranks": self.ranks.size, "totals": asdict(self.totals)}
            folder, keep = self.folder.checkpoints, self.config.checkpoint.keep
            checkpoint.save_checkpoint(
                folder, self.iteration, tensors, metadata, keep, {build.POLICY: self.export, **spread}
            )
            self._point_at_best()
            if self.timelines:
                keep_timelines(self.folder.path, self.iteration, self.timelines)
        self.ranks.barrier()
        self.totals.seconds += time.perf_counter() - began

    def note_evaluation(self, success: float, episodes: int) -> None:
        """Choose this iteration unless an earlier one was better beyond chance; `save` marks its checkpoint as best."""
        self.totals.best = max(self.totals.best, success)
        if is_as_good(success, self.totals.best, episodes):
            self.totals.best_iteration = self.iteration

    def _point_at_best(self) -> None:
        if self.totals.best_iteration in checkpoint.list_steps(self.folder.checkpoints):
            checkpoint.mark_best(self.folder.checkpoints, self.totals.best_iteration)

    def restore(self) -> None:
        """Restore the newest complete checkpoint, to continue bit for bit.

        Raises:
            UserError: the run had another number of ranks, or the checkpoint is damaged, or of another run.
        """
        assert self.parts.resumed is not None, "only a run that continues has something to restore"
        (self.iteration, tensors, metadata), self.parts.resumed = self.parts.resumed, None
        place = self.folder.checkpoints / f"{self.iteration:08d}"
        version, count, totals = read_progress(place, self.iteration, metadata)
        if count != self.ranks.size:
            raise UserError(
                f"{self.folder.path} was run on {count} ranks and continues exactly only on as many: "
                f"set plan.ranks={count}.",
                code="checkpoint-ranks-mismatch",
            )
        load_actor(place / build.POLICY, self.actor)
        with explain_state_mismatch(place):
            mine = _part(tensors, f"rank/{self.ranks.rank}/")
            self.algorithm.load(_part(mine, "algorithm/"))
            self._guard.load(_part(mine, "guard/"))
            if self.parts.distiller is not None:
                self.parts.distiller.load(_part(mine, "distiller/"))
            if self.parts.replay is not None:
                stored = {name: value.numpy() for name, value in _part(mine, "replay/").items()}
                check_offline(self.parts.replay.offline, stored)
            shards.read_shards(place, self.parts.sharding)
            self.actor.version = version
            self._experience.load({name: value.numpy() for name, value in _part(mine, "collector/").items()})
        self.totals = totals
        if self.ranks.rank == 0:
            checkpoint.repair_last(self.folder.checkpoints, self.iteration)
            self._point_at_best()  # the run may have been killed after writing a checkpoint and before marking it

    def load_best(self) -> None:
        """Load the weights of the best checkpoint; keep the present weights if none was evaluated."""
        if self.totals.best_iteration >= 0:
            load_actor(checkpoint.resolve_checkpoint(self.folder.checkpoints / "best") / build.POLICY, self.actor)
            self.actor.version = self.totals.best_iteration

    def export(self, path: Path) -> None:
        """Write only the policy, in the form in which it is deployed."""
        extra = build.describe_origin(self.config.sim, self.config.algo.sampler, self.spec.control_hz)
        save_actor(path, self.actor, self.config.policy.name, asdict(self.actor.network.config), extra=extra)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
