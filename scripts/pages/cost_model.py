"""docs/cost-model.md, from the record of scripts/simulate.py."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from largebatch.planning.calibration import table
from pages.cost_model_studies import network, picture, scaling, start, stragglers
from pages.markdown import flowed, ms, percent
from pages.markdown import table as as_table


def page(kept: Mapping[str, Any]) -> str:
    """The whole page; equal records give equal pages."""
    studies = kept["studies"]
    sections = (
        _begin(studies["calibration"]),
        _model(studies["calibration"]),
        _calibration(studies["calibration"]),
        _fujitsu(studies["fujitsu"], studies["alternatives"]),
        network(studies),
        scaling(studies["scaling"]),
        stragglers(studies["survey"], studies["arrivals"]),
        start(studies["initialisation"]),
        _LIMITS,
    )
    return "\n\n".join(map(flowed, sections)) + "\n"


def _begin(found: Mapping[str, Any]) -> str:
    return f"""
# Cost model

How long a run would take on devices that are not here. Written by
`python scripts/simulate.py --out=.`,
which fits the
model, runs every study below and keeps all numbers in
[one record](../records/2026-11-21_cost_model.json). **None of it was measured on a GPU or TPU by
this project**:
it is fitted to the run logs of others, and its worth is how far it lies from runs that it has not
seen. For each
of 22 published runs, predicted from the other 21: median error {100 * found["median_error"]:.1f}
%, worst
{100 * found["worst_error"]:.1f} %. On hardware of which it has seen no run at all it may be off by
half.

```python
from largebatch.planning.prediction import Segment, Workload, predict

record = Segment(steps=1440, images_per_device=40, devices=2048)
predict(Workload((record,), evaluations=23, evaluation_images=50_000), "abci").clock_s
```

Devices are counted as JAX does: of TPU v3 the cores. Hardware and named clusters, with the
source of each number, are in `largebatch/parallel/clusters.toml`; the runs,
what is expected of each parameter and why in `largebatch/planning/calibration.toml`."""


def _model(found: Mapping[str, Any]) -> str:
    values = found["parameters"]
    priors = table().priors
    rows = []
    for name, prior in priors.items():
        value = "below" if name == "sustained" else f"{values[name]:.3g}"
        rows.append(
            (
                f"`{name}`",
                value,
                f"{prior.value:g} × or ÷ {math.exp(prior.spread):.2g}",
                prior.unit,
                prior.meaning,
            )
        )
    shares = [(family, f"{share:.2f}") for family, share in values["sustained"].items()]
    half = ", ".join(f"{name} {count:.0f}" for name, count in found["half_batch"].items())
    return f"""
## The step
A step is the sum of

- **compute**: images × the time of one, plus an overhead that does not depend on them. An image of
  224² moves
  386 MB and takes what a family of hardware sustains of its memory's bandwidth; other sizes go by
  their area;
