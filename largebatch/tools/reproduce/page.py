"""The record of a reproduction for readers: Markdown, and rows for the console."""

from collections.abc import Mapping, Sequence
from typing import Any

from largebatch.tools.reproduce.record import OTHER_TASK

_COLUMNS = {
    "seed": "{}",
    "reached": "{}",
    "top1": "{:.4f}",
    "clock_s": "{:.2f}",
    "epochs": "{:g}",
    "initialisation_s": "{:.1f}",
    "compile_s": "{:.1f}",
    "train_s": "{:.2f}",
    "wait_s": "{:.2f}",
    "evaluation_s": "{:.2f}",
    "checkpoint_s": "{:.2f}",
    "images_per_s": "{:,.0f}",
    "accepted": "{}",
}
"""Columns of the table of seeds: figure and format."""


def table_of(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the comparison of a record.

    The published run is there only if it was the same task.
    """
    clock, has_target = kept["clock_s"], bool(kept["target_top1"])
    how = "without best and worst" if clock["without_extremes"] else f"mean of {len(kept['seeds'])}"
    lost = clock["not_reached"] or clock["not_finished"]
    if lost:
        how += f", {lost} " + ("did not reach the target" if has_target else "did not finish")
    epochs = (kept["epochs_to_target"] or {}).get("mean")
    columns = {
        "measured": [
            kept["devices"],
            _share(kept["top1"]),
            f"{_given(clock['mean'], '{:,.1f} s')} ({how})",
            _given(epochs, "{:.2f}") if has_target else "no target",
        ]
    }
    if here := kept["prediction_here"]:
        columns[f"predicted here ({kept['cluster']})"] = [
            kept["devices"],
            "–",
            _predicted(here),
            "–",
        ]
    if kept["comparable"]:
        published = kept["published"]
        columns["published"] = [
            published["devices"] or "–",
            _given(published["top1_percent"], "{:.2f} %"),
            _given(published["seconds"], "{:,.1f} s") + _rules(published),
            _given(published["epochs"], "{:g}"),
        ]
        if expected := kept["prediction"]:
            cluster = published["cluster"]
            columns[f"predicted for {cluster}"] = [cluster, "–", _predicted(expected), "–"]
    names = ("devices", "top-1 at the end", "time on the clock", "epochs to the target")
    rows = [list(cells) for cells in zip(names, *columns.values(), strict=True)]
    return ["", *columns], rows


def remark(kept: Mapping[str, Any]) -> str:
    """Return why a run does not compare with the published one; empty if it does."""
    if kept["published"] is None or kept["comparable"]:
        return ""
    return f"This is {OTHER_TASK}: {'; '.join(kept['unlike_published'])}."


def closing_rows(kept: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the comparison for the console, as (label, value)."""
    (_, *heads), rows = table_of(kept)
    found = [
        (name, "; ".join([first, *(f"{h} {c}" for h, c in zip(heads[1:], rest, strict=True))]))
        for name, first, *rest in rows
    ]
    return [*found, ("comparison", remark(kept))] if remark(kept) else found


def page(kept: Mapping[str, Any]) -> str:
    """Return the record as Markdown."""
    environment = kept["environment"]
    versions = environment["versions"]
    installed = f"largebatch {versions.get('largebatch', 'of unknown version')}, installed"
    commit = environment.get("commit")
    lines = [
        f"# {kept['recipe']} at scale {kept['scale']}, {kept['date']}",
        "",
        f"    {kept['command']}",
        "",
        f"{f'Commit {commit}' if commit else installed}, "
        f"jax {versions['jax']}, global batch {kept['global_batch']:,}, "
        f"{kept['length_epochs']:.2f} epochs.",
    ]
    if remark(kept):
        lines += ["", remark(kept)]
    lines += ["", *_table(*table_of(kept)), ""]
    rows = [
        [
            "no target" if name == "reached" and seed[name] is None else _given(seed[name], form)
            for name, form in _COLUMNS.items()
        ]
        for seed in kept["seeds"]
    ]
    lines += _table(list(_COLUMNS), rows)
    lines += [
        "",
        "`clock_s` is from run_start to run_stop of result_SEED.txt; initialisation, compilation "
        "and warm-up come before it. `train_s` holds `wait_s`, the waits for data. `accepted`: by "
        "MLPerf's compliance checker.",
        "",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def _given(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)


def _share(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "–"
    text = f"{found['mean']:.2%}"
    if found["low"] is None:
        return text + " (1 run)"
    return (
        text
        + f" ({found['low']:.2%} to {min(1.0, found['high']):.2%} at 95 %, {found['runs']} runs)"
    )


def _predicted(expected: Mapping[str, Any]) -> str:
    low, high = expected["low_s"], expected["high_s"]
    return f"{expected['clock_s']:,.1f} s ({low:,.1f} to {high:,.1f})"


def _rules(published: Mapping[str, Any]) -> str:
    return f" ({published['mlperf']})" if published.get("mlperf") else ""
