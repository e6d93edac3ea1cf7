"""`embodied-rl view`: write episodes of a dataset, of a replay storage or of a run as a recording for Rerun's viewer.

/episode_<n>/camera/<name>                     pictures
/episode_<n>/state, privileged                 numbers before a control step, by name
/episode_<n>/action/chosen, action/executed    the actions of a control step, by name
/episode_<n>/reward, success                   of a control step
/episode_<n>/source, instruction               words, from the control step on where they change
/episode_<n>/decision/<name>                   further values of a decision that a replay storage keeps
/episode_<n>/feature/<name>                    further numbers of a dataset
/episode_<n>/value                             of the critic, before a control step, of a run that stores no episodes

Such a run plays episodes of its report once more; see `embodied_rl.commands.view_run`.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.schema import ViewConfig
from embodied_rl.system.atomic_write import make_folder, replace_file
from embodied_rl.system.untrusted_files import make_printable

if TYPE_CHECKING:
    from embodied_rl.rollout.replay.signals import Signal, ViewedEpisode

NEWEST = 16
"""Episodes that are written unless others are asked for."""


def run(config: ViewConfig) -> None:
    """Write the recording; print what it holds and how it is opened.

    Raises:
        UserError: see `choose_episodes` and `make_recording`. StorageError: `out` cannot be written.
    """
    source = open_source(config)
    chosen = source.read(source.numbers)
    recording, out = make_recording(chosen, config), Path(config.out)
    make_folder(out.absolute().parent, "out")
    with replace_file(out, "out") as temporary:
        temporary.write_bytes(recording)
    if source.left_out:
        print(make_printable(f"Left out, as it is neither a number nor a picture: {', '.join(source.left_out)}"))
    print(make_printable(f"{len(chosen)} of {source.count} episodes in {out}. Open it: rerun {out}"))


def check_start(config: ViewConfig) -> list[tuple[str, str]]:
    """Check what `run` would refuse before it writes; return what it would write, as rows of text."""
    source = open_source(config)
    rows = [("out", config.out), ("episodes", f"{', '.join(map(str, source.numbers))} of {source.count}")]
    return [*rows, ("left out", ", ".join(source.left_out))] if source.left_out else rows


@dataclass(frozen=True)
class ViewSource:
    """Where episodes come from.

    Attributes:
        numbers: of the episodes to write. count: of all episodes that the source has.
        left_out: a dataset's features that cannot be shown.
        read: returns episodes by number; a run that stores none plays them.
    """

    numbers: list[int]
    count: int
    left_out: list[str]
    read: "Callable[[Sequence[int]], dict[int, ViewedEpisode]]"


def open_source(config: ViewConfig) -> ViewSource:
    """Find the episodes to write.

    Raises:
        UserError: rerun-sdk is missing, `out` exists or does not end in .rrd, the source is unknown or holds no
            episodes, or an episode does not exist.
        Unavailable: a package that reads datasets is missing.
    """
    import_rerun()
    from embodied_rl.rollout.replay.signals import list_episodes, stores_none  # needs pyarrow and PyAV

    if Path(config.out).suffix != ".rrd":
        raise UserError(f"out={config.out} should be a file's name that ends in .rrd.", code="output-name-invalid")
    if config.episodes == ():
        message = "episodes=[] names none: give at least one number, or null for the last ones."
        raise UserError(message, code="episodes-missing")
    if Path(config.out).exists():
        raise UserError(f"out={config.out} is there already; give another file.", code="output-exists")
    folder, left_out = Path(config.source), list[str]()
    if stores_none(folder):
        from embodied_rl.commands import view_run  # it loads a policy

        count, read = view_run.check_run(folder), partial(view_run.play_episodes, folder)
    else:
        episodes, left_out = list_episodes(folder)
        count, read = len(episodes), lambda numbers: {number: episodes[number] for number in numbers}
    numbers = range(max(0, count - NEWEST), count) if config.episodes is None else config.episodes
    if not count:
        raise UserError(f"source={config.source} holds no whole episode yet.", code="episodes-missing")
    if unknown := [number for number in numbers if not -count <= number < count]:
        message = f"episodes: there is no episode {unknown[0]} in {config.source}; it has 0 to {count - 1}."
        raise UserError(message, code="episode-unknown")
    return ViewSource(list(dict.fromkeys(number % count for number in numbers)), count, left_out, read)


def import_rerun() -> Any:
    """Import rerun-sdk; raise `UserError` if it is missing or too old."""
    with suppress(ImportError):
        rerun = import_module("rerun")
        if hasattr(rerun, "StateChange"):
            return rerun
    raise UserError("view needs rerun-sdk, 0.41 or later: pip install 'embodied-rl[view]'", code="package-missing")


def make_recording(episodes: Mapping[int, "ViewedEpisode"], config: ViewConfig) -> bytes:
    """Make the file's content, of episodes by number, with a layout for the viewer.

    It is made in memory: where the disk is full, Rerun's own writing to a file may wait for ever.

    Raises:
        UserError: a file of the source is damaged, or Rerun is switched off.
    """
    rerun = import_rerun()
    rerun.set_strict_mode(True)  # a mistake is raised, not logged
    with rerun.RecordingStream("embodied_rl", send_properties=False) as stream:
        if not rerun.is_enabled(stream):
            raise UserError("the variable RERUN switches Rerun off: unset it.", code="rerun-off")
        memory = stream.memory_recording()
        stream.send_blueprint(make_layout(rerun, episodes))
        stream.send_recording_name(Path(config.source).resolve().name)
        for number, episode in episodes.items():
            stream.log(f"episode_{number}", rerun.TextDocument(episode.title), static=True)
            for signal in (each for each in episode.read() if np.size(each.values)):
                place = rerun.new_entity_path([f"episode_{number}", *signal.path])
                write_signal(rerun, stream, place, episode.rate, signal, config.images)
        return memory.drain_as_bytes()


def write_signal(
    rerun: Any, stream: Any, path: str, rate: float, signal: "Signal", images: Literal["png", "jpeg"]
) -> None:
    """Write a signal on both time axes, control steps and seconds."""
    steps, values = signal.steps, signal.values
    if isinstance(values, list):
        new = [row for row, value in enumerate(values) if not row or value != values[row - 1]]
        columns = rerun.StateChange.columns(state=[*(values[row] for row in new), ""])  # "" ends the last one
        steps = np.append(steps[new], steps[-1] + 1)
    elif values.ndim == 4:
        files = [encode_picture(picture, images) for picture in values]
        columns = rerun.EncodedImage.columns(blob=files, media_type=[f"image/{images}"] * len(files))
    else:
        stream.log(path, rerun.SeriesLines(names=list(signal.names)), static=True)
        numbers = rerun.Scalars.columns(scalars=values.astype(np.float64).ravel())
        columns = numbers.partition([values.shape[1]] * len(values))
    axes = [rerun.TimeColumn("control_step", sequence=steps), rerun.TimeColumn("seconds", duration=steps / rate)]
    stream.send_columns(path, axes, columns)


def encode_picture(picture: Array, kind: Literal["png", "jpeg"]) -> bytes:
    """Encode a picture, uint8 [h, w, 3]."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, compress_level=1, quality=90)  # the first is png's, the second jpeg's
    return file.getvalue()


def make_layout(rerun: Any, episodes: Mapping[int, "ViewedEpisode"]) -> Any:
    """Make the viewer's layout: a tab for each episode, with its pictures, curves and words."""
    make, tabs = rerun.blueprint, []
    curves = {"state": ["state"], "action": ["action"], "reward, success and value": ["reward", "success", "value"]}
    for number, episode in episodes.items():
        origin = f"episode_{number}"
        pictures = [
            make.Spatial2DView(origin=rerun.new_entity_path([origin, "camera", camera]), name=camera)
            for camera in episode.cameras
        ]
        series = [
            make.TimeSeriesView(origin=origin, contents=[f"$origin/{part}/**" for part in parts], name=name)
            for name, parts in curves.items()
        ]
        words = make.StateTimelineView(origin=origin, name="source and instruction")
        tabs.append(make.Vertical(make.Horizontal(*pictures), *series, words, name=make_printable(episode.title)))
    return make.Blueprint(make.Tabs(*tabs), make.TimePanel(timeline="control_step"), auto_views=False)
