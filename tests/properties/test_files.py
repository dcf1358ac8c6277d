"""Files are read as they were written: JSON values, and the complete rows of a torn history."""

import json
import math
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from largebatch.files import appending, plain, write_json
from largebatch.tracking import JsonlTracker, read_rows

KEYS = st.text(max_size=5)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=10,
)


def as_json(value):
    """The value that a reader should find."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_written_values_are_read_again(value):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "value.json"
        write_json(path, value)
        found = json.loads(path.read_bytes())
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    # By their text: 1 and 1.0 and True are equal to Python.
    assert json.dumps(found) == json.dumps(as_json(value))
    assert plain(plain(value)) == plain(value)


ROWS = st.lists(
    st.dictionaries(
        KEYS.filter(lambda key: key != "step"),
        st.one_of(st.floats(), st.integers(), st.text(max_size=6)),
        max_size=3,
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(ROWS, st.data())
def test_every_complete_row_of_a_torn_history_is_kept(rows, data):
    steps = sorted(data.draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows))))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        path = folder / "metrics.jsonl"
        tracker = JsonlTracker(folder, resume_step=0)
        ends = []
        for step, row in zip(steps, rows, strict=True):
            tracker.scalars(step, row)
            ends.append(path.stat().st_size)
        tracker.close()
        written = [as_json({"step": step, **row}) for step, row in zip(steps, rows, strict=True)]
        assert read_rows(path) == written
        size = data.draw(st.integers(0, ends[-1]))
        torn = path.read_bytes()[:size] + data.draw(
            st.sampled_from([b"", b"\0\0\0", b"{", b"\xff"])
        )
        path.write_bytes(torn)
        # A row is complete with its closing brace; the end of its line may be missing, unless
        # something else follows.
        kept = [row for end, row in zip(ends, written, strict=True) if end - 1 <= size]
        if len(torn) > size and any(size == end - 1 for end in ends):
            kept.pop()
        assert read_rows(path) == kept
        resume = data.draw(st.integers(1, 9))
        JsonlTracker(folder, resume_step=resume).close()
        assert read_rows(path) == [row for row in kept if row["step"] <= resume]
        assert path.read_bytes() in (b"", path.read_bytes().rstrip(b"\n") + b"\n")


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=6), max_size=3), st.binary(max_size=4))
def test_a_line_appended_after_a_torn_one_is_a_line(lines, torn):
    """Complete lines stay as they are; what follows the last line break is dropped or completed."""
    rows = [json.dumps({"value": line.hex()}).encode() for line in lines]
    before = b"".join(row + b"\n" for row in rows)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "events.jsonl"
        for tail in (torn.replace(b"\n", b"x"), b'{"half', b'{"value": 1}'):
            path.write_bytes(before + tail)
            with appending(path) as stream:
                stream.write(b'{"next": 1}\n')
            whole = tail + b"\n" if tail == b'{"value": 1}' else b""
            assert path.read_bytes() == before + whole + b'{"next": 1}\n'
