"""Checkpoints and datasets on the Hugging Face Hub, by `hf:<owner>/<name>[@revision][:subfolder]`.

`download` and `upload` alone connect, and are called for what the user typed, never for what a file names. `download`
pins the revision to a commit. `find_downloaded` finds that commit in the cache of `huggingface_hub`, whose environment
variables count: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import errno
import hashlib
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError

PREFIX = "hf:"
_SCHEME = re.compile(
    r"hf:(?P<kind>datasets/)?(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^:@]+))?(:(?P<path>[^:@]+))?", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_KINDS = {
    "model": ("safetensors", "json", "txt", "model", "jinja"),
    "dataset": ("parquet", "mp4", "json", "jsonl", "npz", "png", "jpg", "safetensors"),
}
"""Endings of the files that are downloaded. None of these formats runs code when it is read."""
_PARTS = "*--*_checkpoint.pt"
"""Pattern of pickled parts of a policy, as OpenVLA-OFT stores them: without them the rest would be another policy."""
_UNREADABLE = (AssertionError, AttributeError, LookupError, TypeError)
"""Exceptions of the library for an answer that is not as the Hub's are."""
_RESETS = 5
"""How often a download begins again where the other side resets connections."""
KEYS = {
    r"(policy\.)?checkpoint|policy(_file|\.(tokenizer|statistics))?|policies\..*|model|reward\.(file|path)": "model",
    r"dataset|source|replay\.preload": "dataset",
    r"to": "",
}
"""Keys, as regular expressions, whose values may be on the Hub, and the kind of repository to download."""


