"""The start and the continuation of an evaluation, with the results of finished episodes on disk.

`evaluation.json` in the evaluation's folder holds its configuration and the metadata of its report, written before the
first episode. An evaluation is continued only with the same policy, simulators, packages and code, so that a report
never mixes them. `episodes.jsonl` has one line per finished episode, the fields of its `EpisodeResult`. Lines are only
appended, each in one write; `kill -9` may leave an incomplete last line, which is removed.
"""

import fcntl
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config, suggest_name, thaw_config
from embodied_rl.evaluate.protocol import Results
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.runs.folder import RunFolder, make_evaluation_folder
from embodied_rl.schema import EvalConfig
from embodied_rl.system.atomic_write import explain_errors, make_folder, note_folder, write_text
from embodied_rl.system.untrusted_files import check_ends, check_inside, read_json, shorten

FILE = "evaluation.json"
EPISODES = "episodes.jsonl"
LAST = "report.html"
"""The file that an evaluation writes last: with it and `evaluation.json`, the evaluation is finished."""
_SAME = ("packages", "source_sha256", "simulators", "served")


def choose_output_folder(config: EvalConfig, folder: RunFolder | None) -> Path:
    """Return `out` if given; else a new folder in the run's `eval/`, or in `./eval/` for a file outside a run."""
    what = config.split if config.benchmark is None else config.benchmark.name
    use = "" if config.episodes_for == "report" else f"_{config.episodes_for}"
    late = f"_delay_{config.delay}" if config.delay else ""
    name = what + use + ("" if config.ablate == "none" else f"_without_{config.ablate}") + late
    if config.out is not None:
        return note_folder(make_folder(Path(config.out), "out"))
    if folder is None:
        return make_evaluation_folder(Path("eval"), name)
    check_inside(folder.path, folder.evaluations)
    return folder.new_evaluation(name)


def check_out(out: str | None) -> None:
    """Raise `UserError` unless an evaluation can be written to this folder, if any, without a change of its content."""
    if out is None:
        return
    folder = Path(out)
    if (folder / FILE).is_file() and not (folder / LAST).is_file():
        remedy = f"Continue it with: embodied-rl eval resume={folder}; or give another folder."
        raise UserError(
            f"out: {folder} holds an evaluation that is not finished. {remedy}", code="evaluation-unfinished"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"out={folder} is not empty. Give a new folder.", code="output-exists")


def begin_evaluation(folder: Path, config: EvalConfig, metadata: Mapping[str, Any]) -> None:
    """Write the `evaluation.json` of a new evaluation."""
    content = {"config": {**thaw_config(config), "out": None}, "metadata": metadata}
    write_text(folder / FILE, json.dumps(content, indent=1) + "\n", "out")


def read_evaluation(folder: Path) -> tuple[EvalConfig, dict[str, Any]]:
    """Return the configuration and metadata that an evaluation was begun with.

    Raises:
        UserError: the folder holds no evaluation that can be continued, or its file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        near = [path.parent.name for path in sorted(folder.parent.glob(f"*/{FILE}"))]
        raise UserError(
            f"resume={folder}: {FILE} is not there, so this is not the folder of an evaluation, or of an old version."
            f"{suggest_name(folder.name, near) if near else ''}",
            code="evaluation-missing",
        )
    content = read_json(file)
    try:
        config, metadata = content["config"], content["metadata"]
        if not isinstance(config, dict) or not isinstance(metadata, dict):
            raise TypeError("config and metadata are groups of keys")
        if not isinstance(metadata.get("resumed_on", []), list):
            raise TypeError("resumed_on is not a list")
        return freeze_config(EvalConfig, config), metadata
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged: {error}", code="evaluation-damaged") from None


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that an evaluation is continued with what it was begun with.

    Raises:
        UserError: a simulator's settings or versions, a package or our code differ; the message names which.
    """
    found = list[str]()
    for name in _SAME:
        found += _list_differences(before.get(name), json.loads(json.dumps(now.get(name))), name)
    if found:
        raise _explain_differences(folder, found)


