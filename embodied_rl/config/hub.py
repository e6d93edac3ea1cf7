"""Checkpoints and datasets on the Hugging Face Hub, by `hf:<owner>/<name>[@revision][:subfolder]`.

`download` and `upload` alone connect, and are called for what the user typed, never for what a file names. `download`
pins the revision to a commit. `find_downloaded` finds that commit in the cache of `huggingface_hub`, whose environment
variables count: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
KEYS = {
    r"(policy\.)?checkpoint|policy(\.(tokenizer|statistics))?|policies\..*|model|reward\.(file|path)": "model",
    r"dataset|replay\.preload": "dataset",
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

    def __str__(self) -> str:
        before = "datasets/" if self.kind == "dataset" else ""
        revision, path = f"@{self.revision}" if self.revision else "", f":{self.path}" if self.path else ""
        return f"{PREFIX}{before}{self.repo}{revision}{path}"


def download(text: str, kind: str = "model") -> str:
    """Download what a text names, unless it is in the cache; return the text with the revision pinned to a commit.

    It prints the size before, and the library shows the progress. A connection that is cut off continues where it ended;
    after the end of the process, whole files stay.

    Raises:
        UserError: no such repository or revision, no permission, no connection, no file of a known format, too little
            space on the disk, or a file that is not what the Hub lists.
    """
    name = HubName.parse(text, kind)
    with _explain_errors(name):
        try:
            with _without_progress():
                listed = _call(name, dry_run=True)
        except import_module("huggingface_hub.errors").DryRunError as error:
            if not _was_not_reached(error.__cause__):
                raise error.__cause__ from None
            folder = Path(_call(name, local_files_only=True))  # offline: what is in the cache, if it is complete
            print(f"{name}: the Hub is not asked or does not answer; taking {folder.name[:12]} of the cache.")
            return str(_require_content(replace(name, revision=folder.name)))
        if not listed:
            raise UserError(f"{name} has no file of {', '.join(_KINDS[name.kind])}.", code="hub-empty")
        name = replace(name, revision=listed[0].commit_hash)
        missing = sum(each.file_size for each in listed if each.will_download)
        if missing:
            _announce(name, listed, missing)
        folder = Path(_call(name))
        if missing:
            _check_content(name, folder, [each.filename for each in listed if each.will_download])
    return str(_require_content(name))


def download_all(values: Any, key: str = "") -> Any:
    """Return a configuration's values with everything that they name on the Hub downloaded and pinned.

    Args:
        values: plain mappings, lists and values, as typed.
        key: full name of their node.

    Raises:
        UserError: a key names something on the Hub and is none of `KEYS`, or a download fails.
    """
    if isinstance(values, dict):
        return {name: download_all(value, f"{key}.{name}" if key else str(name)) for name, value in values.items()}
    if not (isinstance(values, str) and values.startswith(PREFIX)):
        return values
    kind = next((kind for pattern, kind in KEYS.items() if re.fullmatch(pattern, key)), None)
    if kind is None:
        message = f"{key}={values}: policies, models and datasets can be on the Hub, and nothing else. Give a path."
        raise UserError(message, code="hub-not-here")
    if not kind:
        return values
    name = HubName.parse(values, kind)
    if key == "policy.tokenizer" and not name.path:  # and not the weights beside it
        name = replace(name, path="tokenizer.json")
    return download(str(name), kind)


def check_upload(text: str) -> HubName:
    """Check that a text names a place for an upload, and that there is a token; return what it names.

    Raises:
        UserError: it does not, it names a commit, or no token is set.
    """
    name = HubName.parse(text)
    if name.pinned:
        raise UserError(f"{text}: give a branch, or none, in place of a commit.", code="hub-name-invalid")
    if import_module("huggingface_hub").get_token() is None:
        message = f"{text}: an upload needs HF_TOKEN=<your token that may write>, or `hf auth login`."
        raise UserError(message, code="hub-token-missing")
    return name


def upload(folder: Path, text: str, message: str) -> str:
    """Upload a folder's files as one commit; return the text with that commit. A new repository is private.

    Raises:
        UserError: see `check_upload`; or the Hub refuses, or does not answer.
    """
    name, api = check_upload(text), import_module("huggingface_hub").HfApi()
    with _explain_errors(name):
        api.create_repo(name.repo, repo_type=name.kind, private=True, exist_ok=True)
        done = api.upload_folder(
            repo_id=name.repo,
            repo_type=name.kind,
            folder_path=folder,
            path_in_repo=name.path or None,
            revision=name.revision,
            commit_message=message,
        )
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
        return Path(_call(name, local_files_only=True)) / name.path


def _call(name: HubName, **options: Any) -> Any:
    library: Any = import_module("huggingface_hub")
    return library.snapshot_download(
        name.repo, repo_type=name.kind, revision=name.revision, allow_patterns=name.patterns, **options
    )


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


def _check_content(name: HubName, folder: Path, files: list[str]) -> None:
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
def _explain_errors(name: HubName) -> Iterator[None]:
    library, transport = import_module("huggingface_hub.errors"), import_module("httpx2")
    where = f"{name}: "
    try:
        yield
    except library.GatedRepoError as error:
        message = "its owner asks for consent. Give it on the repository's page, and set HF_TOKEN=<your token>."
        raise UserError(where + message, code="hub-gated") from error
    except library.RepositoryNotFoundError as error:
        message = "the Hub has no such repository, or it is private: then set HF_TOKEN=<your token>."
        raise UserError(where + message, code="hub-missing") from error
    except library.RevisionNotFoundError as error:
        raise UserError(where + "the repository has no such revision.", code="hub-revision") from error
    except library.IncompleteSnapshotError as error:
        message = "only a part of it was downloaded. Type it again with a connection, and without HF_HUB_OFFLINE."
        raise UserError(where + message, code="hub-incomplete") from error
    except (library.LocalEntryNotFoundError, library.OfflineModeIsEnabled) as error:
        message = "it was not downloaded, and the Hub was not reached (HF_HUB_OFFLINE, HF_ENDPOINT, the network)."
        raise UserError(where + message, code="hub-offline") from error
    except library.HfHubHTTPError as error:
        message = f"the Hub answered: {_shorten(error)}. HF_HUB_OFFLINE=1 takes what was downloaded before."
        raise UserError(where + message, code="hub-refused") from error
    except (transport.HTTPError, OSError) as error:
        message = f"the download ended: {_shorten(error)}. The same command continues it."
        raise UserError(where + message, code="hub-interrupted") from error


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
