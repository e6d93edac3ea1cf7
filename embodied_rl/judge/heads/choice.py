"""Which class is which head."""

from typing import Literal

from embodied_rl.judge.heads.base import Head, HeadOptions
from embodied_rl.judge.heads.classifier import ClassifierHead
from embodied_rl.judge.heads.ranking import RankingHead
from embodied_rl.judge.heads.table import HashHead

_HEADS: dict[str, type[ClassifierHead | HashHead | RankingHead]] = {
    "hash": HashHead,
    "classifier": ClassifierHead,
    "ranking": RankingHead,
}


def make_head(name: Literal["hash", "classifier", "ranking"], options: HeadOptions) -> Head:
    """Return the head that `reward.head` names."""
    return _HEADS[name](options)
