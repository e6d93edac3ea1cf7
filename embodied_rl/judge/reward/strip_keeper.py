"""Image strips of a few judged episodes for the report: those with the highest and lowest scores.

Episodes are recorded from their first frame to their end, across rollouts; their number and their frames are bounded.
Of the episodes that end in a rollout, at most two of each of four groups are written by a separate thread. While it is
busy, a rollout is skipped and its recorded episodes are dropped. The first file is kept, the last one is replaced.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward.score_table import advance, read_done
from embodied_rl.judge.scorers.shared_images import list_pictures
from embodied_rl.reports.strips import (
    FOLDER,
    FRAMES,
    KEPT,
    MAX_PIXELS,
    Group,
    KeptStrip,
    Strip,
    StripFrame,
    describe_strips,
    encode_picture,
)
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.system.atomic_write import write_text

FOLLOWED = 32
"""Episodes that are followed at once."""
LONGEST_NOTE = 120
"""Characters of a server's words under a frame."""


@dataclass(frozen=True, eq=False)
class _Frame:
    """A judged frame, as `StripFrame`, with its picture reduced to `MAX_PIXELS` pixels: uint8 [h, w, 3]."""

    picture: Array
    place: int
    said: float | None
    true: float | None
    done: float | None
    note: str


@dataclass(eq=False)
class FollowedEpisode:
    """Running episode with its scores so far.

    Attributes:
        index: of the episode; instruction, camera: what was shown.
        frames: the first one, and later ones at about equal intervals; the last one is `latest`.
        latest: the last judged frame.
        opinion: last score in 0…1; None without a score.
        progress: of a pairwise scorer, accumulated.
        reached: whether the goal was reached at any step.
    """

    index: int
    instruction: str
    camera: str
    frames: list[_Frame] = field(default_factory=list[_Frame])
    latest: _Frame | None = None
    opinion: float | None = None
    progress: float = 0.0
    reached: bool = False
    _every: int = 1
    _count: int = 0

    def add(self, ticket: Ticket) -> None:
        """Add a judged frame; one that was added before changes nothing."""
        request, score = ticket.request, ticket.score
        if self.latest is not None and request.decision <= self.latest.place:
            return
        assert score is not None, "tickets of a settled rollout have a score"
        said = done = None
        note = f"{score.reason} {score.detail}".strip()[:LONGEST_NOTE]
        if score.valid:
            said, done, note = score.value, read_done(request, score), ""
            if request.kind == "pair":
                said = self.progress = float(advance(np.asarray(self.progress), np.asarray(said)))
            self.opinion = said
        picture = list_pictures(request.frames)[self.camera][-1].pixels
        step = -(-max(picture.shape[:2]) // MAX_PIXELS)
        self.latest = _Frame(picture[::step, ::step].copy(), request.decision, said, request.progress, done, note)
        if self._count % self._every == 0:
            self.frames.append(self.latest)
        self._count += 1
        if len(self.frames) > 2 * FRAMES:
            self.frames, self._every = self.frames[::2], 2 * self._every

    def draw(self) -> Strip:
        """Return a few frames, evenly, with the first and the last."""
        shown = [*self.frames, *([self.latest] if self.latest is not None and self.latest not in self.frames else [])]
        count = len(shown)
        places = sorted({round(place) for place in np.linspace(0, count - 1, min(count, FRAMES)).tolist()})
        drawn = tuple(
            StripFrame(encode_picture(each.picture), each.place, each.said, each.true, each.done, each.note)
            for each in (shown[place] for place in places)
        )
        end = "success" if self.reached else "failure"
        return Strip(self.instruction, "", f"episode {self.index}, {end}, camera {self.camera}", drawn)


class StripKeeper:
    """Writes the strips of collector `number` into the folder of a run."""

    def __init__(self, run: Path, number: int) -> None:
        self._folder, self._number = run / FOLDER, number
        self._followed: dict[int, FollowedEpisode] = {}
        self._pool = ThreadPoolExecutor(1, "strips")
        self._working: Future[None] | None = None
        self._missed = False

    def keep(self, tickets: Sequence[Ticket], rollout: Rollout) -> None:
        """Follow a settled rollout's episodes, and have strips of those that ended written, without waiting.

        Raises:
            UserError: earlier strips could not be written.
        """
        if self._working is not None and not self._working.done():
            self._missed = True
            return
        self.check()
        episode, valid = rollout.episode.cpu().numpy(), rollout.valid.cpu().numpy()
        ended = (rollout.terminated | rollout.truncated).cpu().numpy()
        reached = rollout.success.any(-1).cpu().numpy()
        outcome = [set(episode[each].tolist()) for each in (valid, valid & ended, valid & reached)]
        self._working = self._pool.submit(self._follow, list(tickets), *outcome, missed=self._missed)
        self._missed = False

    def check(self) -> None:
        """Raise `UserError` if the last strips could not be written."""
        error = None if self._working is None else self._working.exception()
        if isinstance(error, OSError):
            raise UserError(
                f"{self._folder} cannot be written: {error.strerror or error}.", code="folder-not-writable"
            ) from error
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.shutdown(wait=True)

    def _follow(
        self, tickets: Sequence[Ticket], seen: set[int], ended: set[int], reached: set[int], missed: bool
    ) -> None:
        """Add the frames of a rollout's tickets, and write strips of episodes that ended.

        Args:
            tickets: of the rollout.
            seen, ended, reached: episodes in the rollout; those that ended in it, and that reached their goal in it.
            missed: whether the rollout before was skipped.
        """
        known = self._followed
        if missed:
            known.clear()
        for ticket in sorted(tickets, key=lambda each: each.request.decision):
            request = ticket.request
            begins = request.decision == 0 or (request.kind == "pair" and request.decision == 1)
            if begins and request.episode not in known and len(known) < FOLLOWED:
                camera = next(iter(request.frames))
                known[request.episode] = FollowedEpisode(request.episode, request.instruction, camera)
            if request.episode in known:
                known[request.episode].add(ticket)
        for index in reached & known.keys():
            known[index].reached = True
        chosen = choose_episodes([known.pop(index) for index in sorted(ended & known.keys())])
        self._followed = {index: each for index, each in known.items() if index in seen}
        if not chosen:
            return
        strips = [KeptStrip(group, each.opinion or 0.0, each.draw()) for group, each in chosen]
        text = json.dumps(describe_strips(strips), allow_nan=False)
        self._folder.mkdir(parents=True, exist_ok=True)
        for time in ("last", "first"):
            file = self._folder / f"{time}_{self._number}.json"
            if time == "last" or not file.exists():
                write_text(file, text)


def choose_episodes(episodes: Sequence[FollowedEpisode]) -> list[tuple[Group, FollowedEpisode]]:
    """Return the episodes of which the scorer thinks most and least, among successes and failures, each once."""
    known = sorted((each for each in episodes if each.opinion is not None), key=lambda each: each.opinion or 0.0)
    failed, reached = ([each for each in known if each.reached is success] for success in (False, True))
    wanted: list[tuple[Group, list[FollowedEpisode]]] = [
        ("failure_high", failed[::-1][:KEPT]), ("success_low", reached[:KEPT]),
        ("success_high", reached[::-1][:KEPT]), ("failure_low", failed[:KEPT]),
    ]  # fmt: skip
    chosen: list[tuple[Group, FollowedEpisode]] = []
    for group, own in wanted:
        chosen.extend((group, each) for each in own if each not in [other for _, other in chosen])
    return chosen
