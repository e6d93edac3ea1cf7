"""Metrics of a server in the text format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, exposition

MEDIA_TYPE = exposition.CONTENT_TYPE_PLAIN_0_0_4
NAMESPACE = "embodied_rl"
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Meters:
    """Metrics of a server since its start.

    Attributes:
        answered: completion requests by HTTP status.
        rejected: requests that were not enqueued, or were removed from the queue, by reason.
        request_seconds: of each answered request, from its first byte to the answer.
        open: completion requests that were received completely and not answered yet.
    """

    def __init__(self) -> None:
        disable_created_metrics()
        self._registry = registry = CollectorRegistry()
        self.answered = Counter(
            "requests", "Requests for completions, by status.", ["status"], NAMESPACE, registry=registry
        )
        self.rejected = Counter(
            "rejected", "Requests that were not answered, by reason.", ["reason"], NAMESPACE, registry=registry
        )
        self._batches = Counter("batches", "Calls of the model.", (), NAMESPACE, registry=registry)
        self._queue = Gauge("queue", "Questions that wait.", (), NAMESPACE, registry=registry)
        self.open = 0
        Gauge("open", "Requests without an answer yet.", (), NAMESPACE, registry=registry).set_function(
            lambda: self.open
        )
        self._batch_sizes = Histogram(
            "batch_size", "Questions of a call of the model.", (), NAMESPACE, registry=registry, buckets=SIZES
        )
        self._batch_seconds = Histogram(
            "batch_seconds", "Seconds of a call of the model.", (), NAMESPACE, registry=registry, buckets=SECONDS
        )
        self.request_seconds = Histogram(
            "request_seconds", "Seconds from a request to its answer.", (), NAMESPACE, registry=registry,
            buckets=SECONDS,
        )  # fmt: skip

    def watch_batch(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.inc()
        self._batch_sizes.observe(size)
        self._batch_seconds.observe(seconds)

    def write(self, waiting: int) -> bytes:
        """Return all metrics and the queue length as text."""
        self._queue.set(waiting)
        return exposition.generate_latest(self._registry)
