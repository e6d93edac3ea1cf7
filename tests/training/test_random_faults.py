"""Whatever befalls a run, it continues to the bits of one that nothing befell, or one message says what to do.

A few cases by default. `--fault-cases 200 --fault-seed 1000` draws others: a case is a seed, which reproduces it alone.
"""

from pathlib import Path

import pytest

from tests.support.drawn_runs import DrawnRun, draw_run
from tests.support.faults import draw_faults, opened_disk
from tests.support.running import complete
from tests.support.trials import Trial

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600), pytest.mark.thorough]

SHARED = 6
"""Cases that disturb the same run, which is run undisturbed once for all of them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first: int = metafunc.config.getoption("--fault-seed")
    count: int = metafunc.config.getoption("--fault-cases")
    metafunc.parametrize("seed", range(first, first + count))


class References:
    """Finished runs that nothing disturbed, made when they are needed."""

    def __init__(self, folder: Path, plugin_path: str) -> None:
        self._folder, self._plugin_path = folder, plugin_path
        self._made: dict[DrawnRun, Path] = {}

    def __getitem__(self, drawn: DrawnRun) -> Path:
        if drawn not in self._made:
            folder = self._folder / str(len(self._made))
            self._made[drawn] = complete(folder, "train", *drawn.words, PYTHONPATH=self._plugin_path)
        return self._made[drawn]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, plugin_path: str) -> References:
    return References(tmp_path_factory.mktemp("undisturbed"), plugin_path)


def test_a_fault_changes_no_bit_or_ends_with_one_message(
    seed: int, references: References, plugin_path: str, tmp_path: Path
) -> None:
    drawn = draw_run(seed // SHARED)
    print(f"\ncase {seed}:", *drawn.words)
    with opened_disk(tmp_path / "runs") as disk:
        trial = Trial(tmp_path, drawn, {"PYTHONPATH": plugin_path}, disk)
        for fault in draw_faults(seed, drawn.iterations):
            if not trial.finished:
                trial.disturb(fault)
        trial.complete()
        trial.tell(trial.compare(references[drawn]))
