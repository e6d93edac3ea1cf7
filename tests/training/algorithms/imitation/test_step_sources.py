"""Choice of the steps of a dataset to clone, by their source."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.datasets.lerobot import stream
from embodied_rl.datasets.lerobot.dataset_reader import DatasetSamples, LeRobotDataset
from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from embodied_rl.datasets.lerobot.info import Feature, make_features
from embodied_rl.interfaces.sim import Observation, Source
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from embodied_rl.testing.fakes import FakeSimulator
from embodied_rl.training.algorithms.imitation import cloning_data
from embodied_rl.training.algorithms.imitation.cloning_data import choose_steps, count_steps_ahead
from embodied_rl_policies.pocket import Pocket
from tests.support.experience import MODEL_DIM, SMALL
from tests.support.making_datasets import FEATURES, frame, made
from tests.support.refusals import refuses
from tests.support.running import POLICY, TABLETOP

HORIZON = 3


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LeRobotDataset:
    """Nine episodes of 5 to 11 steps, decided in turn by policy, human, replay, safety and hold."""
    return LeRobotDataset(made(tmp_path_factory.mktemp("sources") / "data", 9))


def decided_by(dataset: LeRobotDataset) -> list[Source]:
    return [
        Source(number % 5)
        for start, stop in zip(dataset.starts.tolist(), dataset.stops.tolist(), strict=True)
        for number in range(stop - start)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("names", [None, ["human"], ["policy", "safety", "replay"], ["hold", "human"]])
def test_steps_of_the_chosen_sources_are_cloned(dataset: LeRobotDataset, names: list[str] | None) -> None:
    """Steps of `hold` are left out by default."""
    found = choose_steps(dataset, names).mask
    wanted = ["policy", "human", "replay", "safety"] if names is None else names
    assert found is not None
    assert found.tolist() == [each.name.lower() in wanted for each in decided_by(dataset)]


def test_all_steps_need_no_choice(dataset: LeRobotDataset) -> None:
    found = choose_steps(dataset, [source.name.lower() for source in Source])
    assert found.mask is None and found.note is None


def test_the_note_counts_omitted_steps(dataset: LeRobotDataset) -> None:
    """72 steps in episodes of 5, 8 and 11: two, two and one or two of each five."""
    sources = decided_by(dataset)
    note = choose_steps(dataset, None).note
    assert note is not None and note.startswith(f"{sources.count(Source.HOLD)} of {len(sources)} steps")
    assert f"({sources.count(Source.HOLD)} by hold)" in note and "sources=[…]" in note


def test_consecutive_cloned_steps_are_counted() -> None:
    """By counting one by one."""
    random = np.random.default_rng(0)
    for share in (0.0, 0.3, 0.9, 1.0):
        chosen = random.random(200) < share
        counted = [next((k for k in range(200 - row) if not chosen[row + k]), 200 - row) for row in range(200)]
        assert count_steps_ahead(chosen).tolist() == counted


def test_a_chunk_ends_where_a_step_is_left_out(dataset: LeRobotDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk starts at an omitted step, or learns actions after one."""
    spec = replace(FakeSimulator.spec_of(FakeSimulator.Config()), cameras=())
    robot = Embodiment.of_simulator(spec, executed=3, token_length=4)
    network = Pocket(SMALL, MODEL_DIM, HORIZON, (), (0, 0), robot.vocabulary_size, 4)
    monkeypatch.setattr(cloning_data, "match_dataset", lambda *_: {})
    blank = Observation({}, np.zeros((8, 3), np.float32), ("go left",) * 8)
    monkeypatch.setattr(cloning_data, "rename_cameras", lambda *_: blank)
    chosen, sources = choose_steps(dataset, ["policy", "human"]).mask, decided_by(dataset)
    assert chosen is not None
    rows: list[int] = []

    class Noting(stream.SampleStream):
        def __next__(self) -> DatasetSamples:
            samples = super().__next__()
            rows[:] = samples.row.tolist()
            return samples

    monkeypatch.setattr(stream, "SampleStream", Noting)
    batches = cloning_data.stream_batches(dataset, robot, network, 8, 0, None, 0, chosen)
    seen: set[int] = set()
    for _ in range(10):
        padding = next(batches).padding
        assert padding is not None
        seen |= {*rows}
        for row, left_out in zip(rows, padding.tolist(), strict=True):
            stop = int(dataset.stops[dataset.episode_of([row])[0]])
            learned = [row + k < stop and sources[row + k] in (Source.POLICY, Source.HUMAN) for k in range(HORIZON)]
            assert left_out == [not all(learned[: k + 1]) for k in range(HORIZON)]
    assert seen == set(np.flatnonzero(chosen).tolist())


