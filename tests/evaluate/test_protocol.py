"""Each episode is run exactly once, and its result depends on nothing but itself."""

from collections import Counter

import numpy as np
import pytest

from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy, measure_smoothness, name_failure
from embodied_rl.evaluate.video import record_episodes
from embodied_rl.interfaces.sim import Episode, NotFinite, StepResult
from embodied_rl.runtime.processes.handle import WorkerDied
from tests.support.refusals import refuses

ARRANGEMENTS = [(1, 1), (2, 3), (4, 64)]


@pytest.fixture
def run(spec, make_actor, make_handles, executed):
    def run(episodes, handles=2, envs=5, **options):
        return evaluate_policy(make_actor(), make_handles(handles, envs), spec, episodes, 3, envs, executed, **options)

    return run


def test_families_get_equal_shares_and_tasks_take_turns(spec):
    episodes = enumerate_episodes(spec, "eval", 31)
    assert len(episodes) == 31 and len({episode.index for episode in episodes}) == 31
    assert len({episode.seed for episode in episodes}) == 31
    families = Counter(spec.tasks[episode.task].family for episode in episodes)
    assert families == {"pick": 11, "push": 10, "open": 10}
    tasks = Counter(episode.task for episode in episodes)
    assert tasks[0] == 6 and tasks[1] == 5
    assert enumerate_episodes(spec, "eval", 7) == episodes[:7], "a short list begins a long one"
    assert {episode.task for episode in enumerate_episodes(spec, "eval", 8, task="pick blue")} == {1}
    assert {episode.task for episode in enumerate_episodes(spec, "eval", 8, task="pick")} == {0, 1}
    assert {episode.split for episode in episodes} == {"train"}, "the conditions of training"
    assert {episode.split for episode in enumerate_episodes(spec, "vision", 3)} == {"vision"}


def test_seeds_of_purposes_splits_and_runs_never_meet(spec):
    lists = [
        enumerate_episodes(spec, split, 200, purpose=purpose, seed=seed)
        for purpose in ("select", "report", "train", "publish")
        for split in ("eval", "vision")
        for seed in (0, 1)
    ]
    seeds = [episode.seed for episodes in lists for episode in episodes]
    assert len(set(seeds)) == len(seeds)


def test_unknown_names_are_refused(spec):
    with refuses("split-unknown", "'visoin'", "'vision'"):
        enumerate_episodes(spec, "visoin", 4)
    with refuses("task-unknown", "'pick rde'", "'pick red'"):
        enumerate_episodes(spec, "eval", 4, "pick rde")


@pytest.mark.parametrize(("handles", "envs"), ARRANGEMENTS)
def test_each_episode_counts_once_whatever_its_length(run, spec, handles, envs, horizon, length):
    episodes = enumerate_episodes(spec, "eval", 37)
    results = run(episodes, handles, envs)
    assert [(r.index, r.task, r.seed) for r in results] == [(e.index, e.task, e.seed) for e in episodes]
    for result in results:
        assert result.steps == (length(result.seed) if result.success else horizon)
        assert result.reward == float(result.success) == float(result.success_at_end)
    assert len({result.steps for result in results}) > 5 and 0 < sum(r.success for r in results) < 37


@pytest.mark.parametrize(("handles", "envs"), ARRANGEMENTS[1:])
@pytest.mark.parametrize("ablate", ["none", "image", "instruction"])
def test_results_do_not_depend_on_slices(run, spec, handles, envs, ablate):
    episodes = enumerate_episodes(spec, "eval", 24)
    assert run(episodes, handles, envs, ablate=ablate) == run(episodes, 1, 1, ablate=ablate)


