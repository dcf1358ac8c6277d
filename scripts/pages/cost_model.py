"""The tables of docs/cost-model.md, from the record of scripts/simulate.py."""

from collections.abc import Mapping
from typing import Any

from pages.markdown import insert, ms, percent, table

Numbers = Mapping[str, Any]
_RECORD_DEVICES = 2048


def page(text: str, kept: Numbers) -> str:
    """Return the page with the tables of a record; equal records give equal pages."""
    studies = kept["studies"]
    blocks = (
        _calibration(studies["calibration"])
        | _fujitsu(studies["fujitsu"], studies["alternatives"])
        | _network(studies["bucket_sizes"])
        | _scaling(studies["scaling"])
    )
    return insert(text, blocks)


def _calibration(found: Numbers) -> dict[str, str]:
    shares = (found[key] for key in ("median_error", "worst_error", "error", "unseen_error"))
    values = found["parameters"]
    runs = [
        (
            row["run"],
            f"{row['devices']:,}",
            f"{row['published']:,.0f}",
            *(percent(row[key]) for key in ("error", "family_error")),
        )
        for row in found["rows"]
    ]
    return {
        "errors": table(
            ("runs", "median error", "worst", "nine of ten within", "on unseen hardware"),
            [
                (
                    len(runs),
                    *(f"{100 * x:.{n}f} %" for x, n in zip(shares, (1, 1, 0, 0), strict=True)),
                )
            ],
        ),
        "families": table(
            ("family", "`sustained`"), [(k, f"{v:.2f}") for k, v in values["sustained"].items()]
        ),
        "runs": table(
            ("run", "devices", "published", "error held out", "family held out"),
            runs,
        ),
    }


def _fujitsu(found: Numbers, others: list[Numbers]) -> dict[str, str]:
    sister = found["sister"]
    clock = [
        ("start on the clock", "start_s", "2.0", "1.33 data iterators, 0.7 first epoch"),
        ("steps", "steps_s", "66.9", "89 epochs of 0.7437, and one"),
        ("evaluations", "evaluation_s", "1.4", "23"),
        ("**run_start to run_stop**", "clock_s", "70.41", "five runs, 70.39 to 70.45"),
        ("error of the clock", "", "", percent(found["sister_error"])),
    ]
    epochs = [
        (
            count,
            f"{each['steps']:,}",
            f"{each['steps_s']:.1f}",
            f"{each['start_s'] + each['evaluation_s']:.1f}",
            f"{each['construction_s']:.1f}",
            f"{each['clock_s']:.1f}",
            percent(found["record_error"][count]),
        )
        for count, each in found["record"].items()
    ]
    header = ("epochs", "steps", "steps, s", "start and evaluation", "construction", "clock, s")
    return {
        "sister": table(
            ("v0.6, 2,048 V100", "predicted, s", "published, s", ""),
            [(a, f"{sister[k]:.1f}" if k else "", b, c) for a, k, b, c in clock],
        ),
        "record": table((*header, "of 74.7 s"), epochs),
        "alternatives": table(
            ("model", "clock, s", "error"),
            [(each["model"], f"{each['clock_s']:.1f}", percent(each["error"])) for each in others],
        ),
    }


def _network(found: Numbers) -> dict[str, str]:
    small, best = found["least_mib"][0], min(found["least_mib"], key=lambda row: row["exposed_s"])
    equal = [
        (f"at least {name} MiB", row["buckets"], ms(row["exposed_s"], 2), "")
        for row, name in ((small, f"{small['mib']:g}"), (best, f"{best['mib']:.2g} (best)"))
    ]
    named = [
        (name, row["buckets"], ms(row["exposed_s"], 2), ms(row["half_rate_exposed_s"], 2))
        for name, row in found["named"].items()
    ]
    return {
        "buckets": table(("cuts", "buckets", "exposed, ms", "at half rate, ms"), equal + named),
    }


def _scaling(found: Numbers) -> dict[str, str]:
    kept = {
        name: next(row["efficiency"] for row in rows if row["devices"] == _RECORD_DEVICES)
        for name, rows in found["weak"].items()
    }
    rows = [
        (
            name,
            *(f"{row['clock_s']:.0f}" for row in each),
            f"{each[-2]['device_hours']:.0f}",
            f"{100 * kept[name]:.0f} %",
        )
        for name, each in found["strong"].items()
    ]
    counts = [f"{row['devices']:,}" for row in found["strong"]["abci"]]
    return {"scaling": table(("cluster", *counts, "device-hours", "rate kept"), rows)}
