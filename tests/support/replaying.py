"""What tests of the replay storage share: naive recorders, and rows whose every number follows from where they are."""

from dataclasses import dataclass, field

import numpy as np
import torch

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation, Source, StepResult
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage, Transitions
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.collecting import SEED, SPEC, N

EXECUTED = 4


def layout(capacity: int = 500, tracks: int = N, executed: int = EXECUTED, **options) -> ReplayFormat:
    return ReplayFormat.of_simulator(SPEC, tracks, capacity, executed, **options)


class Restless(FakeSimulator):
    """Each episode's seed says how many control steps it has, 2 at least."""

    def _start(self, row, episode):
        super()._start(row, episode)
        if episode is not None:
            self._steps[row] = episode.seed % (self.config.horizon - 1)


@torch.no_grad()
def naive_episode(index: int, actor: RowwiseFakeActor, simulator: FakeSimulator) -> list[dict]:
    """An episode, one decision after the other, in a simulator of its own."""
    episode, rows = EpisodeSampler(SPEC, SEED).episode(index), []
    observation = simulator.reset([episode])
    while True:
        decision = actor.act(observation, NoiseKeys(SEED, np.array([index]), np.array([len(rows)])), explore=True)
        result = simulator.step(decision.actions, [None])
        after, came = result.final_observation or result.observation, result.executed[0]
        used = np.arange(len(came)) < result.steps[0]
        rows.append(
            {
                "observation": observation, "next": after, "action": decision.actions[0],
                "log_prob": decision.log_prob[0].numpy(), "executed": np.where(used[:, None], came, np.float32(0)),
                "reward": result.reward[0], "success": result.success[0], "source": result.source[0],
                "steps": result.steps[0], "terminated": result.terminated[0], "truncated": result.truncated[0],
                "episode": index, "seed": episode.seed, "group": episode.group, "task": episode.task,
                "decision": len(rows),
            }
        )  # fmt: skip
        if len(result.ended):
            return rows
        observation = after


def naive_track(env: int, decisions: int, actor, make_simulator, lost: dict[int, int] | None = None) -> list[dict]:
    """What environment `env` of N goes through in so many decisions; episodes in `lost` end after so many."""
    rows, left, index = [], decisions, env
    while left:
        episode, cut = naive_episode(index, actor, make_simulator()), (lost or {}).get(index)
        for row in episode[: min(left, cut or left)]:
            rows.append(row | {"kind": "lost" if cut else "decision"})
            left -= 1
            if row["truncated"]:
                rows.append({"kind": "final"})
        index += N
    return rows


def naive_transitions(track: list[dict], capacity: int) -> dict[tuple[int, int], dict]:
    """The decisions among the newest rows of which it is known what followed, by episode and decision."""
    newest, found = track[-capacity:], {}
    for position, row in enumerate(newest):
        if row["kind"] == "decision" and (row["terminated"] or position + 1 < len(newest)):
            found[row["episode"], row["decision"]] = row
    return found


def everything(storage: ReplayStorage) -> dict[tuple[int, int], tuple[Transitions, int]]:
    """All that can be sampled, by episode and decision: where it is in a large sample."""
    if not len(storage):
        return {}
    sample = storage.sample(30 * len(storage) + 100, np.random.default_rng(0))
    keys = zip(sample.episode.tolist(), sample.decision.tolist(), strict=True)
    found = {key: (sample, row) for row, key in enumerate(keys)}
    assert len(found) == len(storage), "the same transition twice, or a sample too small"
    return found


def assert_observation(have: Observation, row: int, expected: Observation) -> None:
    assert have.images.keys() == expected.images.keys()
    for name, image in expected.images.items():
        assert np.array_equal(have.images[name][row], image[0]), name
    assert np.array_equal(have.state[row], expected.state[0])
    assert np.array_equal(have.privileged[row], expected.privileged[0])
    assert have.instruction[row] == expected.instruction[0]


def assert_transition(have: Transitions, row: int, expected: dict) -> None:
    assert_observation(have.observation, row, expected["observation"])
    if not expected["terminated"]:
        assert_observation(have.next_observation, row, expected["next"])
    for name in expected.keys() - {"observation", "next", "kind", "log_prob"}:
        value, wanted = getattr(have, name)[row], expected[name]
        assert np.array_equal(value, wanted), name
        assert not isinstance(wanted, np.ndarray) or value.dtype == wanted.dtype, name
    if "log_prob" in have.extra:
        assert np.array_equal(have.extra["log_prob"][row], expected["log_prob"])


def assert_holds(storage: ReplayStorage, expected: dict[tuple[int, int], dict]) -> None:
    """A storage gives these transitions and no others, to the bit."""
    found = everything(storage)
    assert found.keys() == expected.keys()
    for key, (sample, row) in found.items():
        assert_transition(sample, row, expected[key])


def observation(episodes: list[int], decisions: list[int]) -> Observation:
    """Invented: every number follows from the episode and the decision."""
    marks = np.array([31 * episode + decision for episode, decision in zip(episodes, decisions, strict=True)])
    shape = (len(marks), 8, 8, 3)
    return Observation(
        images={"top": np.broadcast_to(marks[:, None, None, None] % 251, shape).astype(np.uint8)},
        state=(marks[:, None] + np.arange(3)).astype(np.float32),
        instruction=tuple(f"go {'left' if mark % 2 else 'right'} {mark % 50}" for mark in marks),
        privileged=(marks[:, None] - np.arange(3)).astype(np.float32),
    )


