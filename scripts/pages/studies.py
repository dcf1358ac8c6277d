"""The tables of docs/studies.md, from the records of the studies that train."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from largebatch.planning.studies import percent
from pages.markdown import insert, table

Record = Mapping[str, Any]
SYNCHRONY = Path("records") / "2026-11-21_study_synchrony.json"
BATCH_SIZE = Path("records") / "2026-11-21_study_batch_size.json"


def page(text: str, root: Path) -> str:
    """Return docs/studies.md with the tables of the records under a root."""
    synchronous, sizes = (json.loads((root / file).read_text()) for file in (SYNCHRONY, BATCH_SIZE))
    tables = {
        "synchrony": synchrony(synchronous),
        "batch-size": batch_size(sizes, "top1"),
        "batch-size-ema": batch_size(sizes, "top1_ema"),
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
                each["machines"],
                percent(each["top1"]),
                f"{each['seconds']['mean']:.2f}",
                f"{reached['mean']:.2f}" if reached else missed,
                f"{100 * each['images']['mean'] / each['computed']['mean']:.1f}",
                f"{stale['mean']:.1f} (at most {stale['most']})" if stale else "0",
            )
        )
    target = f"s to {100 * kept['target']:.0f} %"
    header = ("policy", "machines", "top-1, %", "simulated s", target, "images used, %")
    return table((*header, "staleness τ"), rows)


def batch_size(kept: Record, key: str) -> str:
    """Return top-1 of each arm at each batch: ``top1`` or ``top1_ema`` of the record."""
    batches = {each["batch"]: each for each in kept["results"]}
    heads = [f"{b:,} ({100 * e['share']:.1f} %)" for b, e in batches.items()]
    arms: dict[str, list[str]] = {"steps": [f"{each['steps']:,}" for each in batches.values()]}
    for each in kept["results"]:
        arms.setdefault(each["name"], []).append(percent(each[key]))
    rows = [(name, *cells) for name, cells in arms.items()]
    return table(("batch (of the data set)", *heads), rows)
