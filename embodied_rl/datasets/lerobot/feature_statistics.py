"""Statistics of features for normalisation, per episode and for the whole dataset.

Names and definitions are lerobot's (src/lerobot/datasets/compute_stats.py): mean, std (of the population), min, max,
count, and the quantiles q01 to q99, for each entry; for pictures per channel, [3, 1, 1], in [0, 1].
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from embodied_rl.datasets.lerobot.dataset_files import DatasetError, damaged
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.untrusted_files import parse_json, shorten

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
BINS = 5000
"""Bins of a dataset's histograms, as in lerobot: a quantile is exact to (max - min) / 5000."""

Summary = dict[str, Array]
"""One feature's statistics: float64 arrays by name; `count` is int64 [1]."""


def summarise(values: Array) -> Summary:
    """Return the statistics of an episode's values [frames, ..., D]: [D] each; a quantile is one of the values."""
    flat = np.asarray(values, np.float64).reshape(-1, np.shape(values)[-1])
    quantiles = np.quantile(flat, list(QUANTILES.values()), axis=0, method="inverted_cdf")
    return {
        "min": flat.min(axis=0),
        "max": flat.max(axis=0),
        "mean": flat.mean(axis=0),
        "std": flat.std(axis=0),
        "count": np.array([len(values)], np.int64),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


class ColourStatistics:
    """The statistics of an episode's pictures, from a running histogram of 256 values for each colour channel."""

    def __init__(self) -> None:
        self.frames = 0
        self._counts = np.zeros((3, 256), np.int64)

    def add(self, picture: Array) -> None:
        """Add one picture, uint8 [h, w, 3]; of a large picture, only every n-th row and column."""
        height, width = picture.shape[:2]
        step = max(1, max(height, width) // 150) if max(height, width) >= 300 else 1  # as in lerobot
        thinned = picture[::step, ::step]
        self._counts += np.stack([np.bincount(thinned[..., channel].ravel(), minlength=256) for channel in range(3)])
        self.frames += 1

    def summary(self) -> Summary:
        """Return the statistics per channel, [3, 1, 1], in [0, 1]; `count` is the number of pictures."""
        values, total = np.arange(256) / 255, self._counts.sum(axis=1, keepdims=True)
        mean = (self._counts * values).sum(axis=1, keepdims=True) / total
        variance = (self._counts * (values - mean) ** 2).sum(axis=1, keepdims=True) / total
        reached = np.cumsum(self._counts, axis=1)
        found = {
            "min": values[(reached > 0).argmax(axis=1)],
            "max": values[(reached >= total).argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(variance),
            **{name: values[(reached >= share * total).argmax(axis=1)] for name, share in QUANTILES.items()},
        }
        return {name: array.reshape(3, 1, 1) for name, array in found.items()} | {"count": np.array([self.frames])}


def combine(parts: Sequence[Summary]) -> Summary:
    """Combine the statistics of several episodes.

    All are exact except quantiles, which cannot be derived from summaries: up to q50 they are the lowest of any part,
    above it the highest, as lerobot bounds them. `refine` computes them.
    """
    counts = np.stack([part["count"] for part in parts]).astype(np.float64)
    counts = counts.reshape(len(parts), *[1] * parts[0]["mean"].ndim)
    means = np.stack([part["mean"] for part in parts])
    mean = (means * counts).sum(axis=0) / counts.sum()
    variance = (np.stack([part["std"] ** 2 for part in parts]) + (means - mean) ** 2) * counts
    bounds = {
        name: (np.min if share <= 0.5 else np.max)(np.stack([part[name] for part in parts]), axis=0)
        for name, share in QUANTILES.items()
        if all(name in part for part in parts)
    }
    return {
        "min": np.min(np.stack([part["min"] for part in parts]), axis=0),
        "max": np.max(np.stack([part["max"] for part in parts]), axis=0),
        "mean": mean,
        "std": np.sqrt(variance.sum(axis=0) / counts.sum()),
        "count": np.sum([part["count"] for part in parts], axis=0),
        **bounds,
    }


def combine_features(parts: Sequence[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Apply `combine` to each feature that has statistics in every part."""
    common = [key for key in (parts[0] if parts else ()) if all(key in part for part in parts)]
    return {key: combine([part[key] for part in parts]) for key in common}


def refine(summary: Summary, values: Iterable[Array]) -> Summary:
    """Replace the bounds by quantiles of the whole dataset, exact to (max - min) / 5000.

    Args:
        summary: the feature's statistics, [D] each.
        values: all values of the feature, in parts [n, ..., D].
    """
    low, high = summary["min"], summary["max"]
    size = len(low)
    width = np.where(high > low, (high - low) / BINS, 1.0)
    counts = np.zeros(size * BINS, np.int64)
    offsets = np.arange(size) * BINS
    for part in values:
        flat = np.asarray(part, np.float64).reshape(-1, size)
        bins = np.clip(((flat - low) / width).astype(np.int64), 0, BINS - 1)
        counts += np.bincount((bins + offsets).ravel(), minlength=size * BINS)
    reached = np.cumsum(counts.reshape(size, BINS), axis=1)
    total = reached[:, -1:]
    quantiles = {}
    for name, share in QUANTILES.items():
        bins = (reached >= share * total).argmax(axis=1)
        quantiles[name] = np.clip(low + (bins + 0.5) * width, low, high)
    return {**summary, **quantiles}


def to_json(statistics: Mapping[str, Summary]) -> str:
    """Return the text of meta/stats.json."""
    lists = {key: {name: array.tolist() for name, array in summary.items()} for key, summary in statistics.items()}
    return json.dumps(lists, indent=4)


def from_json(text: str | bytes, where: str) -> dict[str, Summary]:
    """Parse the text of meta/stats.json; raise `DatasetError` if it is damaged."""
    found = parse_json(text, where, DatasetError)
    try:
        return {key: from_lists(entries) for key, entries in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise damaged(f"{where} is damaged ({shorten(error)})") from error


def from_lists(entries: Mapping[str, Any]) -> Summary:
    """Convert one feature's statistics from lists, as JSON and tables hold them."""
    dtypes = {name: np.int64 if name == "count" else np.float64 for name in entries}
    return {name: np.atleast_1d(np.array(entry, dtypes[name])) for name, entry in entries.items()}
