"""Films of episodes before training, stored until the same episodes are filmed after training."""

from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path

import imageio_ffmpeg
import numpy as np

from embodied_rl.evaluate.video import Recording, write_mp4
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.system.atomic_write import TEMPORARY, explain_errors

KEPT = 12
"""Episodes filmed before training: the first of the evaluation."""
SHOWN = 4
"""Of these, episodes that are also filmed after training."""


def keep_film(folder: Path, recording: Recording, fps: float) -> Path:
    """Write the frames of a recording to `<folder>/episode_<index>.mp4`, whole or not at all; return its path."""
    path = folder / f"episode_{recording.episode.index}.mp4"
    unfinished = path.with_name(f"{TEMPORARY}{path.name}")
    with explain_errors(path):
        folder.mkdir(exist_ok=True)
        write_mp4(unfinished, recording.frames, fps)
        unfinished.replace(path)
    return path


def read_films(folder: Path, results: Sequence[EpisodeResult]) -> dict[int, Recording]:
    """Return episode index → its recording, for the episodes with a stored film.

    Raises:
        UserError: a film is damaged.
    """
    found: dict[int, Recording] = {}
    for result in results:
        if not (path := folder / f"episode_{result.index}.mp4").is_file():
            continue
        episode = Episode(result.index, result.task, result.seed, result.initial_state, split=result.split)
        try:
            # The file may be untrusted: without these options FFmpeg would also read files that it lists.
            alone = ["-f", "mp4", "-protocol_whitelist", "file"]
            frames = imageio_ffmpeg.read_frames(str(path.absolute()), input_params=alone)
            width, height = next(frames)["size"]
            pictures = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]
            found[result.index] = Recording(episode, "", pictures, result.success)
        except (OSError, RuntimeError, ValueError) as error:
            why = str(error).partition("\n")[0]  # ffmpeg's log follows
            raise UserError(
                f"{path} is not a readable film ({why}). Remove it to go on without it.", code="film-damaged"
            ) from error
    return found


def choose_pairs(before: Sequence[EpisodeResult], after: Sequence[EpisodeResult], filmed: Container[int]) -> list[int]:
    """Choose `SHOWN` filmed episodes with outcomes (gained, lost, solved twice or never) in the shares of all episodes.

    The quotas are rounded by largest remainder; within an outcome the first filmed episodes are taken. If too few
    episodes of an outcome were filmed, the first others are added. Returns their indices in order.
    """
    earlier = {result.index: result.success for result in before}
    outcomes = {each.index: (earlier[each.index], each.success) for each in after if each.index in earlier}
    shares = {outcome: SHOWN * count / len(outcomes) for outcome, count in Counter(outcomes.values()).items()}
    quotas = {outcome: int(share) for outcome, share in shares.items()}
    for outcome in sorted(shares, key=lambda each: quotas[each] - shares[each])[: SHOWN - sum(quotas.values())]:
        quotas[outcome] += 1
    candidates = [index for index in outcomes if index in filmed]
    chosen = [
        index
        for outcome, quota in quotas.items()
        for index in [each for each in candidates if outcomes[each] == outcome][:quota]
    ]
    others = [index for index in candidates if index not in chosen]
    return sorted([*chosen, *others[: SHOWN - len(chosen)]])
