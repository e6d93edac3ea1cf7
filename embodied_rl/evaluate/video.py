"""Record videos of episodes: one frame per control step, tiled, with a green or red border for success or failure."""

import errno
import math
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.policy import DeployedPolicy
from embodied_rl.interfaces.sim import Array, Episode, Observation, Rendered, Simulator, SimulatorSpec, StepResult
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.rollout.delay import Delay
from embodied_rl.rollout.episode_sampler import Purpose, derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode, split_into_batches
from embodied_rl.runtime.processes.local import wrap_simulator
from embodied_rl.runtime.processes.process import describe_exit
from embodied_rl.system.atomic_write import TEMPORARY, explain_errors

_RUNNING, _SUCCESS, _FAILURE = (148, 163, 184), (22, 163, 74), (220, 38, 38)
_BORDER, _CAPTION = 4, 26
_HOLD_SECONDS = 1.5
FFMPEG_TIMEOUT = 600.0
"""Seconds that ffmpeg may take after the last frame."""
AT_ONCE = 8
"""Episodes filmed at the same time; some simulators take hundreds of megabytes for each."""
KEPT = 12
"""Episodes filmed before training: the first of the evaluation."""
SHOWN = 4
"""Of these, episodes that are also filmed after training."""
SIZE = 224
"""Pixels of a filmed episode, in either direction."""


@dataclass
class Recording:
    """One episode: frames uint8 [h, w, 3] at the start and after each control step, and whether the goal ever held."""

    episode: Episode
    instruction: str
    frames: list[Array] = field(default_factory=list)
    success: bool = False


def film_episodes(
    actor: DeployedPolicy,
    build: Callable[[int], Simulator],
    spec: SimulatorSpec,
    results: Sequence[EpisodeResult],
    folder: Path,
    *,
    episodes: int = 16,
    best: int = 2,
    worst: int = 2,
    kinds: int = 4,
    seed: int = 0,
    before: Mapping[int, Recording] | None = None,
    purpose: Purpose = "report",
    delay: Delay | None = None,
    at_once: int = AT_ONCE,
) -> list[Path]:
    """Repeat episodes of an evaluation and film them; return the paths of the videos.

    The films are `grid.mp4` (all tasks side by side), `best.mp4`, `worst.mp4`, `failure_<index>.mp4` for each of the
    most frequent kinds of failures, and `pair_<index>.mp4` for each episode in `before`, with the recording before
    training at its left; one without episodes is left out. The last frame of each film is also written as JPEG, as a
    player's preview and for printing.

    Args:
        actor: the policy that was evaluated.
        build: number of environments → a simulator in this process.
        spec, results: of the evaluation.
        folder: of the videos; made if missing.
        episodes: of the grid; an evaluation begins with all families and tasks in turn.
        best, worst: number of best and of worst episodes.
        kinds: kinds of failures of which an episode is filmed, at most.
        before: episode index → recording of another policy in this episode, from `read_films`.
        seed, purpose, delay: those of the evaluation.
        at_once: most environments of a simulator.
    """
    failures, successes = choose_worst_and_best(results, worst, best)
    before = before or {}
    shown = {"grid": list(results[:episodes]), "best": successes, "worst": failures}
    shown |= {f"failure_{result.index}": [result] for result in choose_failures(results, kinds)}
    paired = [result for result in results if result.index in before]
    wanted = [*(r for part in shown.values() for r in part), *paired]
    filmed = record_results(actor, build, wanted, seed=seed, purpose=purpose, delay=delay, at_once=at_once)
    films = {name: [filmed[result.index] for result in part] for name, part in shown.items()}
    for result in paired:
        after = filmed[result.index]
        old = replace(before[result.index], instruction=f"before: {after.instruction}")
        films[f"pair_{result.index}"] = [old, replace(after, instruction=f"after: {after.instruction}")]
    with explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, part in films.items():
        if part:
            paths.append(folder / f"{name}.mp4")
            frames = tile_recordings(part, spec.control_hz)
            write_mp4(paths[-1], frames, spec.control_hz)
            Image.fromarray(frames[-1]).save(paths[-1].with_suffix(".jpg"), quality=80)
    return paths


