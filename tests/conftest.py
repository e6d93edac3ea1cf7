"""What every test shares: the way to `tests.support`, one thread a process, tiers, and a limit on skipped tests."""

import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from embodied_rl.runtime.processes.handle import Handle

ROOT = str(Path(__file__).parents[1])
"""On this process's path by `pythonpath` in pyproject.toml, and below on that of every process that a test starts."""

pytest.register_assert_rewrite("tests.support")
if ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not re.search(r"\bgpu\b", " ".join(sys.argv)) and "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # policy.device=auto is the CPU, whose bits tests compare
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="embodied-rl-tests-")  # what is measured here is nobody else's
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Ray reads these once, when it is first imported. A token of our own: nothing of the user's is read or written.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
os.environ.pop("RAY_ADDRESS", None)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup; tests send it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; what is started inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

_VARIABLES = dict(os.environ)
THOROUGH = {"thorough", "sim"}
"""Tests so marked run with `--thorough`, where `-m` names one of their marks, and where their file is named."""
APART = {"slow", "packaging", "gpu", "network"}
"""Tests so marked run only where `-m` names one of their marks, whatever else it says."""


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """No test leaves variables to the next: forks of the tests' server have to fit the variables of their starter."""
    from tests.support.forks import is_fit

    before = dict(os.environ)
    assert is_fit(before, _VARIABLES), f"a module's or session's fixture left {before.items() ^ _VARIABLES.items()}"
    yield
    changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
    for name in changed - {"PYTEST_CURRENT_TEST"}:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]


@pytest.fixture
def forks() -> Iterator[None]:
    """The ranks and workers that a test starts are forks: for what they compute, not for how they start."""
    from tests.support import forked  # it notes the variables that are set above

    with forked.fork_own_children():
        yield


@pytest.fixture
def closing() -> Iterator[Callable[[list[Handle]], list[Handle]]]:
    """Closes handles that a test made."""
    opened: list[Handle] = []
    yield lambda handles: opened.extend(handles) or handles
    for handle in opened:
        handle.close()


@pytest.fixture
def files_up_to() -> Callable[[int], AbstractContextManager[None]]:
    """In its context files may not grow beyond so many bytes, which the system reports as it does a full disk."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skips-allowed", metavar="FILE", type=Path, help="fail when more tests are skipped than FILE allows"
    )
    parser.addoption("--thorough", action="store_true", help="run the tests marked `thorough` or `sim` as well")
    parser.addoption("--backwards", action="store_true", help="the last test first")
    parser.addoption("--fault-cases", metavar="COUNT", type=int, default=2, help="so many runs under faults")
    parser.addoption("--fault-seed", metavar="SEED", type=int, default=140, help="the first of their seeds, one a run")


def is_left_out(marks: set[str], config: pytest.Config, named: bool) -> bool:
    """Return whether tests with these marks run only when they are asked for, and are not."""
    asked = set(re.findall(r"\w+", config.option.markexpr))
    if not named and not config.getoption("--thorough"):
        return bool(marks & (APART | THOROUGH)) and not marks & asked
    return bool(marks & APART) and not marks & asked


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file whose `pytestmark` leaves out all its tests; not called for a file that is named."""
    if collection_path.suffix != ".py":
        return None
    marked = re.search(r"^pytestmark = .*", collection_path.read_text(), re.MULTILINE)
    return (marked and is_left_out(set(re.findall(r"mark\.(\w+)", marked[0])), config, named=False)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs only when it is asked for."""
    for item in items:
        if item.get_closest_marker("sim"):
            item.add_marker("process")
    left: list[pytest.Item] = []
    for item in items:
        if is_left_out({mark.name for mark in item.iter_markers()}, config, session.isinitpath(item.path)):
            left.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    unwanted = set(left)
    items[:] = [item for item in items if item not in unwanted]
    if hasattr(config, "workerinput"):  # side by side, whole files: those that take long come first
        long = {item.path for item in items if item.get_closest_marker("process")}
        items.sort(key=lambda item: item.path not in long)
    if config.getoption("--backwards"):
        items.reverse()


_STARTED: list[str] = []
"""Python processes that were started since the last test ended, but for those of other people's packages."""


def _notice(event: str, args: tuple) -> None:
    if event != "subprocess.Popen" or not Path(os.fsdecode(args[0] or args[1][0])).name.startswith("python"):
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == subprocess.__file__:
        frame = frame.f_back
    if "site-packages" not in frame.f_code.co_filename:
        _STARTED.append(" ".join(map(str, args[1]))[:200])


sys.addaudithook(_notice)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Who starts processes says so, so that `-m "not process"` is quick."""
    try:
        return (yield)
    finally:
        started = _STARTED.copy()
        _STARTED.clear()
        if started and item.get_closest_marker("process") is None:
            pytest.fail(f"mark it `process`: it started {started}", pytrace=False)


_TOO_MANY = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a run fail whose number of skipped tests has grown."""
    limit = session.config.getoption("--skips-allowed")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if limit is None or reporter is None:
        return
    allowed, skipped = int(limit.read_text()), len(reporter.stats.get("skipped", []))
    session.config.stash[_TOO_MANY] = f"{skipped} tests skipped, {allowed} allowed by {limit}"
    if skipped > allowed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _TOO_MANY in config.stash:
        terminalreporter.write_line(config.stash[_TOO_MANY])