@dataclass(frozen=True)
class HubName:
    """What a text such as "hf:lerobot/pi05_base@main:step_1000" names.

    Attributes:
        repo: owner and name.
        kind: "model" or "dataset"; the latter is typed as `hf:datasets/<owner>/<name>`.
        revision: branch, tag or commit; None for the default branch.
        path: folder or file in the repository; "" for all of it.
    """

    repo: str
    kind: str
    revision: str | None
    path: str

    @staticmethod
    def parse(text: str, kind: str = "model") -> "HubName":
        """Read a text; `kind` is that of a repository without `datasets/` before its owner.

        Raises:
            UserError: the text has another form.
        """
        found = _SCHEME.fullmatch(text)
        parts = Path(found["path"] or "").parts if found else ()
        if found is None or ".." in parts or (parts and Path(found["path"]).is_absolute()):
            message = f"{text}: give {PREFIX}<owner>/<name>, then @<revision> and :<folder or file> where needed."
            raise UserError(message, code="hub-name-invalid")
        try:  # the import fails where HF_ENDPOINT is no address
            import_module("huggingface_hub.utils").validate_repo_id(found["repo"])
        except ValueError as error:
            raise UserError(f"{text}: {_shorten(error)}", code="hub-name-invalid") from None
        return HubName(found["repo"], "dataset" if found["kind"] else kind, found["revision"], "/".join(parts))

    @property
    def pinned(self) -> bool:
        """Return whether the revision is a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    @property
    def patterns(self) -> list[str]:
        """Return the patterns of the files that are downloaded."""
        if Path(self.path).suffix.removeprefix(".") in _KINDS[self.kind]:
            return [self.path]
        return [f"{self.path}/*.{ending}" if self.path else f"*.{ending}" for ending in _KINDS[self.kind]]

    @property
    def parts(self) -> list[str]:
        """Return the patterns of pickled parts, which are looked for and not downloaded."""
        return [f"{self.path}/{_PARTS}" if self.path else _PARTS] if self.kind == "model" else []

    def __str__(self) -> str:
        before = "datasets/" if self.kind == "dataset" else ""
        revision, path = f"@{self.revision}" if self.revision else "", f":{self.path}" if self.path else ""
        return f"{PREFIX}{before}{self.repo}{revision}{path}"


def download(text: str, kind: str = "model") -> str:
    """Download what a text names, unless it is in the cache; return the text with the revision pinned to a commit.

    It prints the size before, and the library shows the progress. A connection that is closed continues where it
    ended, one that is reset begins its file again; after the end of the process, whole files stay.

    Raises:
        UserError: no such repository or revision, no permission, no connection, no file of a known format, too little
            space on the disk, or a file that is not what the Hub lists.
    """
    name = HubName.parse(text, kind)
    with _explain_errors(name):
        try:
            with _without_progress():
                listed = _without_pickles(name, _call(name, dry_run=True, also=name.parts))
        except import_module("huggingface_hub.errors").DryRunError as error:
            if not _was_not_reached(error.__cause__):
                raise error.__cause__ from None
            folder = Path(_call(name, local_files_only=True))  # offline: what is in the cache, if it is complete
            print(f"{name}: the Hub is not asked or does not answer; taking {folder.name[:12]} of the cache.")
            return str(_require_content(replace(name, revision=folder.name)))
        if not listed:
            raise UserError(f"{name} has no file of {', '.join(_KINDS[name.kind])}.", code="hub-empty")
        name = replace(name, revision=listed[0].commit_hash)
        snapshot = Path(listed[0].local_path.removesuffix(listed[0].filename))
        note = _find_note(snapshot)
        new = {each.filename for each in listed if each.will_download}
        if new:
            _announce(name, listed, sum(each.file_size for each in listed if each.will_download))
        if new or note.is_file():
            unchecked = new | (set(note.read_text(encoding="utf-8").splitlines()) if note.is_file() else set())
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text("\n".join(sorted(unchecked)), encoding="utf-8")
            _call_again(name)
            _check_content(name, snapshot, unchecked)
            note.unlink()
    return str(_require_content(name))


def download_all(values: Any, typed: Collection[str], key: str = "") -> Any:
    """Return a configuration's values with everything that was typed and names something on the Hub downloaded.

    Args:
        values: plain mappings, lists and values.
        typed: full names of the keys that the user typed, or of nodes around them. What files set stays as it is.
        key: full name of the values' node.

    Raises:
        UserError: a typed key names something on the Hub and is none of `KEYS`, or a download fails.
    """
    if isinstance(values, dict):
        return {n: download_all(value, typed, f"{key}.{n}" if key else str(n)) for n, value in values.items()}
    if isinstance(values, list):
        return [download_all(value, typed, key) for value in values]
    known = any(key == name or key.startswith(f"{name}.") for name in typed)
    if not (known and isinstance(values, str) and values.startswith(PREFIX)):
        return values
    kind = next((kind for pattern, kind in KEYS.items() if re.fullmatch(pattern, key)), None)
    if kind is None:
        message = f"{key}={values}: this key takes no name on the Hub. Give a path."
        raise UserError(message, code="hub-not-here")
    if not kind:
        return values
    name = HubName.parse(values, kind)
    if key == "policy.tokenizer" and not name.path:  # and not the weights beside it
        name = replace(name, path="tokenizer.json")
    return download(str(name), kind)


def check_upload(text: str) -> HubName:
    """Check that a text names a place for an upload, and that there are a token and a connection; return the name.

    Raises:
        UserError: it does not, it names a commit or a dataset, no token is set, or the Hub must not be asked.
    """
    name, library = HubName.parse(text), import_module("huggingface_hub")
    if name.pinned or name.kind != "model":
        raise UserError(f"{text}: give a model's repository, and a branch or none.", code="hub-name-invalid")
    if library.get_token() is None:
        message = f"{text}: an upload needs HF_TOKEN=<your token that may write>, or `hf auth login`."
        raise UserError(message, code="hub-token-missing")
    if import_module("huggingface_hub.constants").HF_HUB_OFFLINE:
        raise UserError(f"{text}: HF_HUB_OFFLINE is set, and an upload needs the Hub.", code="hub-offline")
    return name


def prepare_upload(text: str) -> HubName:
    """Make the repository and the branch of an upload where they are missing; a new repository is private.

    Raises:
        UserError: see `check_upload`; or the Hub refuses, or does not answer.
    """
    name, api = check_upload(text), import_module("huggingface_hub").HfApi()
    with _explain_errors(name, "nothing was uploaded."):
        api.create_repo(name.repo, private=True, exist_ok=True)
        if name.revision is not None:
            api.create_branch(name.repo, branch=name.revision, exist_ok=True)
    return name


def upload(folder: Path, name: HubName, message: str) -> str:
    """Upload a folder's files as one commit after `prepare_upload`; return the text with that commit.

    Raises:
        UserError: the Hub refuses, or does not answer.
    """
    again = f"hf upload {name.repo} {folder} {name.path or '.'} --revision {name.revision or 'main'}"
    with _explain_errors(name, f"the files are in {folder}. Upload them with: {again}"):
        done = import_module("huggingface_hub").HfApi().upload_folder(
            repo_id=name.repo, folder_path=folder, path_in_repo=name.path or None, revision=name.revision,
            commit_message=message,
        )  # fmt: skip
    return str(replace(name, revision=done.oid))


def find_downloaded(text: str) -> Path:
    """Return the folder or file in the cache that a pinned name stands for, without a connection.

    Raises:
        UserError: it was not downloaded, or only a part of it.
    """
    name = HubName.parse(text)
    if not name.pinned:
        raise UserError(
            f"{text}: its revision is not a commit, and only what is typed is looked up on the Hub. Type it yourself.",
            code="hub-not-pinned",
        )
    with _explain_errors(name):
        folder = Path(_call(name, local_files_only=True))
    if _find_note(folder).is_file():
        raise UserError(
            f"{text}: its download ended before the files were compared with the Hub's list. Type it again, with a "
            "connection.",
            code="hub-unchecked",
        )
    return folder / name.path


def _find_note(snapshot: Path) -> Path:
    """Return the file that lists new files of a snapshot which were not compared with the Hub's list yet."""
    return snapshot.parents[1] / f"unchecked-{snapshot.name}"


