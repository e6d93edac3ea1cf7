"""What `embodied-rl watch` shows: curves of one or several runs while they train, and their newest films."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from embodied_rl.reports.audit_section import make_audit_section, summarise_audit
from embodied_rl.reports.chart import Series, draw_line_chart, join_charts
from embodied_rl.reports.page import make_html_table, make_page, make_section
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import Value, read_metrics, read_number
from embodied_rl.system.untrusted_files import check_inside, make_printable

CHARTS = (
    ("Success in evaluations", "eval/success", True),
    ("Success while exploring", "rollout/success", True),
    ("Return", "rollout/return", False),
    ("KL divergence of an update", "update/kl", False),
    ("Entropy", "update/entropy", False),
    ("Decisions a second", "time/decisions_per_second", False),
)
"""Title, metric, and whether it is a share of episodes; charts without a point are left out."""
SHOWN_FILMS = 6
_SCRIPT = """<script>
async function renew() {
  try {
    const parts = await (await fetch("/parts")).json();
    for (const [name, text] of Object.entries(parts)) {
      const place = document.getElementById(name);
      if (place.dataset.text !== text) { place.innerHTML = text; place.dataset.text = text; }
    }
    document.getElementById("state").textContent = "";
  } catch { document.getElementById("state").textContent = "The command has ended; this is what it showed last."; }
}
renew(); setInterval(renew, 3000);
</script>"""


@dataclass(frozen=True)
class WatchedRun:
    """A run folder, and the name that it is shown by."""

    folder: RunFolder
    label: str

    def list_films(self) -> list[Path]:
        """Return the newest films, the newest first; raise `UserError` if their folder is a link elsewhere."""
        check_inside(self.folder.path, self.folder.videos)
        top = self.folder.videos.resolve()
        films = [path for path in top.rglob("*.mp4") if path.is_file() and path.resolve().is_relative_to(top)]
        return sorted(films, key=lambda path: path.stat().st_mtime, reverse=True)[:SHOWN_FILMS]

    def name_film(self, film: Path) -> str:
        """Return the part of an address that names a film of `list_films`."""
        return quote(os.fsencode(film.relative_to(self.folder.videos.resolve())))


def name_runs(folders: Sequence[RunFolder]) -> list[WatchedRun]:
    """Name each run by its experiment and seed, and by its folder where these are shared."""
    names = [f"{each.experiment}, seed {each.seed}" for each in folders]
    labels = [
        name if names.count(name) == 1 else f"{name} ({each.path.resolve().name})"
        for each, name in zip(folders, names, strict=True)
    ]
    return [WatchedRun(each, make_printable(label)) for each, label in zip(folders, labels, strict=True)]


def make_frame(runs: Sequence[WatchedRun]) -> str:
    """Make the page that asks for its parts every three seconds."""
    places = "".join(f'<div id="{name}"></div>' for name in ("table", "robot", "curves", "films"))
    note = '<p class="note" id="state" role="status"></p>'
    return make_page("Runs", ", ".join(run.label for run in runs), [note, places, _SCRIPT])


def make_parts(runs: Sequence[WatchedRun]) -> dict[str, str]:
    """Make what changes while runs train: name of a place on the page → HTML."""
    metrics = [read_metrics(run.folder.metrics) for run in runs]
    charts = [
        draw_line_chart(
            title,
            [_draw_curve(run.label, rows, metric) for run, rows in zip(runs, metrics, strict=True)],
            x_label="iteration",
            percent=share,
        )
        for title, metric, share in CHARTS
    ]
    rows = [_describe(run, found) for run, found in zip(runs, metrics, strict=True)]
    headings = ("run", "iteration", "exploring", "deployed", "episodes", "minutes")
    films = "".join(
        f'<figure><video src="/film/{number}/{run.name_film(film)}" controls loop muted preload="metadata"></video>'
        f"<figcaption>{escape(f'{run.label}: {film.stem}')}</figcaption></figure>"
        for number, run in enumerate(runs)
        for film in run.list_films()
    )
    audits = ((run, make_audit_section(summarise_audit(run.folder.path))) for run in runs)
    robots = "".join(f"<p><b>{escape(run.label)}</b></p>{audit}" for run, audit in audits if audit)
    return {
        "table": make_html_table(headings, rows),
        "robot": make_section("On the robot", robots),
        "curves": make_section("Curves", join_charts(charts)),
        "films": make_section("Newest films", f'<div class="videos">{films}</div>' if films else ""),
    }


def find_film(runs: Sequence[WatchedRun], number: str, name: str) -> Path | None:
    """Return the film that a page asks for by the quoted `name`, or None if it is none of those shown."""
    if number not in map(str, range(len(runs))):
        return None
    run = runs[int(number)]
    return next((film for film in run.list_films() if run.name_film(film) == name), None)


def _draw_curve(label: str, rows: Sequence[dict[str, Value]], metric: str) -> Series:
    """Return a metric's curve, with the interval of evaluations."""
    known = [row for row in rows if read_number(row.get(metric)) is not None]
    x, y = [float(read_number(row.get("iteration")) or 0) for row in known], [read_number(row[metric]) for row in known]
    low, high = ([read_number(row.get(f"eval/{name}")) for row in known] for name in ("low", "high"))
    return Series(label, x, y, low, high) if metric == "eval/success" else Series(label, x, y)


def _describe(run: WatchedRun, rows: Sequence[dict[str, Value]]) -> tuple[str, ...]:
    """Return a table's row of a run: where it is, and its last success."""
    last = rows[-1] if rows else {}
    shares = [
        next((f"{100 * p:.1f} %" for row in reversed(rows) if (p := read_number(row.get(name))) is not None), "–")
        for name in ("rollout/success", "eval/success")
    ]
    episodes, seconds = (read_number(last.get(name)) for name in ("total/episodes", "time/elapsed"))
    numbers = (f"{episodes:,.0f}" if episodes else "–", f"{seconds / 60:.1f}" if seconds else "–")
    return escape(run.label), escape(str(last.get("iteration", "–"))), *shares, *numbers
