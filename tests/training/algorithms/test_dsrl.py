"""Diffusion steering: a bandit with a known optimum, its targets by hand, and an exact restart."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.start_noise import StartNoise, StartNoiseSettings
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Episode, Source, StepResult
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.rollout.replay.format import ReplayField, ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms import replay_transitions
from embodied_rl.training.algorithms.dsrl import DSRL, DSRLConfig, Minibatch, Seen
from embodied_rl.training.algorithms.replay_transitions import find_transitions, read_transitions, sum_rewards
from tests.support.replaying import Script, layout
from tests.support.stored_actions import BAD, GOOD, SPEC, make_actor, make_storage, observe, sample_actions
from tests.support.two_modes import steer
from tests.support.using_checkpoints import assert_same_tensors

VARIANTS = pytest.mark.parametrize("variant", ["noise_aliased", "sac"])


def make_learner(actor: FlowActor | None = None, **settings: Any) -> DSRL:
    given: dict[str, Any] = {"updates": 3, "minibatch": 16, "hidden": 16, "warmup": 0, "policy_tau": 1.0} | settings
    return DSRL(DSRLConfig(**given), actor or steer("privileged"), Ranks(), 0, 1)


def make_stored(
    noise: list[float], rewards: list[float], sources: list[Source] | None = None, told: bool = False
) -> ReplayStorage:
    """One-step episodes of the two modes, with their start noise; if `told`, it is the state, too."""
    count = len(noise)
    extra = {"trace/start_noise": ReplayField((1,), "float32")}
    storage = ReplayStorage(ReplayFormat.of_simulator(SPEC, 1, 2 * count + 2, 1, extra=extra))
    for index in range(count):
        played = np.full((1, 1, 1), GOOD if noise[index] > 0 else BAD, np.float32)
        seen = replace(observe(1), state=np.full((1, 1), noise[index] * told, np.float32))
        trace = {"start_noise": torch.tensor([[noise[index]]])}
        chosen = Decision(played, trace, torch.zeros(1, 1, 1), torch.zeros(1), torch.zeros(1, dtype=torch.int64))
        keys, column = NoiseKeys(0, np.array([index]), np.array([0])), torch.tensor([0])
        storage.write_decision(0, column, chosen, [Episode(index, 0, seed=index)], seen, keys)
        result = StepResult(
            reward=np.full((1, 1), rewards[index], np.float32), success=np.array([[rewards[index] > 0]]),
            steps=np.ones(1, np.int64), executed=played,
            source=np.array([[sources[index] if sources else Source.POLICY]], np.uint8),
            terminated=np.ones(1, bool), truncated=np.zeros(1, bool), observation=observe(1),
            ended=np.zeros(1, np.int64), final_observation=observe(1),
        )  # fmt: skip
        storage.write_result(0, column, result, np.zeros(1, np.int64))
    return storage


@pytest.mark.thorough
@VARIANTS
@pytest.mark.parametrize("sign", [1, -1])
def test_the_deployed_policy_picks_the_rewarded_mode(variant: str, sign: int) -> None:
    """Of a frozen flow with two modes; the other one if that is rewarded. Both the centre and nearly all draws."""
    noise = np.random.default_rng(0).normal(size=200).clip(-2, 2)
    replay = Replay(make_stored(noise.tolist(), [float(sign * each > 0) for each in noise]))
    learner = make_learner(
        variant=variant, updates=250, minibatch=64, lr=1e-2, critic_lr=1e-2, temperature=0.02, temperature_lr=3e-3
    )
    before = deepcopy(learner.actor.network.state_dict())
    figures = learner.update(replay, 0)
    assert_same_tensors(learner.actor.network.state_dict(), before)
    assert (sample_actions(learner.actor) == (GOOD if sign > 0 else BAD)).all()
    rows = np.arange(500)
    drawn = learner.actor.act(observe(500), NoiseKeys(9, rows, np.zeros_like(rows)), explore=True).actions[:, 0, 0]
    assert float((drawn == (GOOD if sign > 0 else BAD)).mean()) > 0.95
    assert figures["value"] > 0.5 and figures["rows"] == figures["episodes"] == 200


@pytest.mark.thorough
def test_episodes_without_stored_noise_are_learned() -> None:
    """Offline ones, with corrections by a human."""
    offline = make_storage([GOOD, BAD] * 30, [True, False] * 30, [Source.HUMAN] * 60)
    learner = make_learner(updates=150, minibatch=32, lr=1e-2, critic_lr=1e-2, temperature=0.02)
    figures = learner.update(Replay(make_storage([BAD], [False]), (offline,)), 0)
    assert (sample_actions(learner.actor) == GOOD).all() and figures["rows"] == 61


def test_stored_noise_is_not_learned_where_a_human_acted() -> None:
    replay = Replay(make_stored([1.0, -1.0, 0.5], [1, 0, 1], [Source.POLICY, Source.HUMAN, Source.SAFETY]))
    assert make_learner(variant="sac").update(replay, 0)["rows"] == 2
    assert make_learner().update(replay, 0)["rows"] == 3


@pytest.mark.parametrize("critic", ["privileged", "prefix"])
def test_no_bit_of_the_network_changes(critic: str) -> None:
    """Of a real one, and nothing but the policy over start noise does."""
    actor = make_actor(critic)
    actor.start_noise = StartNoise(StartNoiseSettings(hidden=16), actor.network.spec)
    learner = make_learner(actor)
    before = deepcopy(actor.state_dict())
    learner.update(Replay(make_storage([GOOD, BAD] * 4, [True, False] * 4)), 0)
    after = actor.state_dict()
    changed = {name.split(".")[0] for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"start_noise"} and actor.critic is None
    assert all(parameter.grad is None for parameter in actor.network.parameters())
    first = next(learner.critics.parameters())
    assert first.shape[1] == 16 + (critic == "privileged") + 1


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("terminal", [False, True])
def test_transitions_are_those_of_a_loop(terminal: bool, n: int) -> None:
    """Of invented episodes of either end, with partial chunks."""
    storage, rng, gamma = ReplayStorage(layout(60, tracks=2)), np.random.default_rng(0), 0.9
    script = Script(storage)
    for _ in range(25):
        script.step(rng)
    replay, rows, ends, counts = Replay(storage, ends_at_time_limit=terminal), script.expected(), set(), set()
    for episode in storage.list_episodes():
        where = replay.list_decisions(0, [episode])
        found = read_transitions(replay, where, 4, gamma, n)
        joined = _join(rows, episode.episode, len(where), 4)
        for number, (first, _, _, executed) in enumerate(joined):
            rewards, chunks, following, over = list[float](), 0, number, False
            while chunks < n and following < len(joined) and not over:
                _, last, reward, _ = joined[following]
                row, rewards, chunks, following = rows[episode.episode, last], rewards + reward, chunks + 1, last + 1
                over = bool(row["terminated"] or (row["truncated"] and terminal))
            ends.add((bool(row["terminated"]), bool(row["truncated"])))
            counts.add(chunks)
            expected = sum(gamma**j * float(each) for j, each in enumerate(rewards))
            assert found.reward[number] == pytest.approx(expected, rel=1e-6)
            assert found.discount[number] == pytest.approx(0 if over else gamma ** len(rewards), rel=1e-6)
            if not over:
                seen = replay.read_observation(found.following[number : number + 1])
                assert np.array_equal(seen.state, row["next"].state)
            chunk = found.actions[number]
            assert np.array_equal(chunk[executed:], first["action"][executed:]), "chosen, but not executed"
            assert np.array_equal(chunk[: first["steps"]], first["executed"][: first["steps"]])
    assert len(ends) == 3 and counts == set(range(1, n + 1))


def test_more_chunks_than_an_episode_has_cost_nothing() -> None:
    """All rewards until its end: returns without a bootstrap."""
    reward, after = np.arange(1.0, 5), np.array([1, 2, 3, 4])
    total, discount, origin = sum_rewards(reward, np.array([0.5, 0.5, 0.5, 0]), after, 10**15)
    assert total.tolist() == [1 + 1 + 0.75 + 0.5, 2 + 1.5 + 1, 3 + 2, 4]
    assert discount.tolist() == [0] * 4 and origin.tolist() == [3] * 4


def _join(rows: dict, episode: int, length: int, most: int) -> list[tuple[dict, int, list, int]]:
    """Each decision with the last one that still fits into a chunk, their rewards, and control steps."""
    found = []
    for first in range(length):
        reward, last = [], first
        for number in range(first, length):
            row = rows[episode, number]
            if len(reward) + row["steps"] > most:
                break
            reward, last = [*reward, *row["reward"][: row["steps"]]], number
        found.append((rows[episode, first], last, reward, len(reward)))
    return found


def test_control_steps_are_joined_to_chunks() -> None:
    """Three steps in chunks of two; after the end the last action goes on."""
    storage = ReplayStorage(ReplayFormat.of_simulator(SPEC, 1, 10, 1))
    actions = np.array([0.1, 0.2, 0.3], np.float32).reshape(3, 1, 1)
    last = np.array([False, False, True])
    result = StepResult(
        reward=np.array([[1.0], [2.0], [4.0]], np.float32), success=last[:, None], steps=np.ones(3, np.int64),
        executed=actions, source=np.full((3, 1), Source.REPLAY, np.uint8), terminated=last,
        truncated=np.zeros(3, bool), observation=observe(3),
    )  # fmt: skip
    storage.write_episode(0, Episode(0, 0, seed=0), observe(3), actions, result)
    replay = Replay(storage)
    found = read_transitions(replay, replay.list_decisions(0, storage.list_episodes()), 2, 0.5)
    assert found.reward.tolist() == [2.0, 4.0, 4.0] and found.discount.tolist() == [0.25, 0.0, 0.0]
    assert found.actions[..., 0].tolist() == pytest.approx(np.array([[0.1, 0.2], [0.2, 0.3], [0.3, 0.3]]))
    assert found.following[0].tolist() == [0, 0, 2]


def make_batch(learner: DSRL, rows: int = 6) -> Minibatch:
    seen = [
        learner._see(learner._perceive(Replay(make_storage([GOOD] * rows, [True] * rows)), _all(rows)))
        for _ in range(2)
    ]
    reward, discount = torch.linspace(0, 1, rows), torch.tensor([0.9, 0.0] * (rows // 2))
    judged = torch.full((rows, 1), GOOD)
    return Minibatch(torch.ones(rows), reward, discount, judged, seen[0], seen[1])


def _all(rows: int) -> np.ndarray:
    return np.stack([np.zeros(rows), np.zeros(rows), np.arange(rows)], axis=1).astype(np.int64)


@VARIANTS
def test_the_target_is_that_of_a_loop(variant: str) -> None:
    learner = make_learner(variant=variant, critics=3)
    batch, policy = make_batch(learner), learner.policy
    batch.following.features.add_(torch.randn(batch.following.features.shape))  # not what is seen before
    with torch.no_grad():
        for parameter in learner.targets.parameters():  # nor the critics
            parameter.add_(0.1 * torch.randn_like(parameter))
    found = learner.critic_target(batch, torch.Generator().manual_seed(5))
    epsilon = torch.randn((6, 1), generator=torch.Generator().manual_seed(5))
    for row in range(6):
        noise, log_prob = policy.draw(batch.following.pooled[row : row + 1], epsilon[row : row + 1])
        judged = GOOD * noise.sign() if variant == "noise_aliased" else noise
        features = torch.cat([batch.following.features[row : row + 1], judged], dim=1)
        value = min(float(member(features).detach()) for member in learner.targets.members)
        value -= 0.0 if variant == "noise_aliased" else 0.1 * float(log_prob.detach())
        assert float(found[row]) == pytest.approx(float(batch.reward[row] + batch.discount[row] * value), abs=1e-5)


def test_the_critic_of_noise_learns_the_least_value_of_what_plain_and_learned_noise_lead_to() -> None:
    """Half of the noise is the policy's, here 0.05, the other half from N(0, I) within the bound, here 0.3."""
    learner, drawn = make_learner(critics=3, bound=0.3), list[torch.Tensor]()
    batch, execute = make_batch(learner, 400), learner.execute
    learner._draw = lambda seen, generator: (torch.full((len(seen.pooled), 1), 0.05), None)  # type: ignore[method-assign,assignment]
    learner.execute = lambda seen, noise: (drawn.append(noise), execute(seen, noise))[1]  # type: ignore[method-assign]
    learner.noise_critics = lambda features, noise: torch.zeros(2, len(noise))  # type: ignore[assignment]
    weight = torch.linspace(0, 3, 400)
    loss = learner._noise_critic_loss(replace(batch, weight=weight), torch.Generator().manual_seed(1))
    (noise,) = drawn
    plain = noise[noise != 0.05]
    assert 160 < len(plain) < 240 and plain.abs().max() == pytest.approx(0.3) and plain.std() > 0.2
    value = learner.critics(batch.seen.features, execute(batch.seen, noise)).detach().amin(0)
    assert float(loss) == pytest.approx(float((weight * value**2).mean()), rel=1e-4)


