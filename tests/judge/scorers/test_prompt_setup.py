"""What each prompt shows of a request, in which order; and settings that do not fit it."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.interfaces.sim import Array, Camera
from embodied_rl.judge.scorers.chat_message import shuffle_frames
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from tests.judge.scorers.golden_answers import make_transformers, make_vllm
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import score

URL = "http://server.example/v1"
TWO = replace(SPEC, cameras=(Camera("front", 8, 8), Camera("wrist", 8, 8), Camera("film", 8, 8, "video")))
ONE = replace(SPEC, cameras=(Camera("front", 8, 8),))
CODES = (20, 60, 100, 140, 180, 220)


def draw(*codes: int) -> Array:
    """Frames of one grey each, which pictures in JPEG keep."""
    return np.stack([np.full((8, 8, 3), code, np.uint8) for code in codes])


def make_request(frames: int = 2, kind: Any = "pair", words: str = "stack the cups") -> ScoreRequest:
    """The front camera shows 20, 60, …; the wrist's is 5 brighter; the first picture is 0, or 5."""
    shown = {"front": draw(*CODES[:frames]), "wrist": draw(*(code + 5 for code in CODES[:frames]))}
    first = {"front": draw(0)[0], "wrist": draw(5)[0]}
    return ScoreRequest(3, 4, kind, words, shown, first, np.zeros(3, np.float32))


class Server:
    """Notes what it is asked, and answers with a function of the request's number, or with one text."""

    def __init__(self, answer: Any = "0") -> None:
        self.bodies: list[dict[str, Any]] = []
        self._answer = answer

    def __call__(self, sent: httpx2.Request) -> httpx2.Response:
        if sent.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": "judge"}]})
        self.bodies.append(json.loads(sent.content))
        answer = self._answer(self.bodies[-1]) if callable(self._answer) else make_transformers(self._answer)
        return answer if isinstance(answer, httpx2.Response) else httpx2.Response(200, json=answer)

    def shown(self, place: int = 0) -> list[Any]:
        """The parts of a request: texts, and the greys of pictures."""
        parts = self.bodies[place]["messages"][-1]["content"]
        return [part["text"] if part["type"] == "text" else read_grey(part["image_url"]["url"]) for part in parts]

    def greys(self, place: int = 0) -> list[int]:
        return [part for part in self.shown(place) if isinstance(part, int)]


def read_grey(url: str) -> int:
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))
    return 5 * round(float(drawn.mean()) / 5)


def ask(server: Server, request: ScoreRequest, spec: Any = TWO, check: bool = False, **config: Any) -> Score:
    settings: dict[str, Any] = {"url": URL} | config
    return score(VlmScorer(VlmConfig(**settings), spec, httpx2.MockTransport(server)), request, check=check)[0]


def write_reference(folder: Path, **cameras: Array) -> str:
    np.savez(folder / "episode.npz", allow_pickle=False, **{f"images/{name}": each for name, each in cameras.items()})
    return str(folder / "episode.npz")


def test_a_pair_shows_the_earlier_picture_first() -> None:
    server = Server("K")
    score = ask(server, make_request(), prompt="pair_delta", views=("front",))
    assert server.greys() == [20, 60] and score.value == pytest.approx(2 / 3)
    assert server.shown()[:2] == ["The task is: stack the cups", "The earlier picture:"]
    ask(server, make_request(), prompt="pair_delta")
    assert server.greys(1) == [20, 25, 60, 65], "all cameras of a frame, by name"


def test_vlac_in_the_order_of_its_training(tmp_path: Path) -> None:
    server = Server("-25")
    assert ask(server, make_request(), prompt="vlac_pair", views=("front",)).value == -0.25
    assert server.shown()[:4] == ["Image-1: ", 20, "\nImage-2: ", 60]
    reference = write_reference(tmp_path, front=draw(*range(100, 220, 10)))
    ask(server, make_request(), prompt="vlac_pair_shown", views=("front",), reference=reference, references=3)
    assert server.shown(1)[1:12] == [
        " 0% ", 100, "\n", " 50% ", 160, "\n", " 100% ", 210, "\n", "</trajectory>0% ", 0
    ]  # fmt: skip
    assert server.greys(1)[-3:] == [0, 20, 60]


def test_dopamine_shows_three_views_beside_start_and_end(tmp_path: Path) -> None:
    reference = write_reference(tmp_path, front=draw(100, 240), wrist=draw(105, 245))
    server = Server("<score>+40%</score>")
    views = ("front", "wrist", "wrist")
    score = ask(server, make_request(), prompt="dopamine", views=views, reference=reference)
    assert server.greys() == [0, 240, 20, 25, 25, 60, 65, 65] and score.value == 0.4


@pytest.mark.parametrize(
    ("settings", "traits"),
    [
        ({"prompt": "progress_digit"}, (("absolute",), 1, "latest")),
        ({"prompt": "pair_delta", "done_prompt": "done_yesno"}, (("pair",), 2, "latest")),
        ({"prompt": "topreward"}, (("absolute",), 16, "episode")),
        ({"prompt": "gvl"}, (("trajectory",), 15, "episode")),
    ],
)
def test_a_scorer_asks_for_the_frames_of_its_prompt(settings: dict[str, Any], traits: tuple[Any, ...]) -> None:
    found = VlmScorer(VlmConfig(url=URL, **settings), TWO).traits
    assert (found.kinds, found.frames, found.span) == traits
    assert found.judges_done == ("done_prompt" in settings)


def test_the_whole_episode_for_those_who_want_it() -> None:
    server = Server("ANSWER: 5")
    assert ask(server, make_request(6, "absolute"), ONE, prompt="roboreward", views=("front",)).value == 1.0
    assert server.greys() == list(CODES)


