"""Ranks started by torchrun: only rank 0 prints, and all end with the same exit code."""

import json
import os
import pickle
import random
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from embodied_rl import schema
from embodied_rl.commands.preparation import TrainingPreparation
from embodied_rl.runtime.ranks import launch as ranks
from embodied_rl.runtime.ranks import torchrun, torchrun_store
from embodied_rl.runtime.ranks.collective import make_store
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from tests.support import forked
from tests.support.refusals import refuses

pytestmark = pytest.mark.thorough
PLACE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
Ended = list[tuple[int, str]]


def unused_port() -> int:
    """Return a free port below those that the system assigns, so that no other program gets it."""
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    pytest.fail("no port is free")


def start(
    function: str,
    config: object = None,
    size: int = 2,
    agent: bool = True,
    planted: Mapping[str, bytes] | None = None,
    patience: float = 150,
    others: Mapping[str, str] | None = None,
) -> Ended:
    """Return exit code and output of processes with the environment variables of torchrun.

    The agent, here this process, hosts the store, unless variables were set by hand. The store holds `planted` before
    they start. All but rank 0 also have the variables of `others`.
    """
    store: Any = make_store(1, 1.0)
    for key, value in (planted or {}).items():
        store.set(key, value)
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
    shared |= {torchrun.AGENT: str(agent), "PATIENCE": f"{patience}"}
    if not agent:
        del store
        shared["MASTER_PORT"] = str(unused_port())
    with ExitStack() as stack:
        outs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(size)]
        processes: list[forked.Started] = []
        for rank, out in enumerate(outs):
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **((rank and others) or {})}
            words = [function, json.dumps(config)]
            process = forked.start("tests.support.torchrun_functions", words, Path.cwd(), variables, out)
            stack.callback(process.wait, 200)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(200) for process in processes]
        return [(code, read_from_start(out)) for code, out in zip(codes, outs, strict=True)]


def read_from_start(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@pytest.mark.process
@pytest.mark.parametrize("agent", [True, False])
def test_only_rank_0_prints(agent: bool) -> None:
    (code, output), *others = start("agree", {"seed": 3}, 3, agent)
    both = json.dumps([[rank, {"seed": 3}] for rank in range(3)])
    assert (code, output.splitlines()) == (0, ["printed by rank 0", both])
    assert others == [(0, "")] * 2


@pytest.mark.process
def test_rank_0_reports_an_exception_of_another_rank_once() -> None:
    (code, output), (other, silence) = start("fail", {"rank": 1, "how": "raise"})
    assert code == other == 3 and silence == ""
    ours = output[output.index("failed: rank 1 failed first:") :]  # Gloo may log before that its connection is lost
    assert ours.count("KeyError: 'the first cause'") == 1
    assert "PeerLost" not in output


@pytest.mark.process
def test_a_stop_caused_by_a_failed_rank_reports_the_failure(tmp_path: Path) -> None:
    """torchrun stops all ranks after a failure; rank 0 must not report this stop."""
    (code, output), (other, silence) = start("fail_while_rank_0_is_stopped", str(tmp_path))
    assert (code, other, silence) == (3, 3, "")
    assert "KeyError: 'the first cause'" in output and "Stopped" not in output


@pytest.mark.process
def test_a_killed_rank_ends_the_others() -> None:
    (code, output), (other, _) = start("fail", {"rank": 1, "how": "kill"})
    assert (code, other) == (3, -9)
    assert "rank 1 reported nothing" in output


@pytest.mark.process
@pytest.mark.parametrize("agent", [True, False])
def test_a_killed_rank_0_ends_the_others(agent: bool) -> None:
    """Both if torchrun's store outlives rank 0, and if it does not."""
    (code, _), (other, output) = start("fail", {"rank": 0, "how": "kill"}, agent=agent)
    assert (code, other) == (-9, 1) and "Traceback" not in output


class Planted:
    """An object that creates a file when its pickle is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._file}",)


def no_json(planted: Planted) -> bytes:
    return pickle.dumps(planted)


def other_json(planted: Planted) -> bytes:
    return b'{"kind": "os.system", "text": "x", "when": 0, "cascade": false, "message": 1}'


@pytest.mark.process
@pytest.mark.parametrize(
    "key, encode",
    [("launch", no_json), ("report/1", no_json), ("report/1", other_json), ("address/1", other_json)],
)
def test_foreign_store_entries_are_not_executed(tmp_path: Path, key: str, encode: Callable[[Planted], bytes]) -> None:
    """A program that reaches the store can end a run, which reports it, but cannot run code.

    Rank 0 reads the planted address at once, and rank 1 then waits until its timeout. Rank 1 has its interface set, so
    that it does not overwrite the planted address.
    """
    own = {"patience": 6, "others": {torchrun_store.INTERFACE: "lo"}} if key == "address/1" else {"patience": 30}
    (code, output), (other, silence) = start("agree", {}, planted={key: encode(Planted(tmp_path / "executed"))}, **own)
    assert not (tmp_path / "executed").exists()
    assert "Traceback" not in output + silence
    if key != "launch":  # which is overwritten in time
        assert (code, other) != (0, 0) and "another program reaches it" in output, output


@pytest.mark.parametrize("encode", [no_json, other_json])
def test_a_foreign_end_entry_fails(tmp_path: Path, encode: Callable[[Planted], bytes], of_two: None) -> None:
    store = torchrun_store.StoreClient(TorchrunPlace.find(), make_store(1, 1.0))
    store.store.set("end", encode(Planted(tmp_path / "executed")))
    assert torchrun._run_follower(store, lambda: None) == 1
    assert not (tmp_path / "executed").exists()


@pytest.mark.process
def test_rank_0_handles_signals() -> None:
    (code, output), (other, _) = start("signals_everybody")
    assert code == other == 0
    assert output.splitlines()[-1] == "[true, false]"


def test_ranks_are_started_here_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)
    assert TorchrunPlace.find() is None and torchrun.choose_launcher() is ranks.launch_ranks
    assert TorchrunPlace.find({**PLACE, "MASTER_PORT": ""}) is None
    assert TorchrunPlace.find(PLACE) == TorchrunPlace(1, 2, 0)


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process rank 1 of 2 of torchrun."""
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)