def check_same_policies(folder: Path, before: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> None:
    """Check that an evaluation is continued with the policies that it was begun with; their files may have moved.

    Raises:
        UserError: a policy is another one, or its file has changed.
    """
    listed = before.get("policies")
    named = [_identify(each) for each in listed] if isinstance(listed, list) else listed
    if found := _list_differences(named, [_identify(each) for each in policies], "policy"):
        raise _explain_differences(folder, found)


def add_hardware(metadata: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report's metadata with the hardware of this process, if it differs from that at the start."""
    listed = [metadata.get("hardware"), *metadata.get("resumed_on", ())]
    if now["hardware"] in listed:
        return metadata
    return {**metadata, "resumed_on": [*listed[1:], now["hardware"]]}


def _identify(policy: Any) -> Any:
    """Return the hash of a policy's file, or "expert" or "random"."""
    return policy.get("sha256") or policy.get("policy") if isinstance(policy, dict) else policy


def _explain_differences(folder: Path, differences: Sequence[str]) -> UserError:
    remedy = "A report must not mix them. Restore the former state, or evaluate again, without resume."
    text = f"{folder} was begun with other settings: {'; '.join(differences[:6])}. {remedy}"
    return UserError(text, code="evaluation-differs")


def _list_differences(before: Any, now: Any, name: str) -> list[str]:
    """Return a text for each innermost key with different values."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [text for key in keys for text in _list_differences(before.get(key), now.get(key), f"{name}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [text for place, (one, other) in pairs for text in _list_differences(one, other, f"{name}[{place}]")]
    texts = [text if len(text) <= 60 else f"{text[:57]}…" for text in map(json.dumps, (before, now))]
    return [] if before == now else [f"{name} was {texts[0]} and is {texts[1]}"]


class ResultFile(Results, AbstractContextManager["ResultFile"]):
    """The results of an evaluation, in memory and on disk; a context manager that locks and closes the file.

    Attributes:
        torn: whether the file ended in an incomplete line.

    Raises:
        UserError: another process writes to the file, its folder holds a link out of it, or a line is damaged or of
            another evaluation.
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, episodes: Sequence[Episode]) -> None:
        super().__init__()
        self._path = path
        folder = path.parent  # it may come from an untrusted source, and is written to from now on
        for entry in (*folder.glob("*"), *folder.glob("part_*/*")):
            check_inside(folder, entry)
        check_ends(path)
        with explain_errors(path, "out"):
            self._file = path.open("a+b")
        try:
            try:
                with suppress(NotImplementedError):
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{folder} is in use: another process evaluates there. Wait for it.", code="folder-in-use"
                ) from None
            except OSError:
                pass  # the file system has no locks
            self.torn = self._read({episode.index: episode for episode in episodes})
        except BaseException:
            self._file.close()
            raise

    def add(self, result: EpisodeResult) -> None:
        """Keep a result; it is with the operating system when this returns, or `StorageError` is raised."""
        super().add(result)
        with explain_errors(self._path, "out"):
            self._path.stat()  # the system writes to a removed file without an error
            self._file.write(json.dumps(asdict(result)).encode() + b"\n")
            self._file.flush()

    def _read(self, expected: Mapping[int, Episode]) -> bool:
        """Read all whole lines; remove an incomplete last one, and return whether there was one."""
        self._file.seek(0)
        *lines, torn = self._file.read().split(b"\n")
        for number, line in enumerate(lines, start=1):
            where = f"{self._path}, line {number},"
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError("it holds no keys.", code="results-damaged")
                result = freeze_config(EpisodeResult, row)
            except (ValueError, RecursionError) as error:
                remedy = "Remove that line, and its episode runs again."
                raise UserError(f"{where} is damaged: {shorten(error)}. {remedy}", code="results-damaged") from None
            episode = expected.get(result.index)
            identity = (result.task, result.seed, result.split, result.initial_state)
            if episode is None or identity != (episode.task, episode.seed, episode.split, episode.initial_state):
                raise UserError(
                    f"{where} is of an episode that this evaluation does not have. Is the file of another one?",
                    code="results-of-another-evaluation",
                )
            if result.index in self.found:
                raise UserError(
                    f"{where} has episode {result.index} once more. Remove one of the two lines.",
                    code="results-damaged",
                )
            self.found[result.index] = result
        if torn:
            with explain_errors(self._path, "out"):
                self._file.truncate(sum(len(line) + 1 for line in lines))
        return bool(torn)

    def __exit__(self, *_: object) -> None:
        self._file.close()
