"""Mutation testing: changes one expression at a time, runs the tests that should notice, and prints the survivors.

python tests/mutation/run.py embodied_rl/deployment/control --tests tests/deployment/control

All tests run twice, to find for each function the tests that call it and how long they take, and whether they pass a
second time. Each mutant then runs in a forked child, with these tests alone, the quickest first: its code takes the
place of the function's (`__code__`). A mutant of a constant, a field or a default value is compiled in a child that
imports the module from it, and meets all tests. No file changes. What tests start as processes of their own is not
mutated. PYTEST_ADDOPTS, such as '-k "not fuzz"', leaves out slow tests. `survivors.md` lists the survivors that were
judged.
"""

import argparse
import contextlib
import gc
import importlib.machinery
import os
import random
import resource
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests.mutation.mutants import Mutant, list_mutants  # noqa: E402

CPU_S, CPU_SHARE, DEADLINE_S = 3, 2, 900
"""Limits of a mutant's tests: processor time above a multiple of what they usually take, and time by the clock. Beyond
either, it counts as noticed."""
QUIET = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]


def main() -> None:
    """Run all mutants of functions in a process that has collected the tests, then the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path, help="files or folders to mutate")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is called with")
    parser.add_argument("--sample", type=int, help="mutants of each file, at random; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--function", default="", help="only functions whose qualified name contains this")
    asked = parser.parse_args()
    import hypothesis  # noqa: F401  imported once for all children, as is torch
    import torch  # noqa: F401

    mutants = [
        (path.resolve(), mutant)
        for source in asked.sources
        for path in sorted(source.glob("*.py") if source.is_dir() else [source])
        for mutant in _choose(path, asked.sample, asked.seed, asked.function)
    ]
    reader, writer = os.pipe()
    if not os.fork():
        _be_quiet()
        pytest.main([*QUIET, *asked.tests], plugins=[_Functions(mutants, writer)])
        os._exit(0)
    os.close(writer)
    noticed = dict[int, bool]()
    with os.fdopen(reader) as lines:
        for line in lines:
            number, outcome = line.split()
            noticed[int(number)] = outcome == "noticed"
            _report(*mutants[int(number)], noticed[int(number)])
    if not noticed:
        raise SystemExit("The tests fail without a mutant, at once or when repeated, or call no function that has one.")
    for number, (path, mutant) in enumerate(mutants):
        if number not in noticed:
            noticed[number] = _is_noticed(lambda path=path, mutant=mutant: _run_tests(path, mutant, asked.tests), 60)
            _report(path, mutant, noticed[number])
    print(f"{sum(noticed.values())} of {len(noticed)} noticed")


def _choose(path: Path, sample: int | None, seed: int, function: str) -> list[Mutant]:
    found = [each for each in list_mutants(path.read_text(encoding="utf-8")) if function in each.function]
    if sample is None or sample >= len(found):
        return found
    return [found[number] for number in sorted(random.Random(f"{seed} {path}").sample(range(len(found)), sample))]


def _report(path: Path, mutant: Mutant, noticed: bool) -> None:
    if not noticed:
        print(f"survived  {path.relative_to(ROOT)}  {mutant.function or '(module)'}:  {mutant.change}", flush=True)


class _Functions:
    """A plug-in of pytest that runs the mutants of functions in place of the tests, and writes what became of each."""

    def __init__(self, mutants: Sequence[tuple[Path, Mutant]], writer: int) -> None:
        self._mutants, self._writer = mutants, writer
        self._tests = defaultdict[CodeType, list[tuple[float, pytest.Item]]](list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        paths = {str(path) for path, _ in self._mutants}
        for item in session.items:
            if not self._watch(item, paths):
                return True
        functions = {each.__code__: each for each in gc.get_objects() if isinstance(each, FunctionType)}
        if _is_noticed(lambda: _count_failed(session.items), time.process_time()):
            return True  # a test that passes once alone would seem to notice every mutant
        for number, (path, mutant) in enumerate(self._mutants):
            module = compile(mutant.tree, str(path), "exec")
            for code, function in functions.items():
                if code.co_filename == str(path) and f"{mutant.function}.".startswith(f"{code.co_qualname}."):
                    changed = _find_code(module, code)
                    if changed is not None and not _is_same(code, changed):
                        tests = sorted(self._tests[code], key=lambda each: each[0])
                        items, usual_s = [item for _, item in tests], sum(took_s for took_s, _ in tests)
                        noticed = _is_noticed(lambda f=function, c=changed, i=items: _run_items(f, c, i), usual_s)
                        os.write(self._writer, f"{number} {'noticed' if noticed else 'survived'}\n".encode())
                        break
        return True

    def _watch(self, item: pytest.Item, paths: set[str]) -> bool:
        """Run a test, note which functions of `paths` it calls; return whether it passed."""
        called = set[CodeType]()

        def note(frame: FrameType, event: str, argument: object) -> None:
            if event == "call" and frame.f_code.co_filename in paths:
                called.add(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        began = time.process_time()
        try:
            reports = runtestprotocol(item, log=False, nextitem=None)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # pyright: ignore[reportArgumentType]
        for code in called:
            self._tests[code].append((time.process_time() - began, item))
        return not any(report.failed for report in reports)


def _find_code(module: CodeType, original: CodeType) -> CodeType | None:
    """Return the code in a compiled module that stands where `original` stands."""
    for each in module.co_consts:
        if isinstance(each, CodeType):
            if (each.co_qualname, each.co_firstlineno) == (original.co_qualname, original.co_firstlineno):
                return each
            if found := _find_code(each, original):
                return found
    return None


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Return whether two functions do the same, wherever they stand in their file."""
    if (one.co_code, one.co_names, len(one.co_consts)) != (other.co_code, other.co_names, len(other.co_consts)):
        return False
    return all(
        _is_same(a, b)
        if isinstance(a, CodeType) and isinstance(b, CodeType)
        else (type(a), repr(a)) == (type(b), repr(b))
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _is_noticed(run: Callable[[], int], usual_s: float) -> bool:
    """Call a function that runs tests, in a child; return whether one fails, or does not end.

    `usual_s` is the processor time that these tests take without a mutant.
    """
    limit_s = CPU_S + CPU_SHARE * int(usual_s)
    gc.freeze()  # so that a child's collections copy no memory
    child = os.fork()
    if not child:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        _be_quiet()
        os._exit(run())
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, 1, 2, -signal.SIGXCPU):
                raise SystemExit(f"tests ended with {code}")
            return code != 0
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _run_items(function: FunctionType, code: CodeType, tests: Sequence[pytest.Item]) -> int:
    """Run tests with a function's code replaced, until one fails; return 1 if one did."""
    try:
        function.__code__ = code
    except ValueError:  # it closes over other names than before
        return 1
    return _count_failed(tests)


def _count_failed(tests: Sequence[pytest.Item]) -> int:
    """Run tests until one fails; return 1 if one did."""
    return int(any(report.failed for item in tests for report in runtestprotocol(item, log=False, nextitem=None)))


def _run_tests(path: Path, mutant: Mutant, tests: Sequence[str]) -> int:
    """Run all tests with a mutated module, those of its own file first; return pytest's code."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    code, original = compile(mutant.tree, str(path), "exec"), importlib.machinery.SourceFileLoader.get_code
    importlib.machinery.SourceFileLoader.get_code = lambda self, fullname: (
        code if fullname == name else original(self, fullname)
    )
    first = [str(own) for each in tests if (own := Path(each, f"test_{path.stem}.py")).exists()]
    return int(pytest.main([*QUIET, *first, *tests]))


if __name__ == "__main__":
    main()
