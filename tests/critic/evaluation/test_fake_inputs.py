"""What a server tells of its model is taken as it was meant, or refused; one that tells nothing is asked as any."""

from typing import Any

import pytest

from embodied_rl.commands.critic_probe import run
from embodied_rl.critic.evaluation.server_probe import choose_words, read_advertised_spec
from embodied_rl.schema import CriticProbeConfig, RewardNode
from tests.support.refusals import refuses

pytest.importorskip("starlette")

from tests.support.serving import make_critic, running

TOLD = {"prompt": "embedded", "cameras": {"top": [8, 6]}, "state": ["x", "y"], "words": ["go", "left"]}


def test_what_a_server_tells_is_taken() -> None:
    spec = read_advertised_spec(TOLD)
    assert spec is not None
    assert [(each.name, each.height, each.width) for each in spec.cameras] == [("top", 8, 6)]
    assert spec.state_names == ("x", "y") and choose_words(spec) == "go"


def test_a_server_that_tells_nothing_of_it() -> None:
    assert read_advertised_spec({}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cameras", []),
        ("cameras", {}),
        ("cameras", {"top": [8]}),
        ("cameras", {"top": [8, 10**9]}),
        ("cameras", {"top": [8, True]}),
        ("cameras", {"top": [8, 0]}),
        ("cameras", {"": [8, 8]}),
        ("cameras", {str(number): [8, 8] for number in range(9)}),
        ("state", None),
        ("state", [1.0]),
        ("state", ["x"] * 1001),
        ("words", "go"),
        ("words", ["x" * 101]),
    ],
)
def test_what_no_server_of_ours_tells_is_refused(key: str, value: Any) -> None:
    with refuses("server-inputs-invalid"):
        read_advertised_spec(TOLD | {key: value})


def test_a_served_critic_is_probed_as_it_wants_to_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with running(make_critic()) as server:
        run(CriticProbeConfig(RewardNode("vlm", options={"url": server.url}), seconds=0.1, most=2))
    said = capsys.readouterr().out
    assert "asked with                reward.prompt=embedded" in said and "accepted" in said
    assert "reward.prompt=embedded" in said.splitlines()[-1] and "reward.in_flight=" in said.splitlines()[-1]
