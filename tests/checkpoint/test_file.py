"""A checkpoint's file: what is written is read, and what is damaged in any byte is not."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from largebatch.checkpoint import file
from largebatch.checkpoint.file import Manifest, OtherVersion, Progress, Rejected
from largebatch.config import Facts

ROOT = Path(__file__).parents[2]
FACTS = Facts(1000, 100, 10, (8, 8, 3), devices=8, identity=5, content=7)
ABOUT = Manifest(
    Progress(
        step=3, samples=96, wall_s=0.1, loss=math.nan, top1=math.inf, memory={"row": {"a": 1}}
    ),
    {"optimizer": {"name": "lars"}, "data": {"source": "größe"}},
    FACTS,
)
STATE = {
    "params": {
        "kernel": jnp.arange(24, dtype=jnp.float32).reshape(2, 3, 4) / 7,
        "half": jnp.arange(5).astype(jnp.bfloat16),
        "mask": jnp.array([True, False]),
        "empty": jnp.zeros((0, 4)),
    },
    "step": jnp.int32(3),
}
LIKE = jax.eval_shape(lambda: STATE)
ARRAYS = file.on_host(STATE)
CONTENT = file.encode(ABOUT, ARRAYS)
REFUSED = (Rejected, OtherVersion)


def test_what_is_written_is_read():
    about, arrays = file.decode(CONTENT)
    state = file.as_tree(arrays, LIKE)
    assert jax.tree.structure(state) == jax.tree.structure(STATE)
    for stored, array in zip(jax.tree.leaves(state), jax.tree.leaves(STATE), strict=True):
        assert (stored.dtype, stored.shape) == (array.dtype, array.shape)
        assert stored.tobytes() == np.asarray(array).tobytes()
    assert repr(about.progress) == repr(ABOUT.progress)  # NaN is not equal to itself
    assert (about.config, about.facts) == (ABOUT.config, FACTS)
    start = file.HEADER_BYTES + file.header_length(CONTENT)
    assert repr(file.manifest_in(CONTENT[file.HEADER_BYTES : start])) == repr(about)
    assert not any(array.flags.owndata for array in arrays.values())


def test_the_example_of_the_documentation_reads_it(tmp_path, monkeypatch, capsys):
    path = tmp_path / "runs/digits/checkpoints/450.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/weights.md").read_text()
    example = page.partition("## A checkpoint without")[2].partition("```python")[2]
    names = {}
    exec(example.partition("```")[0], names)
    assert names["arrays"].keys() == ARRAYS.keys()
    assert all((names["arrays"][path] == ARRAYS[path]).all() for path in ARRAYS)
    assert names["manifest"]["facts"]["classes"] == FACTS.classes
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(ARRAYS)


def test_a_change_of_any_byte_is_found():
    for place in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[place] ^= 1 << place % 7
        with pytest.raises(REFUSED):
            file.decode(bytes(damaged))


@given(st.integers(0, len(CONTENT) - 1), st.binary(max_size=16), st.integers(0, 16))
@settings(max_examples=300)
def test_any_edit_is_found(place, new, old):
    damaged = CONTENT[:place] + new + CONTENT[place + old :]
    if damaged != CONTENT:
        with pytest.raises(REFUSED):
            file.decode(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content):
    with pytest.raises(REFUSED):
        file.decode(content)


def test_a_header_of_an_impossible_length_is_not_read():
    with pytest.raises(Rejected):
        file.header_length((2**40).to_bytes(file.HEADER_BYTES, "little"))


def made_by_hand(**changes):
    """A file whose digests are right although its manifest has other fields."""
    body = json.loads(safetensors_metadata(CONTENT)["manifest"])
    for path, value in changes.items():
        section, _, key = path.partition("__")
        (body[section] if key else body)[key or section] = value
    text, start = json.dumps(body), file.HEADER_BYTES + file.header_length(CONTENT)
    header = file._header(text, file.decode(CONTENT)[1])
    return len(header).to_bytes(8, "little") + header + CONTENT[start:]


def safetensors_metadata(content):
    return json.loads(content[8 : 8 + file.header_length(content)])["__metadata__"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 4}, OtherVersion),
        ({"progress__more": 1}, OtherVersion),
        ({"progress__step": 2**61}, OtherVersion),
        ({"progress__wall_s": "1"}, OtherVersion),
        ({"config__model": "resnet"}, OtherVersion),
        ({"facts__image_shape": [8, 8]}, OtherVersion),
        ({"arrays": {}}, Rejected),
        ({"arrays__step": "0" * 32}, Rejected),
        ({"arrays__more": "0" * 32}, Rejected),
    ],
)
def test_fields_are_checked_although_their_digest_is_right(changes, error):
    with pytest.raises(error):
        file.decode(made_by_hand(**changes))
    assert file.decode(made_by_hand())[0].progress.step == 3


def test_other_files_of_the_format_are_refused():
    for metadata in (None, {}, {"manifest": ""}, {"manifest": "{}"}, {"format": "pt"}):
        with pytest.raises(Rejected):
            file.decode(safetensors.numpy.save(dict(ARRAYS), metadata))


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"kernel": jax.ShapeDtypeStruct((2, 3, 5), jnp.float32)}},
        {"params": {"kernel": jax.ShapeDtypeStruct((2, 3, 4), jnp.bfloat16)}},
        {"more": jax.ShapeDtypeStruct((), jnp.int32)},
    ],
)
def test_the_state_of_another_network_is_another_version(change):
    like = {**LIKE, **change, "params": {**LIKE["params"], **change.get("params", {})}}
    with pytest.raises(OtherVersion, match="array"):
        file.as_tree(file.decode(CONTENT)[1], like)


def test_an_array_of_another_file_is_found():
    """Of the same shape: its digest is not that of the manifest."""
    other = file.encode(ABOUT, ARRAYS | {"step": np.array(4, np.int32)})
    start = file.HEADER_BYTES + file.header_length(CONTENT)
    assert file.decode(other)[0].progress.step == 3
    with pytest.raises(Rejected, match="digest"):
        file.decode(CONTENT[:start] + other[start:])
