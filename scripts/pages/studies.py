"""The tables of docs/studies.md, from the records of the studies that train."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.planning.studies import percent, spread
from largebatch.planning.studies.batch_size import (
    EXAMPLES,
    RULES,
    Trial,
    batch,
    by_batch,
    complete_top1,
    ended_trials,
)
from pages.markdown import insert, table

Record = Mapping[str, Any]
SYNCHRONY = Path("records") / "2026-11-21_study_synchrony.json"
BATCH_SIZE = Path("records") / "2026-11-24_imagenette_batch_cpu"
TECHNIQUES = Path("records") / "2026-11-24_imagenette_techniques_cpu"


def page(text: str, root: Path) -> str:
    """Return docs/studies.md with the tables of the records under a root."""
    tables = {
        "batch-size": batch_size_table(ended_trials(root / BATCH_SIZE)),
        "techniques": technique_table(ended_trials(root / TECHNIQUES)),
        "synchrony": synchrony(json.loads((root / SYNCHRONY).read_text())),
    }
    return insert(text, tables)


def synchrony(kept: Record) -> str:
    """Return the results of each policy."""
    rows = []
    for each in kept["policies"]:
        reached, stale = each["to_target_s"], each["staleness"]
        missed = f"{each['reached_target']} of {len(kept['seeds'])} reach it"
        rows.append(
            (
                each["name"],
                percent(each["top1"]),
                f"{each['seconds']['mean']:.2f}",
                f"{reached['mean']:.2f}" if reached else missed,
                f"{stale['mean']:.1f}" if stale else "0",
            )
        )
    target = f"s to {100 * kept['target']:.0f} %"
    return table(("policy", "top-1, %", "simulated s", target, "staleness τ"), rows)


def batch_size_table(trials: Sequence[Trial]) -> str:
    """Return top-1 of each optimizer at each batch, from trials of configs/imagenette_batch.py."""
    sizes = list(by_batch(trials))
    steps = {batch(row): f"{int(row['step']):,}" for row in trials if row["state"] == "complete"}
    rows: list[tuple[object, ...]] = [("steps", *(steps.get(size, "–") for size in sizes))]
    for name, rule in RULES.items():
        cells = by_batch(row for row in trials if row["optimizer.name"] == name)
        rows.append((rule, *(top1_cell(cells.get(size, [])) for size in sizes)))
    heads = [f"{size:,} ({100 * size / EXAMPLES:.1f} %)" for size in sizes]
    return table(("batch (of the training images)", *heads), rows)


def technique_table(trials: Iterable[Trial]) -> str:
    """Return top-1 with and without each technique of configs/imagenette_record_ratio.py."""
    kept: dict[tuple[str, ...], list[Trial]] = {}
    for row in trials:
        warm = "no" if float(row["schedule.warmup"].split()[0]) == 0 else "yes"
        smooth = "no" if float(row["loss.label_smoothing"]) == 0 else "yes"
        statistics = "the batch" if row["norm.span"] == "all" else "each worker"
        kept.setdefault((warm, smooth, statistics), []).append(row)
    header = ("warm-up", "label smoothing", "batch statistics of", "top-1, %")
    order = sorted(kept, key=lambda key: (key[0] == "no", key[1] == "no", key[2] == "the batch"))
    return table(header, [(*key, top1_cell(kept[key])) for key in order])


def top1_cell(trials: Sequence[Trial]) -> str:
    """Return mean and deviation of the complete trials, and how many trials diverged.

    Args:
      trials: ended trials that differ in their seed only.
    """
    found = complete_top1(trials)
    diverged = len(trials) - len(found)
    if not found:
        return "diverged" if diverged else "–"
    return percent(spread(found)) + (f", {diverged} of {len(trials)} diverged" if diverged else "")