def test_without_a_difference_in_value_a_narrow_policy_gets_wider() -> None:
    """By the entropy alone."""
    learner = make_learner(variant="sac", temperature=1.0, temperature_lr=0.0, lr=3e-2, critic_lr=0.0)
    with torch.no_grad():
        learner.policy.head.bias[1:] = -1.5
        for parameter in learner.critics.parameters():
            parameter.zero_()
    batch, generator = make_batch(learner, 100), torch.Generator().manual_seed(0)
    entropies = [learner._step(batch, generator)["entropy"] for _ in range(50)]
    assert entropies[0] < 0.7 and entropies[-1] > 1.1


def test_targets_follow_the_critics() -> None:
    learner = make_learner(updates=1, tau=0.25)
    before = [parameter.clone() for parameter in learner.targets.parameters()]
    learner.update(Replay(make_storage([GOOD, BAD], [True, False])), 0)
    pairs = zip(before, learner.critics.parameters(), learner.targets.parameters(), strict=True)
    for old, critic, target in pairs:
        assert torch.allclose(target, 0.75 * old + 0.25 * critic, atol=1e-7)
    assert any(not torch.equal(old, new) for old, new in zip(before, learner.targets.parameters(), strict=True))


def test_the_acting_policy_is_an_exponential_average_of_the_learned_one() -> None:
    """Which learns as without it; from the same weights."""
    replay = Replay(make_storage([GOOD, BAD], [True, False]))
    first, follower = make_learner(updates=1), make_learner(updates=1, policy_tau=0.25)
    averaged = {name: value.clone() for name, value in first.policy.state_dict().items()}
    for iteration in range(3):
        for learner in (first, follower):
            learner.update(replay, iteration)
        for name, value in first.policy.state_dict().items():
            averaged[name] = 0.75 * averaged[name] + 0.25 * value
    assert_same_tensors(follower.policy.state_dict(), first.policy.state_dict())
    acting = follower.actor.start_noise
    assert acting is not None and acting is not follower.policy and first.actor.start_noise is first.policy
    for name, value in acting.state_dict().items():
        assert torch.allclose(value, averaged[name], atol=1e-7), name


