"""Commands that announce that they are ready."""

import pytest

from embodied_rl.runtime.processes.announced import AnnouncedProcess, start_announced
from embodied_rl.runtime.processes.handle import RunFailed
from tests.support.ended import gone

pytestmark = pytest.mark.process
POLICY = "asset:tabletop_base.safetensors"


def test_a_server_is_there_until_it_is_no_longer_needed() -> None:
    with start_announced(["serve", POLICY, "port=0"], r"ws://[^;\s]+") as (pid, url):
        assert url.startswith("ws://127.0.0.1:") and not gone(pid)
    assert gone(pid)


def test_one_that_ends_before_says_why() -> None:
    said = r"(?s)embodied-rl serve nowhere ended before it was ready.*nowhere"
    with pytest.raises(RunFailed, match=said), start_announced(["serve", "nowhere"], "ws://"):
        raise AssertionError("it never was ready")


def test_one_that_does_not_say_it_is_not_waited_for_longer() -> None:
    process = AnnouncedProcess(["serve", POLICY, "port=0"], "words that it never says")
    try:
        with pytest.raises(RunFailed, match=r"was not ready after 0.2 s"):
            process.wait_until_ready(0.2)
        assert not gone(process.pid)
    finally:
        process.close()
    assert gone(process.pid)
