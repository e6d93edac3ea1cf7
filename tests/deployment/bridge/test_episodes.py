"""An episode's scene is shown by messages after the robot's new instruction, and not by earlier ones."""

import json

import pytest

from embodied_rl.deployment.bridge.operator_topics import TEXT, EpisodeTracker
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport

TOPICS = load_robot("tabletop").operator


class Scene:
    """An episode tracker, and publishers of requests and instructions at times that the test sets."""

    def __init__(self, instruction: str | None = None) -> None:
        self.now_ns = 0
        bus = Bus(lambda: self.now_ns)
        self.node = InProcessTransport(bus, "bridge")
        self.tracker = EpisodeTracker(self.node, TOPICS, instruction)
        others = InProcessTransport(bus, "others")
        self._topics = {
            name: others.create_publisher(name, TEXT, "latched") for name in (TOPICS.reset, TOPICS.instruction)
        }

    def say(self, now_ns: int, topic: str, text: str) -> None:
        self.now_ns = now_ns
        self._topics[topic].publish(self.node.messages.make(TEXT, data=text))

    def ask(self, now_ns: int, index: int) -> None:
        self.say(now_ns, TOPICS.reset, json.dumps({"index": index}))

    def answer(self, now_ns: int) -> None:
        self.say(now_ns, TOPICS.instruction, "push the red cube")

    def find_min_source_ns(self) -> int:
        self.node.spin_once()
        assert self.tracker.requested is not None
        return self.tracker.find_min_source_ns(self.tracker.requested)


@pytest.mark.parametrize("arrives_first", ["request", "instruction"])
def test_the_scene_begins_with_the_robots_new_instruction(arrives_first: str) -> None:
    scene = Scene()
    scene.answer(5)
    if arrives_first == "request":
        scene.ask(10, 1)
        assert scene.find_min_source_ns() == 10, "before the instruction"
        scene.answer(30)
    else:
        scene.answer(30)
        scene.node.spin_once()
        scene.ask(10, 1)  # arrives late
    assert scene.find_min_source_ns() == 29, "messages at the time of the instruction count"
    scene.answer(50)
    assert scene.find_min_source_ns() == 29, "a repeated instruction does not change the scene"
    scene.ask(60, 2)
    assert scene.find_min_source_ns() == 60
    scene.answer(70)
    assert scene.find_min_source_ns() == 69


def test_a_configured_instruction_does_not_mark_a_scene() -> None:
    scene = Scene("push the red cube")
    scene.ask(10, 1)
    scene.answer(30)
    assert scene.find_min_source_ns() == 10
