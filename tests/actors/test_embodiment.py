"""Embodiment: units, words and statistics, there and back."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.actors.embodiment import Embodiment, Normalisation
from tests.support.refusals import refuses


def test_limits_are_minus_one_and_one(embodiment) -> None:
    """-1, 0 and 1 are the lower limit, the middle and the upper limit; more is clipped; D and H are cut to A and Hx."""
    x = torch.tensor([-1.0, 0.0, 1.0, 7.0, -7.0])[:, None, None].expand(5, 4, 4)
    actions = embodiment.actions(x, np.zeros((5, 2)))
    low, middle, high = [-0.5, -2.0, 0.0], [0.0, -0.5, 0.05], [0.5, 1.0, 0.1]
    assert actions.dtype == np.float32
    assert np.allclose(actions[:, 1], [low, middle, high, high, low])
    assert actions.shape == (5, 2, 3)
    assert (actions <= np.float32(high)).all() and (actions >= np.float32(low)).all()


def test_model_actions_invert_actions(embodiment) -> None:
    """Within limits nothing is lost; dimensions the robot lacks are 0."""
    x = 2 * torch.rand(6, 2, 4, generator=torch.Generator().manual_seed(0)) - 1
    state = np.zeros((6, 2))
    back = embodiment.model_actions(embodiment.actions(x, state), state, action_dim=4)
    assert torch.allclose(back[..., :3], x[..., :3], atol=1e-6)
    assert (back[..., 3] == 0).all()


def test_nan_is_passed_on(embodiment) -> None:
    """NaN stays visible for the caller."""
    assert np.isnan(embodiment.actions(torch.full((1, 4, 4), torch.nan), np.zeros((1, 2)))).all()


def test_actions_are_numbers_also_of_tensors_with_a_gradient(embodiment) -> None:
    """Chosen with gradients on, or as an offset of a state with a gradient: the simulator gets the same actions."""
    x, state = torch.full((2, 4, 4), 0.25), torch.full((2, 2), 0.1)
    fitted = replace(embodiment, action=Normalisation("mean_std", (0.0,) * 3, (1.0,) * 3), relative=(0, -1, -1))
    for each in (embodiment, fitted):
        plain = each.actions(x, state)
        assert np.array_equal(each.actions(x.clone().requires_grad_(), state.clone().requires_grad_()), plain)


def test_state_is_normalised_by_recorded_statistics(embodiment, observe) -> None:
    """Mean 0 and deviation 1 over the recording; a constant entry stays finite; unknown privileged names keep units."""
    random = np.random.default_rng(0)
    state = np.stack([random.normal(5, 3, 500), np.full(500, 2.5)], axis=1).astype(np.float32)
    fitted = embodiment.with_statistics(state, privileged=random.normal(-4, 2, (500, 4)))
    normal = fitted.state.normalise(torch.from_numpy(state))
    assert torch.allclose(normal.mean(dim=0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(normal.std(dim=0), torch.tensor([1.0, 0.0]), atol=2e-3)
    truth = torch.full((1, 2), -4.0)
    assert torch.allclose(
        fitted.normalise_privileged(truth, ("clock", "unheard")), torch.tensor([[0.0, -4.0]]), atol=0.2
    )


def test_privileged_state_is_normalised_by_recorded_statistics(embodiment) -> None:
    """Column by column to mean 0 and deviation 1, however far apart their units are."""
    random = np.random.default_rng(1)
    truth = random.normal([-4.0, 0.0, 70.0, 0.5], [2.0, 1e-2, 30.0, 5.0], (400, 4))
    fitted = embodiment.with_statistics(random.normal(size=(400, 2)), privileged=truth)
    normal = fitted.normalise_privileged(truth, embodiment.privileged_names)
    assert torch.allclose(normal.mean(dim=0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(normal.std(dim=0, correction=0), torch.ones(4), atol=1e-5)


def test_words_become_ids_and_pads(embodiment) -> None:
    """One id a word wherever it stands, case ignored, 0 after the end."""
    tokens = embodiment.tokens(["Reach the red cube", "the RED cube"])
    assert tokens.shape == (2, 6)
    assert tokens[0, 1:4].tolist() == tokens[1, :3].tolist()
    assert tokens[0, 4:].tolist() == [0, 0]
    assert [embodiment.vocabulary[i] for i in tokens[0, :4]] == ["reach", "the", "red", "cube"]


def test_inputs_never_hold_privileged_state(embodiment, observe, make_actor) -> None:
    """The network's input is the same with and without it."""
    network = make_actor().backbone
    inputs = embodiment.inputs(observe(3), network)
    blind = embodiment.inputs(observe(3).without_privileged(), network)
    assert set(vars(inputs)) == {"images", "state", "tokens", "features", "prefix", "earlier"}
    assert torch.equal(inputs.state, blind.state)


