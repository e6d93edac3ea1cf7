"""Seeds of episodes for packages that take fewer bits. The standard library only, Python 3.10 or newer."""

_PURPOSE_BITS = 61


def fold_seed(seed: int, bits: int) -> int:
    """Fold an episode's 63-bit seed to `bits` bits; seeds below 2^(bits - 2) stay unchanged.

    The two highest bits state the purpose of an episode and remain the highest: training and evaluation share no scene.
    """
    kept = bits - 2
    return (seed >> _PURPOSE_BITS) << kept | seed & ((1 << kept) - 1)
