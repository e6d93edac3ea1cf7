"""What every test shares: one thread a process, no deadlines of Hypothesis, and a limit on skipped tests."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from embodied_rl.processes.handle import Handle

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="embodied-rl-tests-")  # what is measured here is nobody else's
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture
def closing() -> Iterator[Callable[[list[Handle]], list[Handle]]]:
    """Closes handles that a test made."""
    opened: list[Handle] = []
    yield lambda handles: opened.extend(handles) or handles
    for handle in opened:
        handle.close()


_TOO_MANY = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skips-allowed", metavar="FILE", type=Path, help="fail when more tests are skipped than FILE allows"
    )


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
