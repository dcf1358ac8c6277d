"""The tables of docs/cost-model.md, from the record of scripts/simulate.py."""

import math
from collections.abc import Mapping
from typing import Any

from largebatch.planning.calibration import table as calibration
from pages.markdown import insert, ms, percent, table

Numbers = Mapping[str, Any]
_BACKUPS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 20)
_RECORD_DEVICES = 2048


def page(text: str, kept: Numbers) -> str:
    """Return the page with the tables of a record; equal records give equal pages."""
    studies = kept["studies"]
    blocks = (
        _calibration(studies["calibration"])
        | _fujitsu(studies["fujitsu"], studies["alternatives"])
        | _network(studies["bucket_sizes"], studies["algorithms"])
        | _scaling(studies["scaling"])
        | _stragglers(studies["survey"], studies["arrivals"])
    )
    sent = [(f"{row['devices']:,}", ms(row["more_s"], 0)) for row in studies["initialisation"]]
    return insert(text, blocks | {"broadcast": table(("V100 of ABCI", "ms more"), sent)})


def _calibration(found: Numbers) -> dict[str, str]:
    shares = (found[key] for key in ("median_error", "worst_error", "error", "unseen_error"))
    values = found["parameters"]
    parameters = [
        (
            f"`{name}`",
            "below" if name == "sustained" else f"{values[name]:.3g}",
            f"{prior.value:g} × or ÷ {math.exp(prior.spread):.2g}",
            prior.unit,
            prior.meaning,
        )
        for name, prior in calibration().priors.items()
    ]
    runs = [
        (
            row["run"],
            f"{row['devices']:,}",
            f"{row['images']:,}",
            f"{row['published']:,.0f}",
            f"{row['predicted']:,.0f}",
            *(percent(row[key]) for key in ("error", "fitted_error", "family_error")),
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
        "parameters": table(("parameter", "fitted", "expected", "unit", "meaning"), parameters),
        "families": table(
            ("family", "`sustained`"), [(k, f"{v:.2f}") for k, v in values["sustained"].items()]
        ),
        "half-batch": table(
            ("device", "images at half of its rate"),
            [(name, f"{count:.0f}") for name, count in found["half_batch"].items()],
        ),
        "runs": table(
            (
                "run",
                "devices",
                "images per device",
                "published",
                "held out",
                "error",
                "error of the fit",
                "family held out",
            ),
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
    parts = {
        "computing": "compute_s",
        "all-reduce, exposed or in the way of backward": "exposed_s",
        "update": "optimizer_s",
        "waiting for the slowest device": "straggler_s",
        "**step** (49.6 in the logs)": "step_s",
    }
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
        "sister-step": table(("part", "ms"), [(k, ms(sister[v])) for k, v in parts.items()]),
        "record": table((*header, "of 74.7 s"), epochs),
        "alternatives": table(
            ("model", "clock, s", "error"),
            [(each["model"], f"{each['clock_s']:.1f}", percent(each["error"])) for each in others],
        ),
    }


def _network(found: Numbers, algorithms: Numbers) -> dict[str, str]:
    small, best = found["least_mib"][0], min(found["least_mib"], key=lambda row: row["exposed_s"])
    equal = [
        (f"at least {name} MiB", row["buckets"], ms(row["exposed_s"], 2), "")
        for row, name in ((small, f"{small['mib']:g}"), (best, f"{best['mib']:.2g} (best)"))
    ]
    named = [
        (name, row["buckets"], ms(row["exposed_s"], 2), ms(row["half_rate_exposed_s"], 2))
        for name, row in found["named"].items()
    ]
    at = algorithms["devices"].index(_RECORD_DEVICES)
    seconds = {name: of[at] for name, of in algorithms["of_gradients"].items()}
    times = [(n.replace("_", " "), ms(s)) for n, s in sorted(seconds.items(), key=lambda x: x[1])]
    return {
        "buckets": table(("cuts", "buckets", "exposed, ms", "at half rate, ms"), equal + named),
        "algorithms": table(("algorithm", "ms"), times),
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


def _stragglers(survey: Numbers, found: Numbers) -> dict[str, str]:
    columns = ("mean", "drawn_mean", "drawn_deviation", "blom", "drawn_median")
    slowest = [
        (f"{row['workers']:,}", *(f"{row[key]:.2f}" for key in columns)) for row in survey["rows"]
    ]
    wanted = [f"{100 * statement['share']:.0f} %" for statement in found["statements"]]
    fits = [
        (
            {"shared": "with a shared factor"}.get(name, name),
            *(f"{100 * share:.1f} %" for share in fit["shares"]),
            f"{100 * fit['held_up']:.2f} %",
            f"{fit['common']:.3f}",
        )
        for name, fit in found["fits"].items()
    ]
    backups = {row["ignored"]: row for row in found["backups"]["rows"]}
    policies = [
        (
            row["policy"],
            row["machines"],
            f"{row['step_s']:.2f}",
            f"{row['gradients']:.1f}",
            f"{100 * row['efficiency']:.1f} %",
        )
        for row in found["policies"]
    ]
    return {
        "slowest": table(
            ("workers", "mean, exact", "mean, drawn", "deviation, drawn", "Blom", "median, drawn"),
            slowest,
        ),
        "arrivals": table(
            ("workers", "98th by 2 s", "100th by 2 s", "held up", "σ of the shared factor"),
            [("published", *wanted, "", ""), *fits],
        ),
        "backups": table(
            ("b", "step, s", "drawn", "efficiency"),
            [
                (
                    b,
                    f"{backups[b]['step_s']:.2f}",
                    f"{backups[b]['drawn_step_s']:.2f}",
                    f"{100 * backups[b]['efficiency']:.1f} %",
                )
                for b in _BACKUPS
            ],
        ),
        "policies": table(("policy", "machines", "step, s", "gradients", "efficiency"), policies),
    }