def configured(*overrides: str, **plan: object) -> schema.TrainConfig:
    parts = {"sim": schema.SimNode("x"), "policy": schema.PolicyNode("x"), "algo": schema.AlgoNode("x")}
    run = schema.RunConfig(overrides=overrides)
    return schema.TrainConfig(**parts, run=run, plan=schema.Plan(**plan))  # type: ignore[arg-type]


def test_the_number_of_processes_sets_the_ranks(of_two: None) -> None:
    """A YAML value is replaced; a typed one must agree. Nothing is planned."""
    assert TrainingPreparation().adapt("train", configured(ranks=7)).plan == schema.Plan(ranks=2)
    assert TrainingPreparation().adapt("train", configured(allocation="auto")).plan == schema.Plan(
        allocation="colocated", ranks=2
    )
    split = TrainingPreparation().adapt("train", configured("plan.ranks=2", allocation="split", ranks=2, slices=3)).plan
    assert split == schema.Plan(allocation="split", ranks=2, slices=3)
    with refuses("ranks-mismatch", "2 processes", "plan.ranks=3"):
        TrainingPreparation().adapt("train", configured("plan.ranks=3", ranks=3))


def test_a_resumed_run_keeps_its_number_of_ranks(of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(configured(ranks=5), resume="last")
    assert TrainingPreparation().adapt("train", config) is config
    monkeypatch.setenv("RANK", "0")
    with refuses("ranks-mismatch", "2 processes", "plan.ranks=5"):
        torchrun.launch_here(print, None, 5)


def test_other_commands_are_one_process(of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="type it without torchrun"):
        TrainingPreparation().adapt("eval", object())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert TrainingPreparation().adapt("eval", "as it is") == "as it is"


class FakeStore(torchrun_store.StoreClient):
    """A store that holds the addresses of the other ranks."""

    def __init__(self, others: dict[str, str]) -> None:
        super().__init__(TorchrunPlace(0, 1 + len(others), 0), None)
        self._values = dict(others)

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str, seconds: float | None = None, until: str | None = None) -> str:
        return self._values[key]


def test_ranks_connect_by_loopback_on_one_node_and_else_by_their_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert torchrun_store.find_own_address(FakeStore({"address/1": "127.0.0.1"}), 1.0) == "127.0.0.1"
    asked = []
    routes = {"127.0.0.1": "127.0.0.1", "10.0.0.7": "10.0.0.5"}
    monkeypatch.setattr(torchrun_store, "find_address_towards", lambda host: asked.append(host) or routes[host])
    assert torchrun_store.find_own_address(FakeStore({"address/1": "10.0.0.7"}), 1.0) == "10.0.0.5"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert torchrun_store.find_own_address(FakeStore({"address/1": "10.0.0.7"}), 1.0) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none")
    with refuses("network-interface-unknown", "GLOO_SOCKET_IFNAME=none", " lo"):
        torchrun_store.find_own_address(FakeStore({}), 1.0)
