import numpy as np

from largebatch.data.randomness import mix, uniform

GOLDEN_RATIO = 0x9E3779B97F4A7C15


def test_mix_is_splitmix64():
    # The first two outputs of Vigna's splitmix64.c from seed 0.
    assert int(mix(0)) == 0xE220A8397B1DCDAF
    assert int(mix(GOLDEN_RATIO)) == 0x6E789E6AA1B965F4


def test_every_input_bit_changes_half_of_the_output_bits():
    samples = np.arange(4000)
    for place in (0, 1):
        for bit in range(64):
            flipped = samples.astype(np.uint64) ^ np.uint64(1 << bit)
            pairs = [(samples, 9), (flipped, 9)] if place == 0 else [(9, samples), (9, flipped)]
            changed = np.bitwise_count(mix(*pairs[0]) ^ mix(*pairs[1]))
            # Mean 32, standard error 4/√4000 = 0.063; 0.4 is more than six of them.
            assert abs(changed.mean() - 32) < 0.4


def test_uniform_fills_the_unit_interval_evenly():
    numbers = uniform(1, np.arange(200_000))
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    # Chi-square of 99 degrees of freedom: mean 99, standard deviation 14.
    assert ((counts - 2000) ** 2 / 2000).sum() < 99 + 5 * 14
    assert np.all(numbers * 2**53 == np.floor(numbers * 2**53))
