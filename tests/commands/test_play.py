"""`embodied-rl play`: one episode of each task, filmed."""

import imageio_ffmpeg
import numpy as np

from embodied_rl.assembly.policy_factory import choose_policy
from embodied_rl.commands.play import choose_one_of_each, run
from embodied_rl.schema import PlayConfig, SimNode
from embodied_rl.testing.fakes import FakeSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.refusals import refuses

SPEC = Tabletop.spec_of(TabletopConfig())


def config(**settings) -> PlayConfig:
    return PlayConfig(SimNode("tabletop", options={"image_size": 8, "horizon": 4}), **settings)


def test_each_task_is_played_once() -> None:
    episodes = choose_one_of_each(SPEC, config())
    assert sorted(episode.task for episode in episodes) == list(range(len(SPEC.tasks)))
    assert [episode.index for episode in episodes] == list(range(len(SPEC.tasks)))
    assert {episode.split for episode in episodes} == {"train"}


def test_a_family_or_a_task_is_played_alone() -> None:
    assert {SPEC.tasks[episode.task].name for episode in choose_one_of_each(SPEC, config(task="push"))} == {
        "push_cube",
        "push_cylinder",
    }
    (episode,) = choose_one_of_each(SPEC, config(task="put_in_bowl", split="vision"))
    assert (SPEC.tasks[episode.task].name, episode.split) == ("put_in_bowl", "vision")


def test_the_video_is_written(tmp_path, capsys) -> None:
    run(config(policy="random", out=str(tmp_path), task="pick"))
    opened = imageio_ffmpeg.read_frames(str(tmp_path / "random.mp4"))
    next(opened)  # what the file says of itself
    frames = [np.frombuffer(frame, np.uint8) for frame in opened]
    assert len(frames) >= 4 and np.std(frames[-1]) > 10
    printed = capsys.readouterr().out
    assert printed.count("failure") == 2 and "pick up the" in printed and "random.mp4" in printed


def test_a_simulator_without_an_operator_says_so() -> None:
    with refuses("operator-missing", "policy=expert"):
        choose_policy("expert", FakeSimulator(2), 2)
