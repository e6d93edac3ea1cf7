"""Commands that print a line when they are ready."""

import pytest

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.runtime.processes.ready_line import ProcessWithReadyLine, start_until_ready
from tests.support.ended import gone

pytestmark = pytest.mark.process
POLICY = "asset:tabletop_base.safetensors"


def test_a_server_runs_within_the_context() -> None:
    with start_until_ready(["serve", POLICY, "port=0"], r"ws://[^;\s]+") as (pid, url):
        assert url.startswith("ws://127.0.0.1:") and not gone(pid)
    assert gone(pid)


def test_the_output_of_a_command_that_ends_early_is_shown() -> None:
    message = r"(?s)embodied-rl serve nowhere ended before.*nowhere"
    with pytest.raises(RunFailed, match=message), start_until_ready(["serve", "nowhere"], "ws://"):
        raise AssertionError("unreachable")


def test_waiting_for_the_ready_line_has_a_deadline() -> None:
    process = ProcessWithReadyLine(["serve", POLICY, "port=0"], "a line that is never printed")
    try:
        with pytest.raises(RunFailed, match=r"0.2 s"):
            process.wait_until_ready(0.2)
        assert not gone(process.pid)
    finally:
        process.close()
    assert gone(process.pid)