def test_the_policy_sees_no_parked_row_no_privileged_state_and_does_not_explore(
    spec, make_actor, make_handles, executed
):
    actor = make_actor()
    results = evaluate_policy(actor, make_handles(2, 8), spec, enumerate_episodes(spec, "eval", 19), 0, 8, executed)
    for call in actor.calls:
        assert call.observation.privileged is None and not call.explore
        assert not (call.observation.images["front"] == 255).all(axis=(1, 2, 3)).any(), "a parked row was inferred"
    asked = Counter(
        (int(e), int(d)) for call in actor.calls for e, d in zip(call.keys.episode, call.keys.decision, strict=True)
    )
    assert set(asked.values()) == {1}
    assert len(asked) == sum(-(-result.steps // executed) for result in results)


def test_blank_images_are_black_and_change_results(spec, make_actor, make_handles, executed, run):
    actor, episodes = make_actor(), enumerate_episodes(spec, "eval", 24)
    results = evaluate_policy(actor, make_handles(1, 8), spec, episodes, 3, 8, executed, ablate="image")
    assert all(not call.observation.images["front"].any() for call in actor.calls)
    assert results != run(episodes)


def test_a_foreign_instruction_is_of_another_task_and_lasts_the_episode(spec, make_actor, make_handles, executed):
    actor, episodes = make_actor(), enumerate_episodes(spec, "eval", 48)
    evaluate_policy(actor, make_handles(2, 8), spec, episodes, 3, 8, executed, ablate="instruction")
    shown: dict[int, set[str]] = {}
    for call in actor.calls:
        for index, text in zip(call.keys.episode, call.observation.instruction, strict=True):
            shown.setdefault(int(index), set()).add(text)
    assert all(len(texts) == 1 and spec.tasks[episodes[i].task].name not in texts for i, texts in shown.items())
    given = Counter(text for texts in shown.values() for text in texts)
    assert given == Counter(spec.tasks[episode.task].name for episode in episodes), "a derangement uses each once"


def test_one_task_has_no_foreign_instructions(run, spec):
    with pytest.raises(ValueError, match="ablate=instruction"):
        run(enumerate_episodes(spec, "eval", 8, task="open"), ablate="instruction")


def test_nan_is_blamed_on_the_policy_or_on_the_simulator(spec, make_actor, make_handles, executed):
    def run(actor, handles, expected):
        with pytest.raises(ValueError, match=expected):
            evaluate_policy(actor, handles, spec, enumerate_episodes(spec, "eval", 8), 0, 4, executed)

    run(make_actor(nan_at=5), make_handles(2, 4), r"policy chose NaN .* in episode 5 \(open, seed \d+\), decision 0")
    handles = make_handles(2, 4)

    def break_physics(actions, following):
        raise NotFinite("the physics came to nothing", 2)

    handles[1].simulator.step = break_physics
    run(make_actor(), handles, r"came to nothing in episode 6 \(seed \d+\)\. The simulator is to blame")
    handles = make_handles(2, 4)
    sound = handles[0].simulator._observe

    def break_state():
        observation = sound()
        observation.state[observation.state[:, 0] == executed, 1] = np.nan
        return observation

    handles[0].simulator._observe = break_state
    run(make_actor(), handles, r"The simulator's state has NaN or infinity in episode \d \(.*\), decision 1")


def test_a_dead_worker_repeats_its_episodes_and_changes_nothing(spec, make_actor, make_handles, executed, run):
    episodes, handles = enumerate_episodes(spec, "eval", 30), make_handles(2, 5)
    sound, calls = handles[1].result, iter(range(100))

    def result(timeout=None):
        if next(calls) in (3, 6):
            raise WorkerDied("killed by hand")
        return sound(timeout)

    handles[1].result = result
    assert evaluate_policy(make_actor(), handles, spec, episodes, 3, 5, executed) == run(episodes)
    assert next(calls) > 7


def test_noise_is_of_the_purpose_and_the_seed(spec, make_actor, make_handles, executed):
    episodes = enumerate_episodes(spec, "eval", 3)

    def noise(run):
        actor, seeds = make_actor(), set()
        infer = actor.infer
        actor.infer = lambda observation, keys: seeds.add(keys.seed) or infer(observation, keys)
        run(actor)
        (seed,) = seeds
        return seed

    def evaluated(seed, **purpose):
        return noise(
            lambda actor: evaluate_policy(actor, make_handles(1, 3), spec, episodes, seed, 3, executed, **purpose)
        )

    keys = [{"purpose": purpose} for purpose in ("train", "select", "report", "publish")]
    assert len({evaluated(seed, **key) for seed in (0, 1) for key in keys}) == 8
    assert evaluated(1) == evaluated(1, purpose="report")
    simulator = make_handles(1, 3)[0].simulator
    for key in ({}, {"purpose": "publish"}):
        filmed = noise(lambda actor, key=key: record_episodes(actor, simulator, episodes, num_envs=3, seed=1, **key))
        assert filmed == evaluated(1, **key)


def test_indices_that_repeat_are_refused(run):
    with pytest.raises(ValueError, match="share an index"):
        run([Episode(0, 0, 1), Episode(0, 1, 2)])


def test_smoothness_of_known_curves():
    time = np.arange(12.0)
    assert measure_smoothness(np.stack([3 * time, -time], axis=1)) == 0
    assert measure_smoothness(np.stack([time**2, 0 * time], axis=1)) == pytest.approx(2.0)  # (2² + 0²) / 2
    assert measure_smoothness(np.array([[0.0], [0.0], [3.0]])) == 9  # three steps are enough
    assert measure_smoothness(np.array([[0.0], [3.0]])) == 0


def test_smoothness_of_an_episode_is_that_of_its_executed_steps(spec, make_actor, make_handles, executed):
    actor, episode = make_actor(), enumerate_episodes(spec, "eval", 1)
    (result,) = evaluate_policy(actor, make_handles(1, 1), spec, episode, 3, 1, executed)
    chunks = [actor.act(c.observation, c.keys, False).actions[0, :executed] for c in list(actor.calls)]
    actions = np.concatenate(chunks)[: result.steps].astype(np.float64)
    second = actions[2:] - 2 * actions[1:-1] + actions[:-2]
    assert result.smoothness == pytest.approx((second**2).mean())


@pytest.mark.parametrize("tells", [None, "wrong colour", ""])
def test_failures_have_the_simulators_words_or_the_time_limit(spec, make_actor, make_handles, executed, tells):
    class Telling(type(make_handles(1, 1)[0].simulator)):
        def step(self, actions, next_episodes):
            result = super().step(actions, next_episodes)
            texts = tuple("" if result.terminated[row] else f"{tells} {row}" for row in result.ended)
            result.failures = None if tells is None else texts if tells else ("",) * len(texts)
            return result

    handle = make_handles(1, 1)[0]
    handle.simulator = Telling(3)
    results = evaluate_policy(make_actor(), [handle], spec, enumerate_episodes(spec, "eval", 24), 3, 3, executed)
    assert {result.failure for result in results if result.success} == {""}
    found = {result.failure for result in results if not result.success}
    assert found == ({f"wrong colour {row}" for row in range(3)} if tells else {"time limit"})


def test_an_episode_that_its_simulator_ends_without_a_word_is_not_explained():
    def ended(terminated, failures):
        empty = dict.fromkeys(("reward", "success", "steps", "executed", "source", "observation"), np.zeros(0))
        flags = np.array([False, terminated]), np.array([False, not terminated])
        return StepResult(**empty, terminated=flags[0], truncated=flags[1], ended=np.array([1]), failures=failures)

    assert name_failure(ended(True, None), 1) is None
    assert name_failure(ended(True, ("",)), 1) is None
    assert name_failure(ended(True, ("fell over",)), 1) == "fell over"
    assert name_failure(ended(False, None), 1) == "time limit"