def test_unusable_observations_are_refused(embodiment, observe, make_actor) -> None:
    """Unknown word, long instruction, missing camera, image of another size or type, state of another length."""
    good, network = observe(1), make_actor().backbone
    for change, code, named in [
        ({"instruction": ("reach the purple cube",)}, "word-unknown", "'purple'"),
        ({"instruction": ("the red red red red red cube",)}, "prompt-too-long", 7),
        ({"images": {"wrist": good.images["front"]}}, "camera-missing", "'front'"),
        ({"images": {"front": good.images["front"][:, :16]}}, "image-size-mismatch", (16, 32, 3)),
        ({"images": {"front": good.images["front"].astype(np.float32)}}, "image-size-mismatch", "float32"),
        ({"state": np.zeros((1, 3), np.float32)}, "policy-robot-mismatch", 3),
    ]:
        with refuses(code, named):
            embodiment.inputs(replace(good, **change), network)


def test_json_there_and_back(embodiment) -> None:
    """What a checkpoint stores is the same embodiment; a missing or unknown entry is named."""
    data = json.loads(json.dumps(embodiment.to_dict()))
    assert Embodiment.from_dict(data) == embodiment
    del data["executed"]
    with refuses("embodiment-version-mismatch", "executed"):
        Embodiment.from_dict(data)


def test_a_condition_is_stored_only_where_there_is_one(embodiment) -> None:
    """Files without one stay as they were; what no policy can act by is refused."""
    assert not {"condition", "guidance"} & embodiment.to_dict().keys()
    guided = replace(embodiment, condition="advantage: positive", guidance=2.0)
    data = json.loads(json.dumps(guided.to_dict()))
    assert (data["condition"], data["guidance"]) == ("advantage: positive", 2.0)
    assert Embodiment.from_dict(data) == guided
    assert Embodiment.from_dict(data | {"guidance": 1}) == replace(guided, guidance=1.0)
    for wrong in ({"condition": " twice  spaced"}, {"guidance": -1.0}, {"condition": ""}):
        with refuses("embodiment-invalid"):
            Embodiment.from_dict(data | wrong)
    with refuses("value-not-finite", "guidance"):
        Embodiment.from_dict(data | {"guidance": float("nan")})


def test_another_robot_is_refused(embodiment, simulator_spec) -> None:
    """Its own simulator passes; cameras, limits and words that differ are named."""
    embodiment.check_body(simulator_spec.body, simulator_spec.words)
    for change, code, named in [
        ({"cameras": simulator_spec.cameras[1:]}, "camera-size-mismatch", "front"),
        ({"action_low": (-1.0, -2.0, 0.0)}, "policy-robot-mismatch", "action_low"),
        ({"words": (*simulator_spec.words, "bowl")}, "word-unknown", "bowl"),
    ]:
        with refuses(code, named):
            changed = replace(simulator_spec, **change)
            embodiment.check_body(changed.body, changed.words)


def test_impossible_embodiments_are_refused(embodiment, simulator_spec) -> None:
    """Limits without range, statistics without spread or of the wrong length, cameras of two sizes."""
    for change, code, named in [
        ({"action_high": (0.5, np.inf, 0.1)}, "embodiment-invalid", "'dy'"),
        ({"privileged_std": (1.0, 0.0, 1.0, 1.0)}, "embodiment-invalid", "embodiment.privileged_std"),
        ({"state": Normalisation.identity(1)}, "embodiment-invalid", "embodiment.state"),
        ({"views": ("a", "b")}, "embodiment-invalid", "embodiment.views"),
        ({"relative": (0,)}, "embodiment-invalid", "3 entries"),
        ({"relative": (-1, 2, -1)}, "embodiment-invalid", "entry 2"),
        ({"gripper": "odd"}, "gripper-unknown", "policy.gripper='odd'"),
        ({"executed": 0}, "executed-out-of-range", "policy.executed=0"),
    ]:
        with refuses(code, named):
            replace(embodiment, **change)
    both = tuple(replace(camera, role="policy") for camera in simulator_spec.cameras)
    with refuses("camera-sizes-differ"):
        Embodiment.of_simulator(replace(simulator_spec, cameras=both), 2, 6)