def _call(name: HubName, *, also: Sequence[str] = (), **options: Any) -> Any:
    library: Any = import_module("huggingface_hub")
    patterns = [*name.patterns, *also]
    return library.snapshot_download(
        name.repo, repo_type=name.kind, revision=name.revision, allow_patterns=patterns, **options
    )


def _call_again(name: HubName) -> None:
    """Download; where a connection is reset, which the library does not continue, begin the unfinished files again."""
    for _ in range(_RESETS):
        with suppress(import_module("httpx2").ReadError):
            return _call(name)
    return _call(name)


def _without_pickles(name: HubName, listed: list[Any]) -> list[Any]:
    """Return the listed files without pickled parts that are there as safetensors, too.

    Raises:
        UserError: a part is there only as a pickle.
    """
    known = {each.filename for each in listed}
    pickles = [each for each in known if each.endswith(".pt")]
    for each in sorted(pickles):
        if f"{each.removesuffix('.pt')}.safetensors" not in known:
            message = f"{name} has {each}, a pickle, which is not downloaded, and the policy is not complete without it"
            raise UserError(f"{message}: download the repository, and give its folder.", code="checkpoint-is-pickle")
    return [each for each in listed if each.filename not in pickles]


def _was_not_reached(error: BaseException | None) -> bool:
    """Return whether the Hub was not reached, so that the cache may answer."""
    library, transport = import_module("huggingface_hub.errors"), import_module("httpx2")
    offline = (transport.ConnectError, transport.TimeoutException, library.OfflineModeIsEnabled)
    return error is None or isinstance(error, offline)


def _announce(name: HubName, listed: list[Any], missing: int) -> None:
    cache = Path(import_module("huggingface_hub.constants").HF_HUB_CACHE)
    whole = sum(each.file_size for each in listed)
    there = f", {whole - missing:,} bytes of {whole:,} are there" if missing < whole else ""
    print(f"Downloading {name}: {missing:,} bytes in {len(listed)} files{there}. To {cache}", flush=True)
    place = next(each for each in (cache, *cache.parents) if each.exists())
    if (free := shutil.disk_usage(place).free) < missing:
        raise UserError(
            f"{name} takes {missing:,} bytes, and {place} has {free:,}. HF_HOME=<folder> names another disk.",
            code="disk-full",
        )