@pytest.mark.parametrize(("wanted", "rises"), [(1.4, True), (-3.0, False)])
def test_the_temperature_rises_while_the_entropy_is_below_its_target(wanted: float, rises: bool) -> None:
    learner = make_learner(target_entropy=wanted, temperature=0.1)
    figures = learner.update(Replay(make_storage([GOOD, BAD], [True, False])), 0)
    assert (figures["temperature"] > 0.1) == rises and -3 < figures["entropy"] < 1.4


@VARIANTS
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_a_restored_learner_goes_on_with_the_same_bits(variant: str, tau: float) -> None:
    replay = Replay(make_stored([1.0, -1.0, 0.5, -0.3], [1, 0, 1, 0]))
    first = make_learner(variant=variant, policy_tau=tau)
    first.update(replay, 0)
    second = make_learner(steer("privileged"), variant=variant, policy_tau=tau)
    second.actor.load_state_dict(first.actor.state_dict())
    second.load(first.state())
    assert_same_tensors(first.targets.state_dict(), second.targets.state_dict())
    for learner in (first, second):
        learner.update(replay, 1)
    assert_same_tensors(first.actor.state_dict(), second.actor.state_dict())
    assert_same_tensors(first.state(), second.state())


def test_an_empty_replay_changes_nothing() -> None:
    learner = make_learner()
    before = deepcopy(learner.actor.state_dict())
    figures = learner.update(Replay(make_storage([], [])), 0)
    assert_same_tensors(learner.actor.state_dict(), before)
    assert figures["steps"] == figures["rows"] == figures["critic_loss"] == 0


