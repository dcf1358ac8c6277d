"""The page: well-formed and self-contained, whatever the runs contain."""

import html.parser
import json
import re
from importlib import resources

import pytest

from largebatch.tools.report.page import report
from largebatch.tools.report.trials import axis_of
from largebatch.tools.sweep import results
from largebatch.tools.sweep.results import write_importance
from tests.tools.report import made_up

VOID = {"meta", "input", "br", "link", "img"}
ODD = (  # rows of which little can be said
    [{"step": 1}],
    [{"step": 1, "samples": 0, "epoch": 0.0, "loss": None, "top1": None}],
    [{"step": n, "samples": n, "epoch": n, "loss": 10.0 ** (40 * n)} for n in range(5)],
    [{"step": n, "samples": 9 * n, "loss": 1.0, "images_per_s": 0} for n in range(5)],
)
EVIL = '<script>alert("x")</script>$_{&'


class Page(html.parser.HTMLParser):
    """Checks that elements are closed in order; gathers ids, texts and what could be fetched."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.words, self.scripts = [], [], [], [], 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes, closed=False):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[key] for key in ("href", "src", "xlink:href") if key in found]
        self.links += re.findall(r"url\(([^)]*)\)", found.get("style") or "")
        self.scripts += tag == "script"
        if tag not in VOID and not closed:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes, closed=True)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def data(path):
    """The figures of the page as its script gets them."""
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text())[1])["figures"]


def checked(path):
    """The page, after what holds of any."""
    text = path.read_text()
    found = Page(text)
    assert len(found.ids) == len(set(found.ids))
    for link in found.links:
        assert link.startswith(("#", "data:image/png;base64,"))
        assert not link.startswith("#") or link[1:] in found.ids
    library = resources.files("largebatch.tools.report") / "uplot"
    assert (library / "LICENSE").read_text() in text
    own = text.replace((library / "uPlot.iife.min.js").read_text(), "")
    assert len(own) < len(text)
    assert "://" not in own
    assert "@import" not in text
    assert found.scripts == 3
    # Every colour is a variable, so that the same page serves light and dark.
    assert not re.search(r"#[0-9a-f]{6}\b", text.partition("<body>")[2])
    assert {*re.findall(r'data-figure="(.*?)"', text)} == {*data(path)}
    return found


def test_one_run_with_every_figure(page_path):
    path = page_path
    assert path.parts[-3:] == ("a run with a rather long name", "report", "report.html")
    found = checked(path)
    words = " ".join(found.words)
    for expected in ("85.47\u00a0%", "after step 20", "1 × H200", "lars, flavour mlperf"):
        assert expected in words
    assert len(data(path)) == 11
    assert {"Where the time went", "8 events", "Configuration"} <= set(found.words)


def test_several_runs(tmp_path):
    folders = [made_up.write(tmp_path / f"s{seed}", seed=seed) for seed in range(3)]
    folders.append(made_up.write(tmp_path / "wide", model__width=8))
    for folder in folders[1:]:  # of the others, fewer figures, sooner done
        (folder / "layers.jsonl").unlink()
        (folder / "events.jsonl").unlink()
    for number, metrics in enumerate(ODD):
        folder = tmp_path / f"odd{number}"
        folders.append(made_up.write(folder, metrics=metrics, summary={}, events=[]))
        (folder / "layers.jsonl").write_text("")
    layers = [{"step": 1, "samples": 9, "layers": {"a": {"trust_ratio": 0.0}}}]
    made_up.jsonl(folders[-1] / "layers.jsonl", layers)
    path, _ = report(folders)
    assert path == tmp_path / "report" / "report.html"
    found = checked(path)
    # Losses at the end are 0.01 apart: mean 0.3807, and t(0.975, 2) · 0.01 / √3 = 4.3027 · 0.0058.
    assert "0.3807 ± 0.0248" in " ".join(found.words)
    assert {"model.width", "run.seed", "Top-1 over seeds"} <= set(found.words)
    assert {"seeds", "s0-trust_ratio"} <= set(data(path))


def test_the_reason_of_a_failure_is_under_the_title_and_marked(tmp_path):
    why = "the loss of step 26 is nan; lower schedule.peak=1000"
    events = [*made_up.EVENTS[:2], made_up.event("unhealthy", 20, 26, why=why)]
    metrics = made_up.rows(25)
    metrics[-1]["loss"] = 1e15
    failed = made_up.SUMMARY | {"status": "failed", "steps": 25}
    folder = made_up.write(tmp_path / "one", events=events, metrics=metrics, summary=failed)
    path, _ = report([folder])
    text = path.read_text()
    (box,) = re.findall(r'<p class="failure".*?</p>', text)
    assert why in box
    assert text.index("<h1>") < text.index(box) < text.index('class="tiles"')
    loss = data(path)["loss"]
    assert loss["panels"][0]["log"]
    assert [(m["x"]["samples"], m["bad"], m["text"]) for m in loss["marks"]] == [
        ([2600], True, "failed, step 26")
    ]


def test_a_comparison_names_runs_and_marks_the_best(tmp_path):
    folders = []
    for number, workers in enumerate((4, 8)):
        metrics = made_up.rows()
        metrics[-1] |= {"validation/top1": 0.5 + 0.1 * number, "validation/loss": 1 / 3}
        folder = tmp_path / f"000{number}"
        folders.append(made_up.write(folder, metrics=metrics, batch__workers=workers))
    path, _ = report(folders)
    text = path.read_text()
    for panel in data(path)["top1"]["panels"]:
        labels = [line["label"] for line in panel["lines"]]
        assert labels == ["batch.workers=4", "batch.workers=8 ★"]
    assert re.findall(r'class="best"[^>]*>(.*?)<', text) == ["60.00\u00a0%"]  # losses are equal


def test_averaged_weights_and_further_validation_sets_are_shown(tmp_path):
    folders = []
    for number in range(2):
        metrics = made_up.rows()
        for row in metrics:
            if "validation/top1" in row:
                row |= {"validation/ema_top1": 0.5, "v2/top1": 0.25 + 0.01 * number}
                row |= {"v2/loss": 2.0, "v2/top5": 0.9}
        folders.append(made_up.write(tmp_path / f"r{number}", metrics=metrics, seed=number))
    path, _ = report(folders[:1])
    top1, loss = (data(path)[name]["panels"][0]["lines"] for name in ("top1", "loss"))
    names = ["training", "validation", "validation, averaged weights", "v2"]
    assert [line["label"] for line in top1] == names
    assert [line["label"] for line in loss] == ["training", "validation", "v2"]
    assert top1[3]["y"] == [25.0] * 4
    words = " ".join(checked(path).words)
    assert "50.00\u00a0%" in words
    path, _ = report(folders)
    titles = [panel["title"] for panel in data(path)["top1"]["panels"]]
    assert len(titles) == 4
    assert "26.00\u00a0%" in re.findall(r'class="best"[^>]*>(.*?)<', path.read_text())


def test_everything_of_a_run_is_escaped(tmp_path):
    evil = EVIL.replace("/", "\\")  # a name of a folder
    events = [
        made_up.event("turn", 0, devices=1, device_kind=EVIL, host=EVIL),
        made_up.event("rollback", 1, 2, reason=EVIL),
    ]
    folder = made_up.write(
        tmp_path / f"_{evil}", events=events, model__name=EVIL, summary={"status": EVIL}
    )
    other = made_up.write(tmp_path / f"$b{evil}", events=events, run__other=EVIL)
    rows = [{"step": n, "samples": n, "epoch": n, "validation/loss": 1} for n in (1, 2)]
    made_up.jsonl(other / "metrics.jsonl", [row | {"loss": 1} for row in rows])
    for path in (folder / "layers.jsonl", other / "layers.jsonl", folder / "metrics.jsonl"):
        path.write_text("")
    for folders in ([folder], [folder, other]):
        words = " ".join(checked(report(folders, tmp_path / "out")[0]).words)
        assert EVIL in words
        assert evil in words


@pytest.mark.parametrize("kept", ["metrics.jsonl", "config.json"])
def test_remains_make_a_page(tmp_path, kept):
    folder = made_up.write(tmp_path / "one", metrics=[{"step": 1, "samples": 9, "loss": 2.0}])
    for path in folder.iterdir():
        if path.name != kept:
            path.unlink()
    words = checked(report([folder])[0]).words
    assert "unfinished" in words
    assert "There is no layers.jsonl." in words


def test_the_best_evaluation_and_its_checkpoint_are_named(tmp_path):
    metrics = made_up.rows()
    metrics[19]["validation/top1"] = 0.99
    folder = made_up.write(tmp_path / "a", metrics=metrics)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "20.safetensors").touch()
    words = " ".join(checked(report([folder])[0]).words)
    for expected in ("best top-1", "99.00\u00a0%", "after step 20, checkpoints/20"):
        assert expected in words
    assert "best top-1" not in report([made_up.write(tmp_path / "b")])[0].read_text()


def test_a_sweep_is_drawn_and_its_results_are_read_once(tmp_path, monkeypatch):
    rows = ["trial,schedule.peak,optimizer.name,state,value,top1,loss,step,seconds,error"]
    for number, (peak, name) in enumerate(((0.5, "lars"), (8.0, "sgd"), (2.0, "lars"))):
        folder = tmp_path / "trials" / f"{number:04}"
        made_up.write(folder, schedule__peak=peak, optimizer__name=name)
        value = "" if number == 1 else 0.5 + number / 10
        rows.append(f"{number},{peak},{name},{'complete' if value else 'pruned'},{value},,,,,")
    (tmp_path / "sweep.json").write_text('{"objective": "top1"}')
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    write_importance(tmp_path, {"schedule.peak": 0.75, "optimizer.name": 0.25})
    read = []
    original = results.read_results
    monkeypatch.setattr(results, "read_results", lambda path: read.append(path) or original(path))
    path, runs = report([*(tmp_path / "trials").iterdir()])
    assert read == [tmp_path]
    assert sorted(run.status for run in runs) == ["complete", "complete", "pruned"]
    words = checked(path).words
    assert {"Importance of the axes", "75.0", "70.00 %"} <= {
        w.replace("\u00a0", " ") for w in words
    }
    # Two trials have a value; the better one is drawn last, from the upper end of the objective.
    drawn = re.findall(r'<polyline points="(.*?)"', path.read_text())
    assert [line.split()[-1].split(",")[1] for line in drawn] == ["310.0", "30.0"]


def test_numbers_of_one_unit_share_a_scale_and_words_get_places():
    assert axis_of("x", ["1 epochs", "10 epochs", "100 epochs"]).places == (
        0,
        0.5,
        1,
    )  # logarithmic
    assert axis_of("x", ["1", "2", "5"]).places == (0, 0.25, 1)
    assert axis_of("x", ["5 epochs", "40 %"]) == ("x", (1, 0), ((0, "40 %"), (1, "5 epochs")))