def test_a_policy_with_history_is_cloned_from_the_steps_before(
    dataset: LeRobotDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same episode; its first step stands for those before it, whose actions count as padding."""
    spec = replace(FakeSimulator.spec_of(FakeSimulator.Config()), cameras=())
    robot = Embodiment.of_simulator(spec, executed=3, token_length=4)
    network: Any = Pocket(SMALL, MODEL_DIM, HORIZON, (), (0, 0), robot.vocabulary_size, 4)
    network.observations = 3
    monkeypatch.setattr(cloning_data, "match_dataset", lambda *_: {})
    plain = lambda seen, _: replace(seen, images={}, instruction=("go left",) * len(seen))  # noqa: E731
    monkeypatch.setattr(cloning_data, "rename_cameras", plain)
    states, acted = (dataset.column(name, np.arange(len(dataset))) for name in ("observation.state", "action"))
    batches, first_steps = cloning_data.stream_batches(dataset, robot, network, 8, 0), 0
    for _ in range(10):
        batch = next(batches)
        assert batch.padding is not None and len(batch.inputs.earlier) == 2
        rows = [int(np.flatnonzero((states == state.numpy()).all(axis=1))[0]) for state in batch.inputs.state]
        starts = dataset.starts[dataset.episode_of(rows)]
        for place, back in enumerate((2, 1)):
            frames = np.maximum(np.array(rows) - back, starts)
            np.testing.assert_array_equal(batch.inputs.earlier[place].state.numpy(), states[frames])
            expected = robot.model_actions(acted[frames][:, None], states[rows], network.spec.action_dim)[:, 0]
            np.testing.assert_array_equal(batch.actions[:, place].numpy(), expected.numpy())
            assert batch.padding[:, place].tolist() == (np.array(rows) - back < starts).tolist()
        now = robot.model_actions(acted[rows][:, None], states[rows], network.spec.action_dim)[:, 0]
        np.testing.assert_array_equal(batch.actions[:, 2].numpy(), now.numpy())
        assert batch.actions.shape[1] == 2 + network.spec.horizon and not batch.padding[:, 2].any()
        first_steps += int((np.array(rows) == starts).sum())
    assert first_steps


def write(folder: Path, features: dict[str, Feature], **values: Any) -> LeRobotDataset:
    with DatasetWriter(folder, features, 20, "robot") as writer:
        writer.add_episode(({**frame(0, number, FEATURES), **values} for number in range(4)), "go")
    return LeRobotDataset(folder)


@pytest.mark.thorough
def test_a_source_feature_of_another_type_or_range_is_ignored(tmp_path: Path) -> None:
    """All steps are cloned with a note; choosing sources is refused."""
    other = {**FEATURES, "source": Feature("float32", (1,))}
    for number, (features, value) in enumerate(((other, 4.0), (FEATURES, 9))):
        found = write(tmp_path / str(number), features, source=value)
        chosen = choose_steps(found, None)
        assert chosen.mask is None and chosen.note is not None and "all its steps are cloned" in chosen.note
        with refuses("dataset-without-sources", found.folder):
            choose_steps(found, ["policy"])


def test_a_dataset_without_sources_is_cloned_as_a_whole(tmp_path: Path) -> None:
    features = {name: feature for name, feature in FEATURES.items() if name != "source"}
    folder = tmp_path / "silent"
    with DatasetWriter(folder, features, 20, "robot") as writer:
        writer.add_episode((frame(0, number, features) for number in range(4)), "go")
    found = LeRobotDataset(folder)
    assert (choose_steps(found, None).mask, choose_steps(found, None).note) == (None, None)
    with refuses("dataset-without-sources", found.folder):
        choose_steps(found, ["policy"])


@pytest.mark.parametrize(
    "names, code", [(["humans"], "source-unknown"), ([], "dataset-no-steps-left")], ids=["unknown", "none"]
)
def test_wrong_names_are_refused(dataset: LeRobotDataset, names: list[str], code: str) -> None:
    with refuses(code, *names, "policy, human"):
        choose_steps(dataset, names)


def test_a_dataset_without_steps_to_clone_is_refused(tmp_path: Path) -> None:
    with refuses("dataset-no-steps-left", "sources=[hold]"):
        choose_steps(write(tmp_path / "still", FEATURES, source=4), None)


def test_a_filter_and_sources_that_leave_nothing_together(dataset: LeRobotDataset) -> None:
    chosen = choose_steps(dataset, ["human"]).mask
    assert chosen is not None
    robot: Any = None
    network = Pocket(SMALL, MODEL_DIM, HORIZON, (), (0, 0), 4, 4)
    with (
        pytest.MonkeyPatch.context() as patch,
        refuses("dataset-no-steps-left", dataset.folder, "filter."),
    ):
        patch.setattr(cloning_data, "match_dataset", lambda *_: {})
        next(cloning_data.stream_batches(dataset, robot, network, 8, 0, ~chosen, 0, chosen))


def record_tabletop(folder: Path, words: Sequence[str] = TABLETOP) -> None:
    """Two episodes of twelve steps; every third step is of `hold`."""
    options = {name: int(value) for name, _, value in (word.removeprefix("sim.").partition("=") for word in words)}
    spec = SimulatorKind.find(SimNode("tabletop", num_envs=1, options=options)).spec
    random, features = np.random.default_rng(0), make_features(spec, "png")
    with DatasetWriter(folder, features, spec.control_hz, "tabletop") as writer:
        for _ in range(2):
            writer.add_episode((draw(features, random, number) for number in range(12)), "push the red cube")


def draw(features: dict[str, Feature], random: np.random.Generator, number: int) -> dict[str, Any]:
    drawn: dict[str, Any] = {name: random.random(each.shape) for name, each in features.items()}
    drawn = {name: value.astype("float32") for name, value in drawn.items()}
    pictures = {name: (255 * value).astype("uint8") for name, value in drawn.items() if "images" in name}
    return {**drawn, **pictures, "source": 4 * (number % 3 == 2), "next.success": False, "next.done": number == 11}


@pytest.mark.thorough
def test_sft_prints_the_omitted_steps(typed: Callable[..., Any], tmp_path: Path) -> None:
    """In a dry run and in a run."""
    record_tabletop(tmp_path / "told")
    small = tuple(word for word in POLICY if "checkpoint" not in word)
    words = ("sft", *small, *TABLETOP, f"dataset={tmp_path / 'told'}", "sim.num_envs=2", "algo=sft_vla",
             "algo.finetune_steps=2", "algo.batch=4", "eval_episodes=2", "film=false")  # fmt: skip
    for ending in (("--dry-run",), ()):
        code, out, err = typed(*words, *ending)
        assert code == 0, err
        assert "8 of 24 steps are not cloned" in " ".join(out.split()) and "(8 by hold)" in out
    code, _, err = typed(*words, "sources=[operator]")
    assert code == 2 and "'operator'" in err and "[source-unknown]" in err
    code, _, err = typed(*(word for word in words if "dataset=" not in word), "sources=[human]", "algo=sft")
    assert code == 2 and "dataset=<folder>" in err and "[sources-without-dataset]" in err
