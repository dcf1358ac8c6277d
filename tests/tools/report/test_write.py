"""The page: well-formed and self-contained, whatever the runs contain."""

import html.parser
import json
import re
from importlib import resources

import pytest

from largebatch.tools.report.write import report
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
    assert path.name == "report.html"
    assert (path.parent.name, path.parent.parent.name) == (
        "report",
        "a run with a rather long name",
    )
    found = checked(path)
    words = " ".join(found.words)
    for expected in ("85.47\u00a0%", "to 60.00\u00a0%", "after step 20", "1 × H200"):
        assert expected in words
    titles = ("Loss", "Top-1 accuracy", "Schedule", "Throughput and input wait", "Gradient norm")
    titles += ("Trust ratios", "Weight norms", "Gradient norms", "BatchNorm means: drift")
    titles += ("BatchNorm variances: drift", "Where the time went", "8 events")
    titles += ("Configuration",)
    assert set(titles) <= set(found.words)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


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
    words = " ".join(found.words)
    assert "s0, s1, s2" in words
    assert "85.47 ± 0.00\u00a0%" in words
    assert "0.3707 ± 0.0000" not in words
    # Losses at the end are 0.01 apart: mean 0.3807, and t(0.975, 2) · 0.01 / √3 = 4.3027 · 0.0058.
    assert "0.3807 ± 0.0248" in words
    assert {"model.width", "run.seed", "Top-1 over seeds"} <= set(found.words)
    assert {"seeds", "s0-trust_ratio"} <= set(data(path))


def test_runs_of_similar_names_have_figures_of_their_own(tmp_path):
    path, _ = report([made_up.write(tmp_path / name) for name in ("a+1", "a_1")])
    assert {"a_1-0-trust_ratio", "a_1-1-trust_ratio"} <= set(data(path))


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
    # Of a failure that left no reason, the page says so.
    bare = made_up.write(tmp_path / "two", events=[], summary=failed, metrics=metrics)
    (box,) = re.findall(r'<p class="failure".*?</p>', report([bare])[0].read_text())
    assert "events.jsonl has no reason" in box


def test_constants_are_a_sentence_and_few_rows_are_no_map(tmp_path):
    folder = made_up.write(tmp_path / "one")
    made_up.jsonl(folder / "layers.jsonl", made_up.layers()[:7])
    path, _ = report([folder])
    assert [panel["title"] for panel in data(path)["schedule"]["panels"]] == ["learning rate"]
    assert "Constant: momentum 0.9, batch 100 images, image size 8 px." in path.read_text()
    assert "trust_ratio" not in data(path)
    assert "need 8 rows of layers.jsonl; this run has 7" in path.read_text()


def test_a_comparison_names_runs_and_marks_the_best(tmp_path):
    folders = []
    for number, workers in enumerate((4, 8)):
        metrics = made_up.rows()
        metrics[-1] |= {"validation/top1": 0.5 + 0.1 * number, "validation/loss": 1 / 3}
        folder = tmp_path / f"000{number}"
        folders.append(made_up.write(folder, metrics=metrics, batch__workers=workers))
    path, _ = report(folders)
    text = path.read_text()
    places = [text.index(f'<section id="{key}">') for key in ("training", "differences")]
    assert places == sorted(places)
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


@pytest.mark.parametrize("kept", ["metrics.jsonl", "config.json", "events.jsonl"])
def test_remains_make_a_page(tmp_path, kept):
    folder = made_up.write(tmp_path / "one")
    for path in folder.iterdir():
        if path.name != kept:
            path.unlink()
    if kept == "metrics.jsonl":
        made_up.jsonl(folder / kept, [{"step": 1, "samples": 9, "loss": 2.0}])
    words = checked(report([folder])[0]).words
    assert "unfinished" in words
    assert "There is no layers.jsonl." in words


@pytest.mark.slow
def test_a_hundred_thousand_rows_make_a_page_below_three_megabytes(tmp_path):
    metrics = [row | {"loss": row["loss"] + 1} for row in made_up.rows(steps=100_000)]
    metrics[50_000]["loss"] = 5e3
    folder = made_up.write(tmp_path / "one", metrics=metrics, events=[])
    (folder / "layers.jsonl").unlink()
    path, _ = report([folder])
    assert path.stat().st_size < 3e6
    # The spike is there, on a logarithmic axis.
    (panel,) = data(path)["loss"]["panels"]
    assert panel["log"]
    assert max(panel["lines"][0]["y"]) == 5e3


def test_there_is_no_section_without_content(tmp_path):
    """Few rows of layers, or none, are no section."""
    for count in (0, 3):
        folder = made_up.write(tmp_path / str(count))
        made_up.jsonl(folder / "layers.jsonl", made_up.layers()[:count])
        text = report([folder])[0].read_text()
        assert 'id="layers"' not in text
        assert 'id="norms"' not in text


@pytest.mark.parametrize(("classes", "shown"), [(2, False), (5, False), (6, True)])
def test_top_5_is_shown_for_more_than_five_classes(tmp_path, classes, shown):
    folders = [made_up.write(tmp_path / name) for name in "ab"]
    for folder in folders:
        about = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(about | {"facts": {"classes": classes}}))
    for some in (folders[:1], folders):
        assert ("top-5" in report(some, tmp_path / "out")[0].read_text()) == shown


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


def test_failures_of_a_comparison_are_one_table_below_the_results(tmp_path):
    events = [made_up.event("unhealthy", 20, 26, why="the loss of step 26 is nan")]
    failed = made_up.SUMMARY | {"status": "failed"}
    folders = [
        made_up.write(tmp_path / "a"),
        *(made_up.write(tmp_path / name, events=events, summary=failed) for name in "bc"),
    ]
    path, _ = report(folders)
    text = path.read_text().partition('<details class="run">')[0]
    assert "2 of 3 runs failed" in text
    assert text.count("the loss of step 26 is nan") == 2
    assert text.index(">status<") < text.index("2 of 3 runs failed")
