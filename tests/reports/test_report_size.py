"""A report with as many films as a training run makes is small enough to be sent."""

from functools import partial
from pathlib import Path

import pytest

from embodied_rl.assembly.policy_factory import load_deployed
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.evaluate.video import SHOWN, film_episodes, record_results
from embodied_rl.reports.report import Report
from embodied_rl.reports.report_page import write_page
from embodied_rl.reports.result import EpisodeResult
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

MOST = 5_000_000
"""Bytes."""


@pytest.mark.thorough
def test_a_page_with_all_its_films_is_below_5_mb(tmp_path: Path) -> None:
    """16 episodes side by side, best, worst, four kinds of failures, four pairs; each of all 50 control steps."""
    build = partial(Tabletop, TabletopConfig(terminate_on_success=False))
    spec, actor = build(1).spec, load_deployed("asset:tabletop_base.safetensors")
    results = [
        EpisodeResult(e.index, e.task, e.seed, e.split, i % 2 > 0, i % 2 > 0, 50, 0.0, 0.5, None, None, f"kind {i % 8}")
        for i, e in enumerate(enumerate_episodes(spec, "eval", 32))
    ]
    before = record_results(actor, build, results[:SHOWN], seed=0)
    videos = film_episodes(actor, build, spec, results, tmp_path, before=before)
    assert len(videos) == 3 + 4 + SHOWN
    report = Report.from_results(results, spec, {"kind": "training"})
    write_page(tmp_path / "report.html", report, before=report, videos=videos)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<video") == len(videos) and len(page) > sum(file.stat().st_size for file in videos)
    assert len(page.encode()) <= MOST
