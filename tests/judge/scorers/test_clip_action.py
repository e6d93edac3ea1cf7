"""Movements in words are contrasted by the picture before them, on tiny random checkpoints in the true format."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from embodied_rl.commands.preparation import compose_config
from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.clip_action import ClipActionConfig, ClipActionScorer, find_moves
from embodied_rl.schema import RewardNode, TrainConfig
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.judge.scorers.test_clip import ONE, TWO, draw, write_checkpoint
from tests.support.refusals import refuses

MOVES = {"moves up": "+z", "moves down": "-z", "opens": "+grip", "closes": "-grip"}
TEXT = "{instruction}: {move}"
STATE = ("x", "z", "grip")


@pytest.fixture(scope="module", params=["clip", "siglip"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def ask(folder: Path, requests: list[ScoreRequest], spec: Any = ONE, **config: Any) -> list[Score]:
    settings: dict[str, Any] = {"path": str(folder), "moves": MOVES, "text": TEXT, "stays": "rests"} | config

    async def run() -> list[Score]:
        scorer = ClipActionScorer(ClipActionConfig(**settings), replace(spec, state_names=STATE))
        await scorer.open()
        return list(await scorer.score(requests))

    return asyncio.run(run())


def pair(seed: int, change: tuple[float, float, float] | None) -> ScoreRequest:
    """Two pictures, of which the earlier one counts."""
    frames = {
        name: np.stack([draw(seed + more), draw(seed + more + 50)]) for name, more in (("front", 0), ("wrist", 9))
    }
    after = np.array([0.5, 0.2, 0.01], np.float32)
    before = None if change is None else after - np.array(change, np.float32)
    return ScoreRequest(0, 1, "pair", "lift it", frames, {}, after, None, before)


def expect(folder: Path, pictures: list[Array]) -> Array:
    """Probabilities of all five movements by transformers' own processor and whole forward pass."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = {"clip": transformers.CLIPImageProcessorPil, "siglip": transformers.SiglipImageProcessorPil}
    pixels = processor[model.config.model_type].from_pretrained(folder)(
        [Image.fromarray(each) for each in pictures], return_tensors="pt"
    )
    texts = [f"lift it: {move}" for move in (*MOVES, "rests")]
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        texts, padding="max_length", max_length=40, return_tensors="pt"
    )
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        return model(**tokens, **pixels).logits_per_image.mean(0).softmax(0).numpy()


UP, CLOSE, UP_AND_OPEN, STILL = (0, 0.02, 0), (0, 0.001, -0.03), (0, 0.02, 0.015), (0.5, 0, 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "made", "others"),
    [(UP, 0, [1, 2, 3, 4]), (CLOSE, 3, [0, 1, 2, 4]), (UP_AND_OPEN, 0, [1, 3, 4]), (STILL, 4, [0, 1, 2, 3])],
)
def test_the_movement_that_was_made_is_held_against_the_others(
    checkpoint: Path, change: tuple[float, float, float], made: int, others: list[int]
) -> None:
    asked = pair(1, change)
    (found,) = ask(checkpoint, [asked])
    shares = expect(checkpoint, [asked.frames["front"][0]])
    assert found.value == pytest.approx(float(shares[made] - shares[others].max()), abs=1e-5)
    assert np.ptp(shares) > 0.01, "the test needs words that matter"


def test_several_cameras_and_requests_at_once(checkpoint: Path) -> None:
    asked = [pair(1, UP), pair(2, CLOSE)]
    for each, found in zip(asked, ask(checkpoint, asked, TWO), strict=True):
        shares = expect(checkpoint, [each.frames["front"][0], each.frames["wrist"][0]])
        made = 0 if each is asked[0] else 3
        assert found.value == pytest.approx(float(shares[made] - np.delete(shares, made).max()), abs=1e-5)


def test_nothing_is_made_up_where_the_state_before_is_unknown(checkpoint: Path) -> None:
    first, second = ask(checkpoint, [pair(1, None), pair(1, UP)])
    assert not first.valid and first.reason == "refused" and second.valid


def test_movements_follow_from_the_change_alone() -> None:
    entries = [(0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0)]
    for change, moves in (
        ([0.0, 0.0], [4]), ([0.002, -0.0029], [4]), ([0.02, 0.0], [0]), ([0.0, -0.02], [3]),
        ([0.02, 0.03], [2, 0]), ([-0.02, 0.05], [2]), ([-0.02, 0.04], [2, 1]),
    ):  # fmt: skip
        assert find_moves(np.array(change), entries, 0.003, 0.5) == moves


@pytest.mark.parametrize(
    ("config", "code", "named"),
    [
        ({"moves": {"up": "+z"}}, "texts-too-few", "reward.moves"),
        ({"moves": {"up": "+z", "down": "z"}}, "state-entry-invalid", "'down'"),
        ({"moves": {"up": "+z", "down": "-zz"}}, "state-entry-unknown", "Did you mean 'z'"),
        ({"text": "{instruction} {moves}"}, "prompt-invalid", "{moves}"),
        ({"still": 0.0}, "value-out-of-range", "reward.still"),
        ({"path": "/nowhere"}, "file-unreadable", "reward.path=/nowhere"),
        ({"path": None}, "key-missing", "reward.path"),
    ],
)
def test_invalid_settings_are_refused(checkpoint: Path, config: dict[str, Any], code: str, named: str) -> None:
    with refuses(code, named):
        ask(checkpoint, [], **config)


def test_the_shipped_movements_are_those_of_the_tabletop(checkpoint: Path) -> None:
    words = ["sim=tabletop", "reward=clip_action", f"reward.path={checkpoint}"]
    reward: RewardNode = freeze_config(TrainConfig, compose_config("train", words)).reward
    kind, options = plugins.configure_plugin("scorers", reward, "reward")
    scorer = kind(options, spec_of(TabletopConfig()))
    assert scorer.traits.kinds == ("pair",) and len(options.moves) == 8
