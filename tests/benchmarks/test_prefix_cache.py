"""That both sides of each comparison give the same, and that what is written says what was measured."""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers")

from embodied_rl.benchmarks import stopwatch
from embodied_rl.schema import AlgoNode, PolicyNode, SimNode
from tests.benchmarks import model_memory, networks, prefix_cache, roofline
from tests.benchmarks.networks import TINY
from tests.benchmarks.prefix_cache import PrefixCase
from tests.benchmarks.settings import BenchmarkConfig

pytestmark = pytest.mark.thorough
LEAST = replace(
    TINY, name="least", cameras=1, picture=28, tokens={"pi0": 4, "pi05": 5},
    options={**TINY.options, "layers": 2, "width": 16, "resolution": 28, "horizon": 3},
)  # fmt: skip


CONFIG = BenchmarkConfig(SimNode("tabletop", num_envs=2), PolicyNode("pocket"), AlgoNode("ppo"), seconds=0.1)


def actor(name: str, **settings):
    return networks.fill_actor(networks.lay_out(name, LEAST, **settings), "cpu")


@pytest.mark.parametrize("name", networks.POLICIES)
@torch.no_grad()
def test_both_ways_to_denoise_and_the_compiled_one_give_the_same_actions(name: str) -> None:
    network = actor(name).backbone
    given = networks.make_inputs(actor(name), 2)
    x = torch.randn(2, network.spec.horizon, network.spec.action_dim)
    once = prefix_cache.decide_cached(network, given, x, 3)
    torch.testing.assert_close(prefix_cache.decide_uncached(network, given, x, 3), once, rtol=0, atol=1e-6)
    torch.testing.assert_close(prefix_cache.compile_decision(network, "eager")(given, x, 3), once, rtol=0, atol=1e-6)
    other = networks.make_inputs(actor(name), 2, seed=1)
    assert (prefix_cache.decide_cached(network, other, x, 3) - once).abs().max() > 1e-3, "the prefix decides nothing"