def record_results(
    actor: DeployedPolicy,
    build: Callable[[int], Simulator],
    results: Sequence[EpisodeResult],
    *,
    seed: int,
    purpose: Purpose = "report",
    delay: Delay | None = None,
    at_once: int = AT_ONCE,
) -> dict[int, Recording]:
    """Repeat the episodes of these results, each once, and return episode index → its recording."""
    wanted = {result.index: result for result in results}
    if not wanted:
        return {}
    envs = min(len(wanted), at_once)
    with closing(build(envs)) as simulator:
        listed = [Episode(r.index, r.task, r.seed, r.initial_state, split=r.split) for r in wanted.values()]
        recorded = record_episodes(actor, simulator, listed, num_envs=envs, seed=seed, purpose=purpose, delay=delay)
    return {recording.episode.index: recording for recording in recorded}


def record_episodes(
    actor: DeployedPolicy,
    simulator: Simulator,
    episodes: Sequence[Episode],
    *,
    num_envs: int,
    seed: int,
    purpose: Purpose = "report",
    delay: Delay | None = None,
    width: int = SIZE,
    height: int = SIZE,
) -> list[Recording]:
    """Film episodes without exploration, in batches of `num_envs`.

    The simulator executes a chunk one control step at a time (see `EpisodeRunner.stepwise`), so that each is filmed. If
    the simulator is not `Rendered`, the image of its first camera is resized. Seed, purpose and delay of
    `evaluate_policy` repeat its episodes.

    Raises:
        UserError: the policy or the simulator gives NaN; the message names the episode.
        WorkerDied: the simulator's worker died.
    """
    handle, camera = wrap_simulator(simulator), _Camera(simulator, (width, height))
    runner = EpisodeRunner(actor, simulator.spec, derive_noise_seed(purpose, seed), stepwise=True, delay=delay)
    for batch in split_into_batches(episodes, num_envs):
        runner.run([handle], num_envs, batch, camera)
    return [camera.recordings[episode.index] for episode in episodes]


class _Camera(Observer):
    """An observer that films all running episodes, one frame per control step."""

    def __init__(self, simulator: Simulator, size: tuple[int, int]) -> None:
        self.recordings: dict[int, Recording] = {}
        self._renderer = simulator if isinstance(simulator, Rendered) else None
        self._size = size

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        for each in started:
            frames = [self._frame(each.row, observation, each.row)]
            self.recordings[each.episode.index] = Recording(each.episode, observation.instruction[each.row], frames)

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        finals = {int(row): place for place, row in enumerate(result.ended)}
        for each in running:
            recording = self.recordings[each.episode.index]
            recording.success |= bool(result.success[each.row, 0])
            if each.row not in finals:
                recording.frames.append(self._frame(each.row, result.observation, each.row))
            elif self._renderer is None and result.final_observation is not None:
                recording.frames.append(self._frame(each.row, result.final_observation, finals[each.row]))
            # A `Rendered` simulator has already parked the row, so it cannot render the last step.

    def _frame(self, row: int, observation: Observation, place: int) -> Array:
        if self._renderer is not None:
            return np.asarray(self._renderer.render(row, *self._size), np.uint8)
        image = np.asarray(next(iter(observation.images.values()))[place], np.uint8)
        return np.asarray(Image.fromarray(image).resize(self._size, Image.Resampling.NEAREST))


def choose_worst_and_best(
    results: Sequence[EpisodeResult], worst: int, best: int
) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    """Return the failures with the lowest reward and the quickest successes, both with different tasks first."""
    failures = sorted((r for r in results if not r.success), key=lambda r: (r.reward, -r.steps, r.index))
    successes = sorted((r for r in results if r.success), key=lambda r: (r.steps, r.index))
    chosen: list[list[EpisodeResult]] = []
    for ranked, most in ((failures, worst), (successes, best)):
        seen: Counter[int] = Counter()
        turns: list[tuple[int, int]] = []  # the first of each task, then the second of each task, and so on
        for place, result in enumerate(ranked):
            turns.append((seen[result.task], place))
            seen[result.task] += 1
        chosen.append([ranked[place] for _, place in sorted(turns)][:most])
    return chosen[0], chosen[1]


