"""A drawn run that is disturbed, continued until it is finished, and held against the same run undisturbed."""

import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.drawn_runs import DrawnRun
from tests.support.faults import STOPS, Disk, Fault, damage, pick_file, pick_process
from tests.support.running import DEADLINE, Process, assert_learned_alike, assert_same, figures, started, started_anew

PATIENCE = 2 * DEADLINE
REMEDY = re.compile(
    r"[Cc]ontinue with|Give the run|Free some space|[Rr]estore|[Rr]emove|[Ss]tart (a|the) (new )?run|Wait for it to end"
)
"""What a message says that names a remedy."""


@dataclass
class Trial:
    """A run under trial.

    Attributes:
        folder: where it is typed. environment: further variables of its processes. disk: where it is written.
        story: what happened so far, a line each.
        output: everything that was said so far.
        damaged: names of files that were damaged and not restored.
    """

    folder: Path
    drawn: DrawnRun
    environment: Mapping[str, str]
    disk: Disk
    story: list[str] = field(default_factory=list)
    output: str = ""
    damaged: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path | None:
        """The newest run that has begun: one without a configuration has not."""
        begun = [file.parent for file in (self.folder / "runs").glob("*/*/config.yaml")]
        return max(begun, key=lambda run: run.stat().st_mtime) if begun else None

    @property
    def finished(self) -> bool:
        return self.run is not None and (self.run / "report.html").is_file()

    def tell(self, text: str) -> None:
        """Add a line to the story, which pytest shows where the test fails."""
        self.story.append(text)
        print(text, flush=True)

    def words(self) -> tuple[str, ...]:
        """What the user types next."""
        return ("train", *self.drawn.words) if self.run is None else ("train", "resume=last")

    def disturb(self, fault: Fault) -> None:
        """Start the run, or continue it, and let the fault come. New interpreters are hit also while they import."""
        with started_anew(self.folder, *self.words(), **self.environment) as process:
            if not fault.wait(process):
                self.tell(f"{fault}: it was over before")
                self._note(fault, process, *process.finish(PATIENCE))
            elif fault.kind == "kill":
                self._kill(fault, process)
            elif fault.kind == "signal":
                number = STOPS[fault.choice % len(STOPS)]
                self.tell(f"{fault}: {number.name}")
                os.kill(process.process.pid, number)
                self._note(fault, process, *process.finish(PATIENCE))
            elif fault.kind == "full disk":
                self.tell(f"{fault}: {'mounted' if self.disk.mounted else 'limited'}, {fault.amount:.2f}")
                self.disk.fill(process, fault.amount)
                self._note(fault, process, *process.finish(PATIENCE))
                self.disk.clear()
            elif fault.kind == "second resume":
                self._try_a_second(fault, process)
            else:
                process.kill()
                self.output += process.output()
        if fault.kind == "damage" and self.run is not None and not self.finished:
            self._damage(fault)

    def complete(self) -> None:
        """Continue until it is finished: nothing disturbs it any more."""
        while not self.finished:
            with started(self.folder, *self.words(), **self.environment) as process:
                code, output = process.finish(PATIENCE)
                self.output += output
                assert code == 0 and "Report: " in output, output

    def compare(self, expected: Path) -> str:
        """Hold the finished run against the undisturbed one; returns what was found."""
        assert self.run is not None
        rows = figures(self.run)
        if "metrics.jsonl" in self.damaged:
            assert len(rows) < self.drawn.iterations, "then nothing is missing"
            assert all(row in figures(expected) for row in rows) or not self.drawn.exact
            return "equal but for lost metrics"
        assert [row["iteration"] for row in rows] == list(range(1, self.drawn.iterations + 1))
        assert all(row.get("staleness/max", 0) <= self.drawn.staleness for row in rows), rows
        lost = any(row.get("workers/lost_episodes", 0) for row in rows)
        if lost or "Its episodes are lost" in self.output:  # lost after the last rollout, they are in no row
            assert "was killed by SIGKILL" in self.output
            return "lost the episodes of a simulator"
        if not self.drawn.exact:
            return "within its bounds"
        restarts = any(row.get("workers/restarts", 0) for row in rows)  # of one that died between two rollouts
        if restarts or "A new worker collects its part" in self.output:
            assert "was killed by SIGKILL" in self.output or not restarts, self.output
            assert_learned_alike(self.run, expected)
            return "learned alike"
        assert_same(self.run, expected)
        return "equal"

    def _kill(self, fault: Fault, process: Process) -> None:
        victim = pick_process(process, fault.share)
        if victim.pid == process.process.pid:
            self.tell(f"{fault}: the first")
            process.kill()
            self.output += process.output()
            return
        with suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
            self.tell(f"{fault}: {victim.pid} {' '.join(victim.cmdline())[-60:]}")
            victim.kill()
        self._note(fault, process, *process.finish(PATIENCE))

    def _try_a_second(self, fault: Fault, process: Process) -> None:
        self.tell(str(fault))
        with started(self.folder / "second", "train", f"resume={self.run}", **self.environment) as second:
            code, output = second.finish(PATIENCE)
        assert code == 2 and re.search(r"is in use: |is finished: ", output), output
        check_message(output)
        code, output = process.finish(PATIENCE)
        assert code == 0 and "Report: " in output, output
        self.output += output

    def _damage(self, fault: Fault) -> None:
        assert self.run is not None
        if (file := pick_file(self.run, fault.share)) is None:
            return
        before, name = file.read_bytes(), str(file.relative_to(self.run))
        self.tell(f"{name} was {damage(file, fault)}, {fault.amount:.2f}")
        which = "last" if fault.choice % 2 else str(self.run.relative_to(self.folder))
        with started(self.folder, "train", f"resume={which}", **self.environment) as process:
            code, output = process.finish(PATIENCE)
        self.output += output
        if code == 0:
            self.tell(
                " | ".join(line for line in output.splitlines() if Path(name).name in line) or "as if nothing had been"
            )
            if name == "metrics.jsonl" and name in output:
                self.damaged.append(name)
            elif name.startswith("eval/") and name in output:
                file.write_bytes(before)
            return
        self.tell(output.strip())
        assert code == 2, output
        check_message(output)
        assert name in output or str(Path(name).parent) in output, "it names the file"
        file.write_bytes(before)

    def _note(self, fault: Fault, process: Process, code: int, output: str) -> None:
        """Check how a run ended after a fault that it could notice."""
        self.output += output
        self.tell(f"exit code {code}: {' | '.join(output.strip().splitlines()[-4:])}")
        assert "Traceback" not in output, output
        if code == 0:
            assert self.finished or "ontinue with: embodied-rl train resume=" in " ".join(output.split()), output
        elif code > 128:
            assert fault.kind == "signal" and code - 128 in STOPS, output
            assert "ontinue with: embodied-rl train resume=" in " ".join(output.split()), output
        elif code < 0:
            assert fault.kind == "signal" and -code in STOPS, output
            assert not output or f"ended by {signal.Signals(-code).name}" in output, output
        else:
            assert fault.kind in ("kill", "full disk"), output
            cause = {"kill": "was killed by SIGKILL", "full disk": "The disk is full: could not write"}[fault.kind]
            assert cause in output, output
            check_message(output)


def check_message(output: str) -> None:
    """One message, which names a remedy."""
    assert "Traceback" not in output, output
    said = re.findall(r"^embodied-rl: ", output, re.MULTILINE)
    assert len(said) == 1, output
    assert REMEDY.search(output), output
