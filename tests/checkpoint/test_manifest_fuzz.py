"""A manifest comes back as it was, or is refused in one line: whatever stands in the file."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largebatch.checkpoint.manifest import (
    LARGEST,
    Array,
    File,
    Manifest,
    OtherVersion,
    Progress,
    Rejected,
    decode,
    described,
    encode,
    sealed,
)
from largebatch.config import Facts, freeze, resolve

QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None)

wholes = st.integers(0, 2**61 - 1)
reals = st.floats(allow_nan=False)  # which is not equal to itself: below
digests = st.text("0123456789abcdef", min_size=32, max_size=32)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
memories = st.dictionaries(st.text(max_size=9), trees, max_size=3)
manifests = st.builds(
    Manifest,
    st.builds(
        Progress,
        **{
            f.name: {int: wholes, float: reals}.get(f.type, memories)
            for f in dataclasses.fields(Progress)
        },
    ),
    st.dictionaries(st.text(max_size=9), st.dictionaries(st.text(max_size=9), trees), max_size=3),
    st.builds(Facts, wholes, wholes, wholes, st.tuples(*[wholes] * 3), wholes, wholes, wholes),
    st.dictionaries(
        st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1),
        st.builds(
            Array,
            st.lists(wholes, max_size=5).map(tuple),
            st.sampled_from(["float32", "bfloat16", "int64"]),
            digests,
        ),
        max_size=3,
    ),
    st.dictionaries(
        st.sampled_from(["arrays/_METADATA", "arrays/ocdbt.process_0/d/0a1b", "a-b/c.d", "e"]),
        st.builds(File, wholes, digests),
    ),
)
PLAN = resolve(
    freeze({"batch": {"workers": 8, "images_per_worker": 3}, "schedule": {"peak": 2.0}}),
    Facts(1000, 100, 7, (16, 16, 2), devices=8),
)
ONE = dataclasses.replace(
    described(Progress(7, 168, 1.5, 0.25, 1.0), PLAN),
    arrays={"params/stem/kernel": Array((3, 3, 4), "float32", "0f" * 16)},
    files={"arrays/_METADATA": File(803, "1e" * 16)},
)
TEXT = encode(ONE)


def refused(text):
    """Whether it is refused, in one line of bounded length; else it is what would be written."""
    try:
        found = decode(text)
    except (Rejected, OtherVersion) as error:
        reason = str(error)
    else:
        assert encode(found) == text
        return False
    assert reason.isprintable()  # which a line feed is not
    assert len(reason) < 400
    return True


@QUICK
@given(manifests)
def test_what_is_written_is_read(manifest):
    assert decode(encode(manifest)) == manifest


def test_any_flipped_bit_is_found():
    for bit in range(0, len(TEXT) * 8, 31):  # each bit of a byte in turn
        damaged = bytearray(TEXT)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Rejected):
            decode(bytes(damaged))


@QUICK
@given(st.binary(max_size=200) | trees.map(lambda value: json.dumps(value).encode()))
def test_other_files(text):
    assert refused(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' * 100_000,
        b'{"step": ' + b"9" * 10_000 + b"}",
        b'{"step": NaN}',
        b'{"step": "\\ud800"}',
        b"\x80\x04]\x94.",  # a pickle
        b" " * (LARGEST + 1),
    ],
)
def test_what_breaks_parsers(text):
    assert refused(text)


def places(value, at=()):
    """Where a value lies in nested fields, of all that lie there."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from places(item, (*at, key))


BODY = {key: value for key, value in json.loads(TEXT).items() if key != "digest"}
# The options are taken as they come: `freeze` checks them.
PLACES = [place for place in places(BODY) if place and (place[0] != "config" or len(place) < 3)]


def changed(place, change):
    """The sealed text of the fields with a change at one place."""
    body = json.loads(json.dumps(BODY))
    *parents, last = place
    target = body
    for key in parents:
        target = target[key]
    change(target, last)
    return sealed(body)


@settings(QUICK, max_examples=120)
@given(st.sampled_from(PLACES), trees)
def test_a_vouched_for_value_of_any_kind(place, value):
    def put(target, key):
        target[key] = value

    refused(changed(place, put))


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (("format",), 2, "format"),
        (("step",), 8, "step"),
        (("plan",), "0" * 64, "plan"),
        (("progress", "samples"), -1, "progress.samples"),
        (("progress", "wall_s"), True, "progress.wall_s"),
        (("arrays", "params/stem/kernel", "shape"), [3, -3], "shape"),
        (("arrays", "params/stem/kernel", "dtype"), "O,O", "dtype"),
        (("files", "../../etc/passwd"), 1, "files"),
        (("files", "/etc/passwd"), 1, "files"),
        (("files", "arrays/.."), 1, "files"),
    ],
)
def test_the_reason_names_the_field(place, value, field):
    with pytest.raises((Rejected, OtherVersion)) as caught:
        decode(changed(place, lambda target, key: target.update({key: value})))
    assert field in str(caught.value)