def _check_content(name: HubName, folder: Path, files: Collection[str]) -> None:
    """Compare new files with the sizes and, of large files, the SHA-256 that the Hub lists; delete what differs.

    The library compares their sizes with those in the answers' headers.
    """
    listing = (
        import_module("huggingface_hub")
        .HfApi()
        .list_repo_tree(name.repo, recursive=True, revision=name.revision, repo_type=name.kind)
    )
    damaged: list[str] = []
    for listed in (each for each in listing if each.path in files):
        file, lfs = folder / listed.path, listed.lfs
        if not file.is_file():
            continue
        with file.open("rb") as content:
            found = (file.stat().st_size, None if lfs is None else hashlib.file_digest(content, "sha256").hexdigest())
        if found != (listed.size, None if lfs is None else lfs.sha256):
            damaged.append(listed.path)
            file.resolve().unlink()
            file.unlink(missing_ok=True)
    if damaged:
        message = f"{name}: {', '.join(damaged)}: other size or SHA-256 than the Hub lists. Deleted; try again."
        raise UserError(message, code="hub-damaged")


def _require_content(name: HubName) -> HubName:
    if not find_downloaded(str(name)).exists():
        raise UserError(f"{name}: there is no '{name.path}' with files of a known format.", code="hub-empty")
    return name


@contextmanager
def _explain_errors(name: HubName, remedy: str = "") -> Iterator[None]:
    """Turn the library's errors into one line; `remedy` ends those of an upload."""
    try:
        library, transport = import_module("huggingface_hub.errors"), import_module("httpx2")
    except ValueError as error:
        raise UserError(f"{name}: HF_ENDPOINT is no address ({_shorten(error)}).", code="hub-refused") from error
    kinds: dict[Any, tuple[str, str]] = {
        library.GatedRepoError: (
            "hub-gated", "its owner asks for consent. Give it on the repository's page, and set HF_TOKEN=<your token>.",
        ),
        library.RepositoryNotFoundError: (
            "hub-missing", "the Hub has no such repository, or it is private: then set HF_TOKEN=<your token>.",
        ),
        library.RevisionNotFoundError: ("hub-revision", "the repository has no such revision."),
        library.IncompleteSnapshotError: (
            "hub-incomplete",
            "only a part of it was downloaded. Type it again with a connection, and without HF_HUB_OFFLINE.",
        ),
        (library.LocalEntryNotFoundError, library.OfflineModeIsEnabled): (
            "hub-offline",
            "it was not downloaded, and the Hub was not reached (HF_HUB_OFFLINE, HF_ENDPOINT, the network).",
        ),
        (library.HfHubHTTPError, ValueError, transport.InvalidURL, *_UNREADABLE): (
            "hub-refused", "the Hub answered: {}. HF_HUB_OFFLINE=1 takes what was downloaded before.",
        ),
        (transport.HTTPError, OSError): ("hub-interrupted", "it ended: {}. The same command continues it."),
    }  # fmt: skip
    try:
        yield
    except UserError:
        raise
    except (transport.HTTPError, transport.InvalidURL, OSError, ValueError, *_UNREADABLE) as error:
        code, text = next(found for kind, found in kinds.items() if isinstance(error, kind))
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            code, text = "disk-full", "{}. Free space and type it again, or HF_HOME=<folder> names another disk."
        text = f"{_shorten(error)}; {remedy}" if remedy else text.format(_shorten(error))
        raise UserError(f"{name}: {text}", code=code) from error


@contextmanager
def _without_progress() -> Iterator[None]:
    """Hide the library's progress bars, as of a listing."""
    library: Any = import_module("huggingface_hub.utils")
    if library.are_progress_bars_disabled():
        yield
        return
    library.disable_progress_bars()
    try:
        yield
    finally:
        library.enable_progress_bars()


def _shorten(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]
