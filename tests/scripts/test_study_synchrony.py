"""The synchrony study from its command line, on its quick grid."""

import json
import shlex

import pytest
import study_synchrony

from largebatch.planning.studies import policies as chosen


@pytest.mark.slow
def test_the_quick_grid_is_recorded(tmp_path, capsys):
    record = tmp_path / "record.json"
    given = ["--quick", f"--json={record}"]
    assert study_synchrony.main(given) == 0
    kept = json.loads(record.read_text())
    assert kept["command"] == shlex.join(["python", "scripts/study_synchrony.py", *given])
    assert kept["environment"]["versions"]["jaxlib"]
    setup, policies = chosen.quick()
    assert [each["name"] for each in kept["policies"]] == list(policies)
    found = {each["name"]: each for each in kept["policies"]}
    for name, each in found.items():
        assert each["curve"]["top1"][-1] == each["top1"]["mean"]
        asynchronous = each["kind"] == "asynchronous"
        assert each["updates"] == setup.steps * (setup.workers if asynchronous else 1), name
    whole = setup.steps * setup.batch
    assert found["wait for all"]["images"]["mean"] == whole
    assert found["drop 1"]["images"]["mean"] == whole * 3 / 4
    assert found["1 backup"]["images"]["mean"] == whole
    assert found["1 backup"]["computed"]["mean"] == whole * 5 / 4
    assert found["asynchronous 1"]["staleness"]["mean"] == 0
    assert found["drop 1"]["seconds"]["mean"] < found["wait for all"]["seconds"]["mean"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in policies)