def decision(episodes: list[int], decisions: list[int], executed: int = EXECUTED) -> Decision:
    """Invented, likewise."""
    marks = torch.tensor([31 * e + d for e, d in zip(episodes, decisions, strict=True)], dtype=torch.int64)
    log_prob = marks[:, None, None] + torch.arange(2.0).expand(len(marks), executed, 2)
    return Decision(log_prob.numpy() / 7, {}, log_prob, torch.zeros(len(marks)), marks)


def result(episodes: list[int], decisions: list[int], ends: list[str], executed: int = EXECUTED) -> StepResult:
    """Invented, likewise; `ends` are "", "terminated" or "truncated"."""
    marks = np.array([31 * episode + decision for episode, decision in zip(episodes, decisions, strict=True)])
    each = np.ones((len(marks), executed))
    ended = np.flatnonzero([bool(end) for end in ends])
    after = [decision + 1 for decision in decisions]
    final = observation(episodes, after).select(ended) if len(ended) else None
    return StepResult(
        reward=(each * marks[:, None]).astype(np.float32),
        success=each * marks[:, None] % 2 == 1,
        steps=1 + marks % executed,
        executed=np.repeat(each[..., None] * marks[:, None, None] / 1e4, 2, -1).astype(np.float32),
        source=np.full(each.shape, Source.POLICY, np.uint8),
        terminated=np.array([end == "terminated" for end in ends]),
        truncated=np.array([end == "truncated" for end in ends]),
        observation=observation(episodes, after),
        ended=ended,
        final_observation=final,
    )


def invented(episode: int, number: int, end: str, executed: int = EXECUTED) -> dict:
    """A transition as a naive recorder writes it down."""
    chosen, came = decision([episode], [number], executed), result([episode], [number], [end], executed)
    used = np.arange(executed) < came.steps[0]
    return {
        "observation": observation([episode], [number]), "next": observation([episode], [number + 1]),
        "action": chosen.actions[0], "executed": np.where(used[:, None], came.executed[0], np.float32(0)),
        "reward": np.where(used, came.reward[0], np.float32(0)), "success": came.success[0] & used,
        "source": np.where(used, came.source[0], np.uint8(Source.HOLD)), "steps": came.steps[0],
        "terminated": came.terminated[0], "truncated": came.truncated[0], "version": int(chosen.version[0]),
        "episode": episode, "decision": number, "seed": 1000 + episode, "task": episode % 2, "group": episode // 2,
    }  # fmt: skip


def episode_of(index: int) -> Episode:
    return Episode(index, index % 2, 1000 + index, group=index // 2)


@dataclass
class Script:
    """Writes invented episodes to a storage, and writes down naively what it did: one list of dicts a track."""

    storage: ReplayStorage
    tracks: list[list[dict]] = field(default_factory=list)
    episode: dict[int, int] = field(default_factory=dict)
    number: dict[int, int] = field(default_factory=dict)
    next_index: int = 0

    def __post_init__(self) -> None:
        count = self.storage.format.tracks
        self.tracks = self.tracks or [[] for _ in range(count)]
        for track in range(count):
            self.begin(track)

    def begin(self, track: int) -> None:
        self.episode[track], self.number[track] = self.next_index, 0
        self.next_index += 1

    def decide(self, tracks: list[int]) -> None:
        episodes, numbers = [self.episode[t] for t in tracks], [self.number[t] for t in tracks]
        keys = NoiseKeys(0, np.array(episodes), np.array(numbers))
        listed, columns = [episode_of(index) for index in episodes], torch.tensor(tracks)
        seen, executed = observation(episodes, numbers), self.storage.format.executed
        self.storage.write_decision(0, columns, decision(episodes, numbers, executed), listed, seen, keys)
        for track, episode, number in zip(tracks, episodes, numbers, strict=True):
            self.tracks[track].append({"kind": "pending", "episode": episode, "decision": number, "terminated": False})

    def finish(self, tracks: list[int], ends: list[str]) -> None:
        """The result has a row more than these tracks need, in front, which is parked."""
        episodes, numbers = [self.episode[t] for t in tracks], [self.number[t] for t in tracks]
        came = result([0, *episodes], [0, *numbers], ["", *ends], self.storage.format.executed)
        self.storage.write_result(0, torch.tensor(tracks), came, 1 + np.arange(len(tracks)))
        for track, end in zip(tracks, ends, strict=True):
            row = invented(self.episode[track], self.number[track], end, self.storage.format.executed)
            self.tracks[track][-1] = row | {"kind": "decision"}
            self.number[track] += 1
            if end == "truncated":
                self.tracks[track].append({"kind": "final"})
            if end:
                self.begin(track)

    def lose(self, tracks: list[int]) -> None:
        self.storage.lose_episodes(-1, torch.tensor(tracks), np.zeros(len(tracks), np.int64))
        for track in tracks:
            for row in self.tracks[track]:
                if row.get("episode") == self.episode[track]:
                    row["kind"] = "lost"
            self.begin(track)

    def step(self, rng: np.random.Generator) -> None:
        """A decision of some tracks and what came of it, or the loss of some."""
        count = self.storage.format.tracks
        tracks = rng.permutation(count)[: rng.integers(1, count + 1)].tolist()
        if rng.random() < 0.1:
            return self.lose(tracks)
        self.decide(tracks)
        if rng.random() < 0.1:
            return self.lose(tracks)
        return self.finish(tracks, rng.choice(["", "", "terminated", "truncated"], len(tracks)).tolist())

    def expected(self) -> dict[tuple[int, int], dict]:
        found = [naive_transitions(track, self.storage.format.capacity) for track in self.tracks]
        return {key: row for track in found for key, row in track.items()}
