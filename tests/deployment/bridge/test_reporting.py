"""Reports of the bridge never stop the robot: failed sends are counted."""

from embodied_rl.deployment.bridge.reporting import BridgeReporter
from embodied_rl.deployment.transport.in_process import Bus, InProcessPublisher, InProcessTransport
from embodied_rl.interfaces.errors import TransportError


def test_failed_sends_are_counted(monkeypatch) -> None:
    reporter = BridgeReporter(InProcessTransport(Bus(lambda: 1), "policy_bridge"))
    reporter.publish_status({"state": "active"})
    assert reporter.unsent == 0

    def hang(self: InProcessPublisher, raw: bytes) -> None:
        raise TransportError(f"{self.topic}: a message was not published, a reliable subscription does not keep up")

    monkeypatch.setattr(InProcessPublisher, "send", hang)
    reporter.publish_status({"state": "active"})
    assert reporter.unsent == 1
    assert "does not keep up" in reporter.last_unsent and "/policy_bridge/status" in reporter.last_unsent
