"""Mutation testing: changes one expression at a time, runs the tests that should notice, and prints the survivors.

python tests/mutation/run.py embodied_rl/deployment/control --tests tests/deployment/control --sample 10

The module's own test file runs first. PYTEST_ADDOPTS, such as '-k "not fuzz"', leaves out slow tests.
The tree stays as it is: each mutant is compiled in a forked child, whose imports get it in place of the file. What
tests start as processes of their own is not mutated. `survivors.md` lists survivors that were judged.
"""

import argparse
import ast
import contextlib
import importlib.machinery
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.mutation.mutants import Mutant, list_mutants

CPU_S, DEADLINE_S = 40, 400
"""Limits of a mutant's tests: processor time, and time by the clock. Beyond either, it counts as noticed."""


def main() -> None:
    """Run the mutants, one at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path, help="files or folders to mutate")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is called with")
    parser.add_argument("--sample", type=int, help="mutants of each file, at random; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--function", default="", help="only functions whose qualified name contains this")
    asked = parser.parse_args()
    import hypothesis  # noqa: F401  imported once for all children, as is torch
    import torch  # noqa: F401

    counts = {True: 0, False: 0}
    for file in sorted(path for source in asked.sources for path in _list_files(source)):
        found = [each for each in list_mutants(file.read_text(encoding="utf-8")) if asked.function in each.function]
        if asked.sample is not None and asked.sample < len(found):
            chosen = random.Random(f"{asked.seed} {file}").sample(range(len(found)), asked.sample)
            found = [found[number] for number in sorted(chosen)]
        for mutant in found:
            noticed = is_noticed(file, mutant, asked.tests)
            counts[noticed] += 1
            if not noticed:
                print(f"survived  {file}  {mutant.function or '(module)'}:  {mutant.change}", flush=True)
        print(f"          {file}: {counts[True]} of {sum(counts.values())} noticed so far", flush=True)


def is_noticed(file: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Return whether a test fails, or does not end, with the mutant in place of its file."""
    child = os.fork()
    if not child:
        os.setsid()
        _run_tests(file, mutant.tree, tests)
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, 1, 2, -signal.SIGXCPU):
                raise SystemExit(f"pytest ended with {code}: {file} {mutant.function} {mutant.change}")
            return code != 0
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run_tests(file: Path, tree: ast.Module, tests: list[str]) -> None:
    """Run the tests with a mutated module, and exit with pytest's code."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    name = ".".join(file.with_suffix("").parts)
    code, original = compile(tree, str(file), "exec"), importlib.machinery.SourceFileLoader.get_code
    importlib.machinery.SourceFileLoader.get_code = lambda self, module: (
        code if module == name else original(self, module)
    )
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    quiet = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    first = [str(path) for each in tests if (path := Path(each, f"test_{file.stem}.py")).exists()]
    os._exit(pytest.main([*quiet, *first, *tests]))


def _list_files(source: Path) -> list[Path]:
    return sorted(source.glob("*.py")) if source.is_dir() else [source]


if __name__ == "__main__":
    main()
