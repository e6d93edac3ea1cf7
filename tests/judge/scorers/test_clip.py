"""Goals and movements in words are contrasted as transformers itself would, on tiny random checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import processors

from embodied_rl.commands.preparation import compose_config
from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.interfaces.sim import Array, Camera
from embodied_rl.judge.scorers.clip import ClipActionConfig, ClipActionScorer, ClipConfig, ClipScorer, find_moves
from embodied_rl.judge.scorers.clip_model import FILE, find_kind, prepare_pictures, read_settings
from embodied_rl.schema import RewardNode, TrainConfig
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.collecting import SPEC
from tests.support.refusals import refuses
from tests.support.scoring import score
from tests.support.tiny_tokenizer import SPECIAL, tiny_tokenizer

ONE = replace(SPEC, cameras=(Camera("front", 24, 32),))
TWO = replace(SPEC, cameras=(Camera("front", 24, 32), Camera("wrist", 24, 32)))
POSITIVE, NEGATIVE = ("{instruction} done", "the end of {instruction}"), ("nothing", "something else")
TEXT = {
    "vocab_size": 101, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 40, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "projection_size": 16,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
CLIP_PICTURES = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
SIGLIP_PICTURES = {"size": {"height": 16, "width": 16}}


def write_checkpoint(folder: Path, kind: str, **pictures: Any) -> Path:
    import transformers

    torch.manual_seed(3)
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16)
        model, processor = transformers.CLIPModel(config), transformers.CLIPImageProcessorPil
    else:
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
        model, processor = transformers.SiglipModel(config), transformers.SiglipImageProcessorPil
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.2 * torch.randn_like(weights))
        model.logit_scale.fill_(2.0)
    model.save_pretrained(folder)
    words = tiny_tokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL).save_pretrained(folder)
    processor(**(CLIP_PICTURES if kind == "clip" else SIGLIP_PICTURES) | pictures).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["clip", "siglip"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def draw(seed: int, height: int = 24, width: int = 32) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def make_request(seed: int, words: str = "lift it") -> ScoreRequest:
    frames = {"front": draw(seed)[None], "wrist": draw(seed + 100)[None]}
    first = {name: each[0] for name, each in frames.items()}
    return ScoreRequest(0, seed, "absolute", words, frames, first, np.zeros(3, np.float32))


def ask(folder: Path, requests: list[ScoreRequest], spec: Any = ONE, **config: Any) -> list[float]:
    settings: dict[str, Any] = {"path": str(folder), "positive": POSITIVE, "negative": NEGATIVE} | config
    return [each.value for each in score(ClipScorer(ClipConfig(**settings), spec), *requests)]


def find_logits(folder: Path, pictures: list[Array], texts: list[str]) -> torch.Tensor:
    """Mean logits of texts by transformers' own processor and whole forward pass."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = {"clip": transformers.CLIPImageProcessorPil, "siglip": transformers.SiglipImageProcessorPil}
    pixels = processor[model.config.model_type].from_pretrained(folder)(
        [Image.fromarray(each) for each in pictures], return_tensors="pt"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(texts, padding="max_length", max_length=40, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        return model(**tokens, **pixels).logits_per_image.mean(0)


def expect(folder: Path, request: ScoreRequest, cameras: tuple[str, ...] = ("front",), temperature: float = 1) -> float:
    texts = [text.format(instruction=request.instruction) for text in (*POSITIVE, *NEGATIVE)]
    logits = find_logits(folder, [request.frames[name][-1] for name in cameras], texts)
    return float((logits / temperature).softmax(0)[:2].sum())


@pytest.mark.thorough
def test_as_transformers_would(checkpoint: Path) -> None:
    requests = [make_request(1), make_request(2, "turn the tap"), make_request(3)]
    found = ask(checkpoint, requests)
    assert found == pytest.approx([expect(checkpoint, request) for request in requests], abs=1e-5)
    assert max(found) - min(found) > 0.01, "the test needs pictures and words that matter"


def test_several_cameras_and_a_temperature(checkpoint: Path) -> None:
    found = ask(checkpoint, [make_request(1), make_request(4)], TWO, temperature=3.0)
    wanted = [expect(checkpoint, make_request(seed), ("front", "wrist"), 3.0) for seed in (1, 4)]
    assert found == pytest.approx(wanted, abs=1e-5)


PICTURES = [
    {}, {"resample": 2}, {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}, {"do_normalize": False},
    {"rescale_factor": 1 / 127.5}, {"do_rescale": False},
]  # fmt: skip
CROPS = [
    {"do_center_crop": True, "crop_size": {"height": 20, "width": 12}},
    {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 30, "width": 30}},
]


@pytest.mark.parametrize(
    "kind, pictures",
    [*(("clip", each) for each in [*PICTURES, *CROPS]), *(("siglip", each) for each in PICTURES)],  # which never cuts
)
def test_pictures_are_prepared_as_by_transformers(tmp_path: Path, kind: str, pictures: dict[str, Any]) -> None:
    import transformers

    processor = transformers.CLIPImageProcessorPil if kind == "clip" else transformers.SiglipImageProcessorPil
    made = processor(**(CLIP_PICTURES if kind == "clip" else SIGLIP_PICTURES) | pictures)
    made.save_pretrained(tmp_path)
    for size in ((24, 32), (32, 24), (16, 16), (17, 50)):
        picture = draw(5, *size)
        wanted = made([Image.fromarray(picture)], return_tensors="pt")["pixel_values"]
        found = prepare_pictures([picture], read_settings(tmp_path))
        assert found.shape == wanted.shape and found.dtype == torch.float32
        torch.testing.assert_close(found, wanted.float(), atol=1e-5, rtol=1e-5)


def test_a_text_that_is_too_long_is_refused_not_cut(checkpoint: Path) -> None:
    with refuses("prompt-too-long", "40 tokens"):
        ask(checkpoint, [make_request(1, "lift it and " * 10)])


def test_what_is_no_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    def refuse(folder: Path, says: str) -> None:
        with pytest.raises(UserError, match=says):
            ask(folder, [make_request(1)])

    refuse(tmp_path / "nowhere", "holds no checkpoint")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    refuse(tmp_path, "type 'gpt2', not one of clip, siglip")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((checkpoint / name).read_text())
    refuse(tmp_path, r"preprocessor_config.json cannot be read")
    keys = json.loads((checkpoint / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(keys | {"do_pad": True}))
    refuse(tmp_path, "unknown setting 'do_pad'")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(keys | {"image_mean": [0.5]}))
    refuse(tmp_path, "1 numbers for 3 colours")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(keys))
    torch.save({}, tmp_path / "pytorch_model.bin")
    refuse(tmp_path, "cannot be loaded")