class Elsewhere(Ranks):
    """A rank of two, whose other one has decisions."""

    size = 2

    def sum_(self, tensors: Any) -> None:
        for tensor in tensors:
            tensor.add_(4)


def test_a_rank_without_decisions_takes_all_steps_with_the_others() -> None:
    learner = make_learner()
    learner.ranks = Elsewhere()
    steps = []
    for name, optimiser in learner._optimisers.items():
        optimiser.step = lambda ranks, name=name: steps.append(name)  # type: ignore[method-assign,assignment]
    learner.update(Replay(make_storage([], [])), 0)
    assert steps == ["critics", "noise_critics", "policy", "temperature"] * 3


def test_the_first_iterations_collect_with_plain_noise() -> None:
    learner = make_learner(warmup=2)
    plain = []
    for iteration in range(4):
        learner.prepare(iteration)
        plain.append(learner.policy.plain)
    assert plain == [True, True, False, False]


@VARIANTS
def test_rows_are_seen_alike_from_a_table_and_anew(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, and computed once in a table, or for each reading."""
    replay, rows = Replay(make_stored([1.0, -1.0, 0.5], [1, 0, 1], told=True)), _all(3)[[2, 0, 2]]
    learner, asked = make_learner(variant=variant), list[int]()
    perceive = learner._perceive
    learner._perceive = lambda replay, where: (asked.append(len(where)), perceive(replay, where))[1]  # type: ignore[method-assign]
    known = find_transitions(replay, learner.actor.embodiment.executed, learner.config.gamma)
    look = learner._make_look(replay, known)
    tabled, again = look(rows), look(rows)
    assert asked == [2]
    monkeypatch.setattr(replay_transitions, "LARGEST_TABLE", 1)
    anew: Seen = learner._make_look(replay, known)(rows)
    for found in (tabled, again):
        assert torch.equal(found.features, anew.features) and torch.equal(found.state, anew.state)
        assert torch.equal(found.pooled, anew.pooled) and (found.context is None) == (variant == "sac")
    assert not torch.equal(anew.features[0], anew.features[1]) and asked == [2, 2]
