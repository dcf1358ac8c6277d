import numpy as np
import pytest
from tensorboardX.crc32c import crc32c as reference

from largebatch.crc32c import crc32c, crc32c_rows, masked


@pytest.mark.parametrize(
    ("data", "crc"),  # RFC 3720, appendix B.4
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_published_values(data, crc):
    assert crc32c(data) == crc
    assert crc32c_rows(np.frombuffer(data * 2, np.uint8).reshape(2, 32)).tolist() == [crc, crc]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 127, 128, 129, 2_048, 2_049, 4_096, 10_007])
def test_any_length_as_another_implementation(size):
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == reference(data)


def test_the_mask_of_tfrecord_files():
    crc = reference(b"largebatch")
    expected = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert int(masked(crc32c(b"largebatch"))) == expected