def test_statistics_of_a_dataset_take_the_place_of_limits(embodiment) -> None:
    """Quantiles become -1 and 1, relative entries are added to the state, the gripper's convention is turned."""
    statistics = Normalisation.from_bounds("quantiles", [-0.2, -1.0, 0.0], [0.2, 0.5, 1.0])
    robot = replace(embodiment, action=statistics, relative=(-1, 0, -1), gripper="zero_one", action_low=(-1.0,) * 3)
    robot = replace(robot, action_high=(1.0,) * 3)
    state = np.array([[0.3, 9.0]])
    actions = robot.actions(torch.tensor([[[-1.0, 1.0, 1.0, 0.0], [1.0, -1.0, -1.0, 0.0]]]), state)
    assert np.allclose(actions, [[[-0.2, 0.8, 1.0], [0.2, -0.7, -1.0]]])
    back = robot.model_actions(actions, state, action_dim=4)
    assert torch.allclose(back, torch.tensor([[[-1.0, 1.0, 1.0, 0.0], [1.0, -1.0, -1.0, 0.0]]]), atol=1e-6)


def test_an_embodiment_of_the_first_version_is_read(embodiment) -> None:
    """Means and deviations stood beside the names; actions were always the simulator's limits."""
    data = embodiment.with_statistics(np.array([[1.0, 2.0], [3.0, 8.0]])).to_dict()
    for name in ("action", "views", "relative", "gripper", "tokenizer"):
        del data[name]
    state = data.pop("state")
    old = json.loads(json.dumps(data | {"state_mean": state["center"], "state_std": state["scale"]}))
    read = Embodiment.from_dict(old)
    assert read.state == Normalisation("mean_std", (2.0, 5.0), (1.0, 3.0))
    assert replace(read, state=embodiment.state) == embodiment


COLUMNS = np.stack([np.arange(101.0), 10 * np.arange(101.0) - 500, np.full(101, 7.0)], axis=1)
"""0 … 100; -500 … 500; a constant."""


def test_quantiles_of_each_column_become_minus_one_and_one() -> None:
    """By hand: 1 % and 99 % of 0 … 100 are 1 and 99; a constant lies in the middle of two units."""
    found = Normalisation.from_values(COLUMNS, "quantiles")
    assert (found.kind, found.center, found.scale) == (
        "quantiles",
        pytest.approx((50, 0, 7)),
        pytest.approx((49, 490, 1)),
    )


def test_mean_and_deviation_are_those_of_each_column() -> None:
    """The variance of 0 … 100 is (101² - 1) / 12; a constant keeps its unit."""
    found = Normalisation.from_values(COLUMNS)
    assert found.kind == "mean_std"
    assert found.center == pytest.approx((50, 0, 7))
    assert found.scale == pytest.approx((850**0.5, 10 * 850**0.5, 1))


def test_there_and_back() -> None:
    bounds = Normalisation.from_bounds("limits", [-1, 0, 5], [3, 0.1, 6])
    assert bounds.normalise(torch.tensor([[-1, 0, 5], [3, 0.1, 6], [1, 0.05, 5.5]])).tolist() == [
        [-1, -1, -1],
        [1, 1, 1],
        pytest.approx([0, 0, 0], abs=1e-6),
    ]
    values = np.array([[0.5, 0.02, 5.7]])
    assert bounds.restore(bounds.normalise(torch.from_numpy(values)).numpy()) == pytest.approx(values, rel=1e-6)
    assert len(bounds) == 3 and Normalisation.identity(2) == Normalisation("identity", (0, 0), (1, 1))


@pytest.mark.parametrize(
    ("center", "scale", "kept"),
    [
        ((2, 0), (3, 1e-6), 1),
        ((2, 1e-5), (3, 1e-5), 1),
        ((2, 0), (3, 2e-5), 2),
        ((2, -1), (3, 1e-6), 2),
        ((2,), (3,), 1),
    ],
)
def test_only_padding_is_cut_off(center: tuple, scale: tuple, kept: int) -> None:
    assert len(Normalisation("mean_std", center, scale).unpadded(1)) == kept


@pytest.mark.parametrize(
    ("kind", "center", "scale", "named"),
    [
        ("means", (0.0,), (1.0,), "'means'"),
        ("mean_std", (0.0, 1.0), (1.0,), "2 centres"),
        ("mean_std", (float("nan"),), (1.0,), "finite"),
        ("mean_std", (0.0,), (float("inf"),), "finite"),
        ("mean_std", (0.0, 0.0), (1.0, 0.0), "every scale positive"),
        ("mean_std", (0.0,), (-1.0,), "every scale positive"),
    ],
)
def test_impossible_statistics_are_refused(kind: str, center: tuple, scale: tuple, named: str) -> None:
    with refuses("statistics-invalid", named):
        Normalisation(kind, center, scale)
