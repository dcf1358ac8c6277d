"""The command: what it prints, writes and refuses."""

import gzip
import json

import report

from tests.tools.report import made_up


def trace(path):
    """A profile of two kernels, 60 and 20 of 100 µs, on a GPU."""
    name = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}}
    kernels = [
        {"ph": "X", "pid": 1, "tid": 1, "name": kind, "ts": start, "dur": length}
        for kind, start, length in (("conv_fprop", 0, 60), ("ncclAllReduce", 80, 20))
    ]
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [name, *kernels]}).encode()))


def test_a_run_with_a_profile(tmp_path, capsys):
    folder = made_up.write(tmp_path / "one", metrics=[], events=made_up.EVENTS[:1])
    (folder / "layers.jsonl").unlink()
    trace(folder / "profile" / "plugins" / "profile" / "now" / "host.trace.json.gz")
    assert report.main([str(folder), f"--out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert "one: complete, step 40, top-1 86.00 %\n" in printed
    assert printed.endswith(f"report: {tmp_path / 'out' / 'report.html'}\n")
    assert "conv_fprop" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "trace.png").is_file()


def test_a_profile_alone(tmp_path, capsys):
    file = tmp_path / "plugins" / "profile" / "now" / "host.trace.json.gz"
    trace(file)
    for place in (tmp_path, file):
        assert report.main([f"--trace={place}"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["convolution", "60.0%"] in rows
        assert ["collective,", "exposed", "20.0%"] in rows
        assert ["idle", "20.0%"] in rows


def test_errors_are_a_line(tmp_path, capsys):
    folder = made_up.write(tmp_path / "one")
    for arguments, words in (
        ([], "no run is named"),
        ([str(tmp_path)], "holds none of metrics.jsonl"),
        ([str(folder), str(folder)], "named twice"),
        ([f"--trace={folder}"], "holds no profile; make one with --config.run.profile"),
    ):
        assert report.main(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert words in said.err
        assert said.err.count("\n") == 1


def test_what_is_no_run_is_skipped(tmp_path, capsys):
    folder = made_up.write(tmp_path / "one", metrics=[], events=made_up.EVENTS[:1])
    (folder / "layers.jsonl").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "one.log").touch()
    paths = sorted(map(str, tmp_path.iterdir()))
    assert report.main([*paths, f"--out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("one: complete, step 40")
    (line,) = said.err.splitlines()
    assert line.startswith("warning: skipped 2 ")
    assert str(tmp_path / "notes") in line
    assert str(tmp_path / "one.log") in line
    # What does not exist is a mistake, not a neighbour.
    assert report.main([str(folder), str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


def test_ctrl_c_is_a_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(report.write, "report", interrupted)
    assert report.main([str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_help_fits_a_screen():
    assert len(report.parser().format_help().splitlines()) <= 30
