"""The figures of a run's scores: counts of each collector, added up, and what an iteration's log makes of them."""

from collections.abc import Mapping, Sequence

from embodied_rl.judge.requests.request_queue import Ticket


def count_tickets(tickets: Sequence[Ticket], asked: int, waited: float, status: str) -> dict[str, float]:
    """Return the counts of a collector's rollout.

    Args:
        tickets: that came to their end in the rollout.
        asked: how many questions were asked in it.
        waited: seconds that the collector waited for scores.
        status: of the service.
    """
    valid = [ticket.score for ticket in tickets if ticket.score is not None and ticket.score.valid]
    return {
        "asked": asked,
        "resolved": len(tickets),
        "valid": len(valid),
        "progress": float(sum(score.value for score in valid)),
        "waited": waited,
        "down": float(status == "down"),
        "degraded": float(status == "degraded"),
        "collectors": 1,
    }


def summarise_scores(counts: Mapping[str, float]) -> dict[str, float]:
    """Compute the metrics of an iteration from the counts of its collectors; empty without requests.

    `docs/rewards.md` describes each metric. Metrics of a mode are present if the mode counts them.
    """
    if not counts.get("collectors"):
        return {}
    asked, valid, collectors = counts["asked"], counts["valid"], counts["collectors"]
    ended = counts["resolved"]
    found = {
        "reward/asked": asked,
        **({"reward/valid": valid / ended} if ended else {}),
        **({"reward/labels": counts["labels"], "reward/open": counts["open"] / collectors} if "open" in counts else {}),
        "reward/progress": counts["progress"] / max(valid, 1.0),
        "reward/down": counts["down"] / collectors,
        "reward/degraded": counts["degraded"] / collectors,
        "time/reward_wait": counts["waited"] / collectors,
    }
    return found | _summarise_mode(counts) | _summarise_probes(counts)


def _summarise_mode(counts: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    if "settled" in counts:
        found["reward/held"] = counts["held"] / max(counts["settled"], 1.0)
    if counts.get("scored"):
        found["reward/staleness"] = counts["age"] / counts["scored"]
    if "said" in counts:
        found["reward/said_done"] = counts["said"]
        found["reward/missed_done"] = counts["missed"]
        found["reward/missing_done"] = counts["undone"] / max(counts["judged"], 1.0)
        if counts["said"]:
            found["reward/false_done"] = counts["false"] / counts["said"]
    if counts.get("ended"):
        found["reward/critic_return"] = counts["returned"] / counts["ended"]
    return found


def _summarise_probes(counts: Mapping[str, float]) -> dict[str, float]:
    probed = counts.get("probed", 0.0)
    return {"reward/probed": probed, "reward/mismatch_gap": counts["gap"] / probed} if probed else {}
