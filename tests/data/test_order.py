import math

import numpy as np
import pytest

from largebatch.data.order import Order, fingerprint

IMAGENET = 1_281_167


def chi_square_score(counts, expected):
    """Standard deviations by which chi-square exceeds its mean; counts of equally likely cells."""
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


# Fewer rounds of the network show in the largest: at 12 the 5,040 permutations of 7 are uneven.
@pytest.mark.parametrize("examples", [3, 7])
def test_small_permutations_are_all_equally_likely(examples):
    epochs = 50_000
    ids = Order(2, examples).ids(np.arange(epochs * examples)).reshape(epochs, examples)
    _, counts = np.unique(ids @ 10 ** np.arange(examples), return_counts=True)
    cells = math.factorial(examples)
    assert counts.size == cells
    assert chi_square_score(counts, epochs / cells) < 5


def test_the_order_is_pinned():
    assert Order(0, 16).ids(np.arange(32)).tolist() == SMALL
    assert fingerprint(Order(0, 1437).ids(np.arange(3000))) == DIGITS
    assert fingerprint(np.array([3, 1, 2], ">i8")) == "fe717980395d895e"
    assert fingerprint(Order(7, IMAGENET).ids(np.arange(IMAGENET - 100, IMAGENET + 100))) == LARGE


# fmt: off
SMALL = [
    9, 15, 4, 3, 8, 14, 12, 0, 1, 11, 10, 13, 5, 7, 6, 2,
    2, 9, 7, 12, 4, 3, 15, 10, 8, 5, 14, 1, 11, 0, 13, 6,
]
# fmt: on
DIGITS = "4b4406bffa324650"
LARGE = "f039257e7c5f2a76"
