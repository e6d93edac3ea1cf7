"""Whether what a robot said still meant something: a message, or a content, that is seen for too long is stale."""

from typing import Any

from embodied_rl.deployment.recording.mcap_reader import RecordedMessage
from embodied_rl.deployment.robots.description import Topic
from embodied_rl.deployment.robots.mapping import digest_content


class RepeatWatch:
    """Watches one topic over control steps, by the steps' own clock."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._message: RecordedMessage | None = None
        self._content = b""
        self._message_ns = self._content_ns = 0

    def note(self, message: RecordedMessage, content: Any, time_ns: int) -> int:
        """Note what a step saw at `time_ns`; return for how many nanoseconds steps have seen the same already.

        The same is the same message; for topics that may not repeat themselves also the same content, stamps left out.
        """
        if message is not self._message:
            self._message, self._message_ns = message, time_ns
            digest = b"" if self._topic.may_repeat else digest_content(content)
            if self._topic.may_repeat or digest != self._content:
                self._content, self._content_ns = digest, time_ns
        return time_ns - min(self._message_ns, self._content_ns)