@pytest.mark.parametrize("content", ['{"model_type": []}', '{"model_type": {}}', "[]", '{"a":' * 100_000])
def test_a_folder_whose_kind_is_no_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"reward\.path="):
        find_kind(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": {"shortest_edge": 0}}, {"size": {"shortest_edge": 10**9}}, {"size": {"height": -1, "width": 16}},
        {"crop_size": {"height": 16, "width": 10**9}}, {"crop_size": float("inf")}, {"resample": 99},
        {"image_std": [0.5, 0.0, 0.5]}, {"image_mean": [0.5, float("nan"), 0.5]}, {"rescale_factor": float("inf")},
        {"do_resize": "false"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_picture(tmp_path: Path, wrong: dict[str, Any]) -> None:
    sound = {**CLIP_PICTURES, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / FILE).write_text(json.dumps(sound))
    read_settings(tmp_path)
    (tmp_path / FILE).write_text(json.dumps(sound | wrong))
    with refuses("preprocessor-invalid", FILE):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"path": None}, "reward.path is missing"), ({"positive": ()}, "need a text each"),
        ({"negative": ()}, "need a text each"), ({"temperature": 0.0}, "temperature"), ({"batch": 0}, "batch"),
        ({"positive": ("{task}",)}, r"\{task\} is not a placeholder"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"path": "somewhere"} | settings
    with pytest.raises(UserError, match=says):
        ClipConfig(**given)


MOVES = {"moves up": "+z", "moves down": "-z", "opens": "+grip", "closes": "-grip"}
MOVE_TEXT = "{instruction}: {move}"
STATE = ("x", "z", "grip")


def ask_moves(folder: Path, requests: list[ScoreRequest], spec: Any = ONE, **config: Any) -> list[Score]:
    settings: dict[str, Any] = {"path": str(folder), "moves": MOVES, "text": MOVE_TEXT, "stays": "rests"} | config
    return score(ClipActionScorer(ClipActionConfig(**settings), replace(spec, state_names=STATE)), *requests)


def pair(seed: int, change: tuple[float, float, float] | None) -> ScoreRequest:
    """Two pictures, of which the earlier one counts."""
    frames = {
        name: np.stack([draw(seed + more), draw(seed + more + 50)]) for name, more in (("front", 0), ("wrist", 9))
    }
    after = np.array([0.5, 0.2, 0.01], np.float32)
    before = None if change is None else after - np.array(change, np.float32)
    return ScoreRequest(0, 1, "pair", "lift it", frames, {}, after, None, before)


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
    (found,) = ask_moves(checkpoint, [asked])
    texts = [f"lift it: {move}" for move in (*MOVES, "rests")]
    shares = find_logits(checkpoint, [asked.frames["front"][0]], texts).softmax(0).numpy()
    assert found.value == pytest.approx(float(shares[made] - shares[others].max()), abs=1e-5)
    assert np.ptp(shares) > 0.01, "the test needs words that matter"


def test_nothing_is_made_up_where_the_state_before_is_unknown(checkpoint: Path) -> None:
    first, second = ask_moves(checkpoint, [pair(1, None), pair(1, UP)])
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
def test_invalid_settings_of_movements_are_refused(
    checkpoint: Path, config: dict[str, Any], code: str, named: str
) -> None:
    with refuses(code, named):
        ask_moves(checkpoint, [], **config)


def test_the_shipped_movements_are_those_of_the_tabletop(checkpoint: Path) -> None:
    words = ["sim=tabletop", "reward=clip_action", f"reward.path={checkpoint}"]
    reward: RewardNode = freeze_config(TrainConfig, compose_config("train", words)).reward
    kind, options = plugins.configure_plugin("scorers", reward, "reward")
    scorer = kind(options, spec_of(TabletopConfig()))
    assert scorer.traits.kinds == ("pair",) and len(options.moves) == 8
