"""What shows an episode's scene: what the robot published after it had said the new words, and nothing before."""

import json

import pytest

from embodied_rl.deployment.bridge.episodes import TEXT, EpisodeDesk
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport

TOPICS = load_robot("tabletop").operator


class Scene:
    """A desk, and who asks and answers at the times that the test says."""

    def __init__(self, words: str | None = None) -> None:
        self.now_ns = 0
        bus = Bus(lambda: self.now_ns)
        self.node = InProcessTransport(bus, "bridge")
        self.desk = EpisodeDesk(self.node, TOPICS, words)
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

    def find_floor(self) -> int:
        self.node.spin_once()
        assert self.desk.asked is not None
        return self.desk.find_floor(self.desk.asked)


@pytest.mark.parametrize("heard_first", ["the request", "the words"])
def test_it_begins_with_the_robots_answer(heard_first: str) -> None:
    scene = Scene()
    scene.answer(5)
    if heard_first == "the request":
        scene.ask(10, 1)
        assert scene.find_floor() == 10, "until it answers nobody knows better"
        scene.answer(30)
    else:
        scene.answer(30)
        scene.node.spin_once()
        scene.ask(10, 1)  # it has taken longer
    assert scene.find_floor() == 29, "what comes at the time of the words counts"
    scene.answer(50)
    assert scene.find_floor() == 29, "words that are said again within an episode change no scene"
    scene.ask(60, 2)
    assert scene.find_floor() == 60
    scene.answer(70)
    assert scene.find_floor() == 69


def test_words_that_are_given_say_nothing_of_the_scene() -> None:
    scene = Scene("push the red cube")
    scene.ask(10, 1)
    scene.answer(30)
    assert scene.find_floor() == 10
