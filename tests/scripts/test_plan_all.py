"""The devices that recipes are compiled for, the record that is continued, one compilation."""

import dataclasses
import json

import plan
import pytest
from planning import every

from largebatch.parallel.clusters import HARDWARE


@pytest.mark.parametrize(
    ("name", "topology", "published"),
    [
        ("fujitsu2019_81920", "v100:2048", True),
        ("mlperf06_nvidia_60k", "v100:1536", True),  # in nodes of 16
        ("mlperf07_nvidia_35k", "a100:768", True),  # of 40 GB
        ("mlperf10_google_32k", "tpu:v4:16x16x8", True),
        ("mlperf07_google_jax_64k", "tpu:v3:32x32x4slices", True),
        ("jia2018_64k", "h200:2048", False),
        ("digits", "h200:1", False),
    ],
)
def test_recipes_are_compiled_for_their_published_devices(name, topology, published):
    (recipe,) = every.chosen([name])
    target = every.target_of(recipe)
    assert (target.topology, target.published) == (topology, published)
    if name == "mlperf07_nvidia_35k":
        assert target.hardware.memory == 40 * 2**30


def test_a_record_is_continued(tmp_path, monkeypatch, capsys):
    asked = []

    def compiled(recipe, target, **limits):
        asked.append(recipe.name)
        error = "it is too large" if recipe.name == "digits" and len(asked) < 3 else ""
        row = {"recipe": recipe.name, "topology": target.topology, "published_devices": True}
        return row | {"error": error, "programs": {}, "memory": 1.0, "seconds": 1}

    monkeypatch.setattr(every, "compiled", compiled)
    record = tmp_path / "record.json"
    words = ["--all=digits,fujitsu2019_81920", f"--json={record}"]
    assert plan.main(words) == 2
    assert "digits" in capsys.readouterr().err
    assert plan.main(["--all=fujitsu2019_81920", f"--json={record}"]) == 2  # it still fails
    capsys.readouterr()
    assert plan.main(words) == 0
    assert asked == ["digits", "fujitsu2019_81920", "digits"]  # what failed again
    kept = json.loads(record.read_text())
    assert [row["recipe"] for row in kept["results"]] == ["digits", "fujitsu2019_81920"]
    kept["environment"]["versions"]["jax"] = "0.1"
    record.write_text(json.dumps(kept))
    capsys.readouterr()
    assert plan.main(words) == 2
    assert "other versions" in capsys.readouterr().err
    record.write_text('{"results": [1]}')
    assert plan.main(words) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.slow
def test_all_programs_of_a_training_are_compiled():
    (recipe,) = every.chosen(["batch81920_tiny"])
    target = every.Target("cpu:2", HARDWARE["cpu"], False)
    row = every.compiled(recipe, target)
    assert not row["error"]
    assert {"initialisation", "accumulate", "train step", "evaluation at 8×8"} <= set(
        row["programs"]
    )
    assert min(row["programs"].values()) > 0
    name, most = max(row["programs"].items(), key=lambda item: item[1])
    for memory, fits in ((most / 0.9 + 8, True), (most / 0.9 - 8, False)):  # a tenth is kept free
        board = dataclasses.replace(target.hardware, memory=memory)
        made = every.compiled(recipe, dataclasses.replace(target, hardware=board))
        assert made["error"].startswith("" if fits else f"{name}: ")
        assert bool(made["error"]) is not fits
