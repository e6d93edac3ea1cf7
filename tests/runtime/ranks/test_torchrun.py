"""Ranks that torchrun started: one speaks, the others follow, and all end with the same exit code."""

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

from embodied_rl.cli import torchrun_plan as told
from embodied_rl.config import schema
from embodied_rl.runtime.ranks import addresses, torchrun, torchrun_store
from embodied_rl.runtime.ranks import launch as ranks
from embodied_rl.runtime.ranks.collective import make_store
from embodied_rl.runtime.ranks.torchrun_place import TorchrunPlace
from tests.support import forked

HERE = Path(__file__).parent
PLACE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
Ended = list[tuple[int, str]]


def unused_port() -> int:
    """One below those that the system hands out, so that nobody is given it before it is used."""
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
    """Exit code and output of each of several processes that are told what torchrun tells them.

    Its agent, here this process, hosts the store, unless variables were set by hand. What is `planted` stands there
    before they come. All but rank 0 have the variables of `others`, too.
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
def test_all_launch_and_rank_0_speaks(agent: bool) -> None:
    """The others take part, and say nothing."""
    (code, output), *others = start("agree", {"seed": 3}, 3, agent)
    both = json.dumps([[rank, {"seed": 3}] for rank in range(3)])
    assert (code, output.splitlines()) == (0, ["printed by rank 0", both])
    assert others == [(0, "")] * 2


@pytest.mark.process
def test_another_rank_s_exception_is_told_once_by_rank_0() -> None:
    (code, output), (other, silence) = start("fail", {"rank": 1, "how": "raise"})
    assert code == other == 3 and silence == ""
    assert output.startswith("failed: rank 1 failed first:") and output.count("KeyError: 'the first cause'") == 1
    assert "PeerLost" not in output


@pytest.mark.process
def test_a_stop_that_another_rank_s_failure_brought_shows_the_failure(tmp_path: Path) -> None:
    """torchrun ends all where one has failed: rank 0 is not to say that somebody stopped it."""
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
    """torchrun's store outlives it, so that only the connection of the ranks tells; or the store is gone as well."""
    (code, _), (other, output) = start("fail", {"rank": 0, "how": "kill"}, agent=agent)
    assert (code, other) == (-9, 1) and "Traceback" not in output


class Planted:
    """A pickle that leaves a file where it is opened."""

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
def test_what_others_put_into_the_store_is_not_run(
    tmp_path: Path, key: str, encode: Callable[[Planted], bytes]
) -> None:
    """Who reaches the store can end a run, and no more; where it matters the run says that somebody did.

    Rank 0 reads an address at once, and rank 1 then waits for it in vain. Rank 1, which is told its interface, writes
    no address of its own over the planted one.
    """
    own = {"patience": 6, "others": {addresses.INTERFACE: "lo"}} if key == "address/1" else {"patience": 30}
    (code, output), (other, silence) = start("agree", {}, planted={key: encode(Planted(tmp_path / "executed"))}, **own)
    assert not (tmp_path / "executed").exists()
    assert "Traceback" not in output + silence
    if key != "launch":  # which is overwritten in time
        assert (code, other) != (0, 0) and "another program reaches it" in output, output


@pytest.mark.parametrize("encode", [no_json, other_json])
def test_an_end_that_rank_0_did_not_tell(tmp_path: Path, encode: Callable[[Planted], bytes], of_two: None) -> None:
    there = torchrun_store.StoreEnd(TorchrunPlace.find(), make_store(1, 1.0))
    there.store.set("end", encode(Planted(tmp_path / "executed")))
    assert torchrun._follow(there, lambda: None) == 1
    assert not (tmp_path / "executed").exists()


@pytest.mark.process
def test_rank_0_decides_what_comes_of_a_signal() -> None:
    (code, output), (other, _) = start("signals_everybody")
    assert code == other == 0
    assert output.splitlines()[-1] == "[true, false]"


def test_without_torchrun_ranks_are_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)
    assert TorchrunPlace.find() is None and torchrun.choose_launcher() is ranks.launch_ranks
    assert TorchrunPlace.find({**PLACE, "MASTER_PORT": ""}) is None
    assert TorchrunPlace.find(PLACE) == TorchrunPlace(1, 2, 0)


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of torchrun's two."""
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)


def configured(*overrides: str, **plan: object) -> schema.TrainConfig:
    parts = {"sim": schema.SimNode("x"), "policy": schema.PolicyNode("x"), "algo": schema.AlgoNode("x")}
    run = schema.RunConfig(overrides=overrides)
    return schema.TrainConfig(**parts, run=run, plan=schema.Plan(**plan))  # type: ignore[arg-type]


def test_processes_are_the_ranks(of_two: None) -> None:
    """Whatever a YAML says; what was typed must agree. Nothing is planned: processes are there already."""
    assert told.place_on_torchrun("train", configured(ranks=7)).plan == schema.Plan(ranks=2)
    assert told.place_on_torchrun("train", configured(allocation="auto")).plan == schema.Plan(
        allocation="colocated", ranks=2
    )
    split = told.place_on_torchrun("train", configured("plan.ranks=2", allocation="split", ranks=2, slices=3)).plan
    assert split == schema.Plan(allocation="split", ranks=2, slices=3)
    with pytest.raises(ValueError, match=r"torchrun started 2 processes.* plan.ranks=3"):
        told.place_on_torchrun("train", configured("plan.ranks=3", ranks=3))


def test_a_run_that_continues_says_itself_how_many_ranks_it_has(of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(configured(ranks=5), resume="last")
    assert told.place_on_torchrun("train", config) is config
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=r"torchrun started 2 processes.* plan.ranks=5"):
        torchrun.launch_here(print, None, 5)


def test_other_commands_are_one_process(of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="type it without torchrun"):
        told.place_on_torchrun("eval", object())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert told.place_on_torchrun("eval", "as it is") == "as it is"


class Everybody(torchrun_store.StoreEnd):
    """A meeting whose other ranks said from where they come."""

    def __init__(self, others: dict[str, str]) -> None:
        super().__init__(TorchrunPlace(0, 1 + len(others), 0), None)
        self._said = dict(others)

    def tell(self, key: str, value: str) -> None:
        self._said[key] = value

    def ask(self, key: str, seconds: float | None = None, until: str | None = None) -> str:
        return self._said[key]


def test_ranks_of_one_node_meet_on_the_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several on the interfaces that lead to each other, whatever the name of this node resolves to."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert torchrun_store.find_own_address(Everybody({"address/1": "127.0.0.1"}), 1.0) == "127.0.0.1"
    asked = []
    routes = {"127.0.0.1": "127.0.0.1", "10.0.0.7": "10.0.0.5"}
    monkeypatch.setattr(
        torchrun_store.addresses, "find_address_towards", lambda host: asked.append(host) or routes[host]
    )
    assert torchrun_store.find_own_address(Everybody({"address/1": "10.0.0.7"}), 1.0) == "10.0.0.5"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert torchrun_store.find_own_address(Everybody({"address/1": "10.0.0.7"}), 1.0) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none")
    with pytest.raises(ValueError, match=r"GLOO_SOCKET_IFNAME=none.* lo"):
        torchrun_store.find_own_address(Everybody({}), 1.0)