def choose_failures(results: Sequence[EpisodeResult], kinds: int) -> list[EpisodeResult]:
    """Return the first episode of each of the most frequent kinds of failures that the simulator names."""
    failed = [result for result in results if result.failure]
    counted = Counter(result.failure for result in failed).most_common(kinds)
    return [next(result for result in failed if result.failure == kind) for kind, _ in counted]


def tile_recordings(recordings: Sequence[Recording], fps: float, columns: int | None = None) -> list[Array]:
    """Return the frames of a grid in which recordings of one size play side by side, as square as possible by default.

    A tile's border is grey while its episode runs, then green or red; its instruction is above. The last frame is held.
    """
    assert recordings, "a grid needs recordings"
    columns = columns or math.ceil(math.sqrt(len(recordings)))
    height, width = (size + 2 * _BORDER for size in recordings[0].frames[0].shape[:2])
    length = max(len(recording.frames) for recording in recordings) + round(_HOLD_SECONDS * fps)
    captions = [_draw_caption(recording.instruction, width) for recording in recordings]
    frames: list[Array] = []
    for time in range(length):
        tiles = np.full((-(-len(recordings) // columns), columns, _CAPTION + height, width, 3), 255, np.uint8)
        for place, (recording, caption) in enumerate(zip(recordings, captions, strict=True)):
            over = time >= len(recording.frames) - 1
            tile = tiles[divmod(place, columns)]
            tile[:_CAPTION] = caption
            tile[_CAPTION:] = (_SUCCESS if recording.success else _FAILURE) if over else _RUNNING
            tile[_CAPTION + _BORDER : -_BORDER, _BORDER:-_BORDER] = recording.frames[-1 if over else time]
        rows, _, tall, wide, _ = tiles.shape
        frames.append(tiles.swapaxes(1, 2).reshape(rows * tall, columns * wide, 3))
    return frames


def _draw_caption(text: str, width: int) -> Array:
    """Draw a caption, uint8 [_CAPTION, width, 3]: one line on white, in a font size that fits."""
    strip = Image.new("RGB", (width, _CAPTION), (255, 255, 255))
    draw = ImageDraw.Draw(strip)
    fonts = [ImageFont.load_default(size) for size in (15, 14, 13, 12, 11, 10, 9)]
    font = next((font for font in fonts if draw.textlength(text, font=font) <= width - 8), fonts[-1])
    draw.text((width / 2, _CAPTION / 2), text, fill=(30, 41, 59), font=font, anchor="mm")
    return np.asarray(strip)


def write_mp4(path: Path, frames: Sequence[Array], fps: float, key: str = "run.root") -> None:
    """Write frames as an H.264 MP4 that browsers can play.

    Frames are uint8 [h, w, 3], all of the same size; an odd edge is repeated, because the codec needs even sizes. `key`
    is the configuration key of the path, for messages.

    Raises:
        StorageError: the disk is full or refuses the write.
        RunFailed: ffmpeg was killed, or failed otherwise.
    """
    assert frames, "a video needs frames"
    padding = ((0, frames[0].shape[0] % 2), (0, frames[0].shape[1] % 2), (0, 0))
    even = [np.ascontiguousarray(np.pad(frame, padding, mode="edge")) for frame in frames]
    height, width = even[0].shape[:2]
    options = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    options += ["-r", str(Fraction(fps).limit_denominator()), "-i", "-", "-an", "-vcodec", "libx264"]
    options += ["-pix_fmt", "yuv420p", "-preset", "fast", "-crf", "23", "-movflags", "+faststart"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", *options, str(path)]
    with explain_errors(path, key):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
        )  # another process group, so that Ctrl-C reaches only this process
        try:
            assert process.stdin is not None, "it is a pipe"
            with suppress(BrokenPipeError):  # it has ended; the reason is read below
                for frame in even:
                    process.stdin.write(frame.data)
            log = process.communicate(timeout=FFMPEG_TIMEOUT)[1].decode(errors="replace").strip()
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return
        path.unlink(missing_ok=True)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(number) in log or process.returncode == -signal.SIGXFSZ:
                raise OSError(number, os.strerror(number), str(path))
        raise RunFailed(f"ffmpeg, which writes {path}, {describe_exit(process.returncode)}. {log}".rstrip())


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
    """Return episode index → its recording, for stored films; raise `UserError` if one is damaged."""
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
