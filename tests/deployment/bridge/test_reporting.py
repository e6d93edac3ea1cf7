"""What the bridge says of itself never stops the robot: a listener that hangs is counted, and named."""

from embodied_rl.deployment.bridge.reporting import BridgeReporter
from embodied_rl.deployment.transport.in_process import Bus, InProcessPublisher, InProcessTransport
from embodied_rl.interfaces.errors import TransportError


def test_a_listener_that_hangs_costs_reports_and_nothing_else(monkeypatch) -> None:
    reporter = BridgeReporter(InProcessTransport(Bus(lambda: 1), "policy_bridge"))
    reporter.publish_status({"state": "active"})
    assert reporter.unsent == 0

    def hang(self: InProcessPublisher, raw: bytes) -> None:
        raise TransportError(f"{self.topic}: a message was not published, a reliable subscription does not keep up")

    monkeypatch.setattr(InProcessPublisher, "send", hang)
    reporter.publish_status({"state": "active"})
    assert reporter.unsent == 1
    assert "does not keep up" in reporter.last_unsent and "/policy_bridge/status" in reporter.last_unsent