- **exposed all-reduce**: the record's four groups of layers cross the network while backward goes
  on
  ([below](#network)); what lies after backward counts in full, what lies under it by a share. TPUs
  reduce after
  backward;
- **update**: 0.72 GB of LARS at the memory's bandwidth;
- **input**: what a step waits for images, nothing unless their rate is given;
- **stragglers**: the mean of the slowest of all devices over that of one, log-normal.

A run adds the start on the clock, evaluations (forward passes of each device's share, and three
steps' overhead)
and, by the rules of v0.5, construction. Parameters are fitted by least squares of logarithms, in
which a row far
off pulls no harder than one at the expected 6 %; each is held near what was expected before any
run was seen:

{as_table(("parameter", "fitted", "expected", "unit", "meaning"), rows)}

{as_table(("family", "`sustained`"), shares)}

A share above 1 says that fused kernels move less than 386 MB. With the software of the latest
round half of the
rate is reached at this many images a device: {half}."""


def _calibration(found: Mapping[str, Any]) -> str:
    rows = [
        (
            row["run"],
            f"{row['devices']:,}",
            f"{row['images']:,}",
            f"{row['published']:,.0f}",
            f"{row['predicted']:,.0f}",
            percent(row["error"]),
            percent(row["fitted_error"]),
            percent(row["family_error"]),
        )
        for row in found["rows"]
    ]
    header = (
        "run",
        "devices",
        "images a device",
        "published",
        "held out",
        "error",
        "error of the fit",
        "family held out",
    )
    return f"""
## Twenty-two published runs
MLPerf submissions of ResNet-50, images/s of a device over the whole logged time, evaluation and
start included
(chips for TPUs). *Held out* is predicted by parameters fitted to the other 21 rows; in the last
column all rows
of the same family of hardware are left out.

{as_table(header, rows)}

{picture("calibration", "Predicted against published rates")}

- Median {100 * found["median_error"]:.1f} %, worst {100 * found["worst_error"]:.1f} %, nine of ten
  within
  {100 * found["error"]:.0f} % (as a logarithm), which is the interval that `predict` gives; on
  hardware without a
  row it gives {100 * found["unseen_error"]:.0f} %.
- Only the parameters are held out. The form of the model, the robust loss and the values expected
  were settled
  with all rows in view, and `hidden_cost` with Fujitsu's: see what other choices give there.
- The H200 is alone; it shares its family's share with the H100 and differs by its memory's
  bandwidth. Both
  Ascend rows are of one team and at 160²: each mostly predicts the other, and what is expected of
  other hardware
  is far off them. The v0.5 row is alone in its round and the only one with flat rings (NCCL had no
  trees yet).
- The A100 of v0.7 is taken for the 40 GB board, those of v1.1 and v2.0 for the 80 GB one
  (unverified)."""


def _fujitsu(found: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    sister, records = found["sister"], found["record"]
    parts = [
        ("start on the clock", "start_s", "2.0", "1.33 data iterators, 0.7 first epoch"),
        ("steps", "steps_s", "66.9", "89 epochs of 0.7437, and one"),
        ("evaluations", "evaluation_s", "1.4", "23"),
        ("**run_start to run_stop**", "clock_s", "70.41", "five runs, 70.39 to 70.45"),
    ]
    rows = [(name, f"{sister[key]:.1f}", published, note) for name, key, published, note in parts]
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
        for count, each in records.items()
    ]
    choices = [(each["model"], f"{each['clock_s']:.1f}", percent(each["error"])) for each in others]
    step = sister
    return f"""
## Fujitsu's runs
From parameters fitted without Fujitsu's row. The clock of v0.6 starts when data is first touched:
20 s of
processes and initialisation lie before it. 1,350 steps of 86,016 images:

{as_table(("v0.6, 2,048 V100", "predicted, s", "published, s", ""), rows)}

Error {percent(found["sister_error"])}. Its step: {
        ms(step["step_s"])
    } ms against 49.6 in the logs, of them
{ms(step["compute_s"])} compute, {
        ms(step["exposed_s"])
    } all-reduce exposed or in the way of backward,
{ms(step["optimizer_s"])} update, {ms(step["straggler_s"])} waiting for the slowest.

The paper's 74.7 s at 81,920 were taken by the rules of v0.5, whose clock also holds construction:
memory,
choice of kernels, weights; 2.5 s of it are assumed, 0 to 5 s are possible. It began after the
start of the
processes, as the 20 s of v0.6 would not fit. How many epochs are in it was not published; with 16
steps each:

{
        as_table(
            (
                "epochs",
                "steps",
                "steps, s",
                "start and evaluation",
                "construction",
                "clock, s",
                "of 74.7 s",
            ),
            epochs,
        )
    }

What the v0.6 run would have been predicted at by choices as good as the ones made, each fitted
without it:

{as_table(("model", "clock, s", "error"), choices)}

So the agreement to a per cent is luck within a few per cent; what the model can promise is the
interval above."""


_LIMITS = """
## What it does not know
- Input: hosts are taken to keep up. `scripts/plan.py` prints the images/s and CPU cores that each
  host needs for the predicted step; with `input_images_per_s` from `scripts/benchmark.py input`
  a step waits where a host gives less.
- Other networks and float32: all rows are ResNet-50 in 16 bits. ResNet-152, another width or
  float32 are scaled: an image's time by the roofline of each layer (its FLOPs and bytes), the
  overhead by the number of layers, the all-reduce and the update by the gradients. That is not
  calibrated; `scripts/plan.py` and the doctor print so, with the interval of unseen hardware.
  Images
  below 96 pixels have no prediction.
- BatchNorm over groups of devices, recomputation (`model.remat`), compilation within the clock.
- Memory: whether a batch fits is what [`scripts/plan.py`](../scripts/plan.py) finds out.
- Failures, other jobs on the network, slow storage; jitter is one number for all clusters.
- This project's own kernels: all rows are of MXNet, TensorFlow and JAX programs of their time. A
  run of ours is
  predicted as if it were as good as those.
"""