@pytest.mark.parametrize("name", networks.POLICIES)
def test_every_kind_of_trace_gives_the_same_update(name: str) -> None:
    """Log-probabilities, and the gradients that the expert learns from."""
    learner = actor(name, train="expert")
    traces = networks.make_traces(learner, networks.make_inputs(learner, 3))
    found = {}
    for keep, trace in traces.items():
        learner.zero_grad()
        score = learner.evaluate(trace).log_prob
        score.sum().backward()
        found[keep] = [score.detach(), *(p.grad for p in learner.parameters() if p.grad is not None)]
    assert set(found) == set(networks.KEEPS)
    for keep in ("images", "features"):
        for mine, other in zip(found[keep], found["prefix"], strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    assert found["prefix"][0].abs().sum() > 0
    assert set(traces["prefix"]) == set(learner.trace_spec())


def test_decisions_and_updates_are_measured(monkeypatch) -> None:
    monkeypatch.setattr(prefix_cache, "HOST", (PrefixCase(LEAST, 2, 3),))
    written = json.loads(json.dumps(prefix_cache.run(CONFIG)))
    assert [(each["policy"], each["steps"]) for each in written["decisions"]] == [
        ("pi0", 4), ("pi0", 10), ("pi05", 4), ("pi05", 10),
    ]  # fmt: skip
    for each in written["decisions"]:
        assert each["difference"] < 1e-5 and each["rounds"] >= stopwatch.MIN_ROUNDS
        assert set(each["seconds"]) == {"cached", "uncached"} and each["ratio"] > 0
    for each in written["updates"]:
        assert each["difference"] < 1e-5 and each["rows"] == 3
        assert set(each["decisions_per_second"]) == set(networks.KEEPS)
        assert each["bytes_of_a_decision"]["images"] > 28 * 28 * 3


def test_the_median_of_ratios_not_of_times_counts() -> None:
    """Rounds of 1 and 2, 10 and 10, 4 and 12 seconds: a slow moment slows both sides of its round."""
    found = stopwatch.TurnTimes({"fast": (1.0, 10.0, 4.0), "slow": (2.0, 10.0, 12.0)}, {"fast": (2.0,), "slow": (5.0,)})
    assert found.ratio("slow", "fast") == 2.0 and found.seconds("slow") == 10.0
    assert found.processor_ratio("slow", "fast") == 2.5


def test_pieces_of_work_take_turns() -> None:
    done: list[str] = []
    found = stopwatch.take_turns({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, 0.0, "cpu")
    rounds = stopwatch.WARM_UP + stopwatch.MIN_ROUNDS
    assert "".join(done) == ("abba" * rounds)[: 2 * rounds]
    assert len(found.wall["a"]) == len(found.processor["b"]) == stopwatch.MIN_ROUNDS


@pytest.mark.slow
def test_memory_is_counted(monkeypatch) -> None:
    monkeypatch.setattr(networks, "FULL", LEAST)
    monkeypatch.setattr(networks, "POLICIES", ("pi0",))
    monkeypatch.setattr(model_memory, "TRAIN", ("full", "expert"))
    written = json.loads(json.dumps(model_memory.run(CONFIG)))
    assert len(written["updates"]) == len(model_memory.TRAIN) * len(model_memory.PRECISIONS)
    for each in written["updates"]:
        assert each["saving"]["peaks"][-1] < each["plain"]["peaks"][-1]
        assert each["keep"] == {"full": "images", "expert": "prefix"}[each["train"]]
        assert min(each["rows_within"]["24GB"]) > 0
    exact, half = (written["traces"][index] for index in (0, 1))
    options = LEAST.options
    tokens = options["resolution"] ** 2 // options["patch"] ** 2 + LEAST.tokens["pi0"]
    key_value = options["layers"] * 2 * tokens * options["head_dim"]
    assert exact["prefix"] - half["prefix"] == 2 * key_value


def test_the_limit_of_a_decision_is_that_of_its_products() -> None:
    """Of the expert's matrices, each of its tokens makes 2 operations an entry; attention is counted apart."""
    network = networks.lay_out("pi0", LEAST).backbone
    found = roofline.count_decision("pi0", LEAST, rows=2)
    options, patches = LEAST.options, 4
    horizon, actions, seen = options["horizon"], options["action_dim"], patches + LEAST.tokens["pi0"]
    layers = sum(p.numel() for name, p in network.named_parameters() if name.startswith("expert.") and p.dim() == 2)
    width = options["expert_width"]
    once = width * options["state_dim"]
    each = 2 * width * actions + 3 * width * width  # in and out; time is mixed in by two maps, the first twice as wide
    attended = 2 * options["layers"] * options["heads"] * options["head_dim"] * (horizon + 1) * (seen + horizon + 1)
    assert found.step.operations == 2 * 2 * ((horizon + 1) * layers + once + horizon * each + attended)
    read = sum(p.numel() for name, p in network.named_parameters() if not name.startswith(("vision", "lang", "proj")))
    key_value = options["layers"] * 2 * seen * options["head_dim"] * 2
    rest = seen + 4 * options["state_dim"] + 4 * options["width"]  # mask, state, and the pooled prefix in float32
    assert found.step.read == 2 * read + 2 * (key_value + rest)
    looked_up = ("embed_tokens.weight", "position_embedding.weight")
    prefix = [p.numel() for name, p in network.named_parameters() if name.startswith(("vision", "lang", "proj"))]
    tables = [p.numel() for name, p in network.named_parameters() if name.endswith(looked_up)]
    assert len(tables) == 2 and found.prefix.read == 2 * (sum(prefix) - sum(tables))


def test_a_limit_is_the_larger_of_reading_and_computing() -> None:
    device = roofline.Accelerator("toy", bandwidth=10.0, speed=100.0, source="")
    prefix, step = roofline.Arithmetic(500.0, 20.0), roofline.Arithmetic(50.0, 20.0)
    found = roofline.DecisionLimit("toy", 1, prefix, step)
    assert found.seconds(device, steps=4) == 5.0 + 4 * 2.0
