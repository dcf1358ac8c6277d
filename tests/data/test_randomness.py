import numpy as np

from largebatch.data.randomness import mix

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
