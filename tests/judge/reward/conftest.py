"""Writers of scores that are closed after the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.judge.reward.scoring_writer import ScoringWriter
from tests.support.scoring_writers import make_writer


@pytest.fixture
def writing(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., ScoringWriter]:
    """Makes them, in the test's folder."""

    def made(scorer: Any, **options: Any) -> ScoringWriter:
        writer = make_writer(tmp_path, scorer, **options)
        request.addfinalizer(writer.close)
        return writer

    return made