def test_a_window_of_each_view_after_the_other() -> None:
    server = Server("unclear")
    assert ask(server, make_request(5), prompt="trend").value == 0
    assert server.greys() == [*CODES[:5], *(code + 5 for code in CODES[:5])]
    assert "two synchronized 5-frame videos" in server.shown()[-1]


def test_shuffled_frames_come_back_in_order() -> None:
    """Each frame's percent is half its grey, told by the place at which it was shown."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        urls = [part["image_url"]["url"] for part in body["messages"][-1]["content"] if part["type"] == "image_url"]
        told = [{"frame_number": n, "task_completion_percentage": read_grey(url) / 2.2} for n, url in enumerate(urls)]
        return make_transformers(json.dumps(told[1:]))  # the first picture has no number

    server, request = Server(answer), make_request(6, "trajectory")
    score = ask(server, request, prompt="gvl", views=("front",))
    assert score.values == pytest.approx([code / 220 for code in CODES]) and score.value == pytest.approx(1.0)
    assert shuffle_frames(request) == shuffle_frames(request) != list(range(6))
    assert server.greys()[1:] == [CODES[index] for index in shuffle_frames(request)]


def test_a_frame_that_was_left_out() -> None:
    request = make_request(6, "trajectory")
    last = shuffle_frames(request).index(5) + 1
    told = [{"frame_number": n, "task_completion_percentage": 10} for n in range(1, 7)]
    without_last = Server(json.dumps([entry for entry in told if entry["frame_number"] != last]))
    score = ask(without_last, request, prompt="gvl", views=("front",))
    assert not score.valid and "last frame" in score.detail and np.isnan(score.values[-1]) and score.values[0] == 0.1
    another = Server(json.dumps([entry for entry in told if entry["frame_number"] == last]))
    score = ask(another, request, prompt="gvl", views=("front",))
    assert score.value == 0.1 and np.isnan(score.values[:5]).all()


def test_what_an_instruction_says_is_not_filled_in() -> None:
    server = Server("unclear")
    ask(server, make_request(5, words="press {count} {instruction}"), prompt="trend")
    assert "performing the task: press {count} {instruction}. You are" in server.shown()[-1]


def answer_both(done: Any) -> Server:
    def answer(body: dict[str, Any]) -> Any:
        asks_done = "yes or no" in str(body["messages"])
        return done if asks_done else make_vllm({"7": 0.75, "8": 0.25})

    return Server(answer)


def test_done_is_asked_beside() -> None:
    server = answer_both(make_vllm({"yes": 0.6, "no": 0.2}))
    score = ask(server, make_request(1, "absolute"), done_prompt="done_yesno", check=True)
    assert score.value == pytest.approx(7.25 / 9) and score.done == pytest.approx(0.75)
    assert len(server.bodies) == 4, "two to check, two to answer"
    assert ask(answer_both(None), make_request(1, "absolute")).done is None, "nobody asked"


def test_progress_counts_where_nothing_is_said_about_done() -> None:
    score = ask(answer_both(make_vllm({"perhaps": 0.9})), make_request(1, "absolute"), done_prompt="done_yesno")
    assert score.valid and score.done is None and "whether it is done: unsure" in score.detail
    with pytest.raises(ScorerError, match="503"):
        ask(answer_both(httpx2.Response(503)), make_request(1, "absolute"), done_prompt="done_yesno")
    with refuses("answer-not-readable", "done_yesno@1"):
        ask(
            answer_both(make_transformers("?") | {"model": "judge"}),
            make_request(1, "absolute"),
            done_prompt="done_yesno",
            check=True,
        )


@pytest.mark.parametrize(
    "settings, code, named",
    [
        ({"done_prompt": "progress_digit"}, "prompts-contradict", "'absolute'"),
        ({"done_prompt": "done_yesnoo"}, "prompt-unknown", "Did you mean 'done_yesno'"),
        ({"views": ("frnt",)}, "camera-unknown", "Did you mean 'front'"),
        ({"views": ("film",)}, "camera-unknown", "'film'"),
        ({"prompt": "trend", "views": ("front",)}, "views-do-not-fit", "reward.views=[front,front]"),
        ({"prompt": "vlac_pair_shown"}, "reference-missing", "vlac_pair_shown@1"),
        ({"reference": "somewhere"}, "key-unused", "reward.reference=somewhere"),
        ({"prompt": "vlac_pair_shown", "reference": "nowhere.npz"}, "reference-missing", "nowhere.npz"),
        ({"prompt": "vlac_pair_shown", "reference": "nowhere.npz", "references": 1}, "value-out-of-range", "2 … 64"),
        ({"picture_fit": "squeeze"}, "value-unknown", "picture_fit"),
        ({"prompt": "embedded", "picture_size": 64}, "key-unused", "reward.picture_size"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], code: str, named: str) -> None:
    from embodied_rl.config.freeze import freeze_config

    with refuses(code, named):
        VlmScorer(freeze_config(VlmConfig, {"url": URL} | settings, "reward"), TWO)


def test_pictures_may_be_stretched_to_squares() -> None:
    server = Server("0")
    wide = np.full((1, 4, 8, 3), 90, np.uint8)
    request = replace(make_request(), kind="absolute", frames={"front": wide}, first={"front": wide[0]})
    for fit, size in (("keep", (448, 224)), ("stretch", (448, 448))):
        ask(server, request, ONE, picture_size=448, picture_fit=fit)
        url = next(
            part["image_url"]["url"] for part in server.bodies[-1]["messages"][-1]["content"] if "image_url" in part
        )
        assert Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size == size
