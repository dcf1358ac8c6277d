"""The cost model's studies: what it says of published runs and of other clusters.

Each returns plain numbers, for a record; ``scripts/simulate.py`` runs and draws them. Those of
the network are in ``network_studies``, those of stragglers in ``lateness``.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from largebatch.parallel.hardware import HARDWARE, machine
from largebatch.planning import calibration, lateness, network_studies, step_time
from largebatch.planning.network_studies import RECORD_DEVICES, RECORD_IMAGES
from largebatch.planning.prediction import Segment, Workload, predict
from largebatch.planning.step_time import Parameters

Numbers = dict[str, Any]
RECORD_BATCH = 81_920
SISTER_S, RECORD_S = 70.41, 74.7
"""Fujitsu's clocks: MLPerf v0.6 at batch 86,016, and the paper at 81,920."""
_EPOCHS = 90
_EVALUATIONS = 23


def calibrate() -> tuple[Numbers, Parameters, Parameters]:
    """Fit, and hold out every row and every family.

    Returns:
      The numbers, the parameters, and those fitted without Fujitsu's row.
    """
    table = calibration.table()
    alone = calibration.held_out(table.rows)
    families = calibration.held_out_families(table.rows)
    of_family = {each.row.run: each.error for each in families}
    parameters = calibration.fit(table.rows)
    absolute = [abs(each.error) for each in alone]
    numbers = {
        "rows": [
            {
                "run": each.row.run,
                "family": each.row.family,
                "devices": each.row.devices,
                "images": each.row.images,
                "published": each.row.images_per_s,
                "predicted": each.images_per_s,
                "error": each.error,
                "fitted_error": each.fitted_images_per_s / each.row.images_per_s - 1,
                "family_error": of_family[each.row.run],
            }
            for each in alone
        ],
        "median_error": float(np.median(absolute)),
        "worst_error": max(absolute),
        "error": calibration.quantile(alone, 0.9),
        "unseen_error": calibration.quantile(families, 0.9),
        "parameters": calibration.as_mapping(parameters),
        "half_batch": _half_batches(parameters),
    }
    others = calibration.fit([row for row in table.rows if row.cluster != "abci"])
    return numbers, parameters, others


def _half_batches(parameters: Parameters) -> dict[str, float]:
    """Images at which half of the rate is reached, with the software of the latest round."""
    year = max(calibration.table().rounds.values())
    boards = ("v100", "a100", "h100", "h200", "tpu:v3", "tpu:v4")
    return {name: step_time.half_batch(parameters, HARDWARE[name], year) for name in boards}


def alternatives() -> list[Numbers]:
    """Fujitsu's v0.6 run by models that might as well have been chosen, fitted without it."""
    table = calibration.table()
    rows = [row for row in table.rows if row.cluster != "abci"]
    pipelined = [
        dataclasses.replace(row, algorithm="pipelined_ring") if row.algorithm == "ring" else row
        for row in rows
    ]
    looser = dataclasses.replace(table.priors["hidden_cost"], value=0.3, spread=0.5)
    fits = {
        "as chosen": calibration.fit(rows),
        "plain least squares": calibration.fit(rows, robust=False),
        "rings of v0.5 pipelined": calibration.fit(pipelined),
        "without the v0.5 row": calibration.fit([row for row in rows if row.round != "v0.5"]),
        "`hidden_cost` expected at 0.3, more loosely": calibration.fit(
            rows, priors={**table.priors, "hidden_cost": looser}
        ),
    }
    return [
        {
            "model": name,
            "clock_s": (clock := fujitsu(parameters)["sister"]["clock_s"]),
            "error": clock / SISTER_S - 1,
        }
        for name, parameters in fits.items()
    ]


def fujitsu(others: Parameters) -> Numbers:
    """Both of Fujitsu's runs, from parameters that were fitted without them."""

    def run(images: int, steps: int, on_clock: bool) -> Numbers:
        segment = Segment(steps, images, RECORD_DEVICES)
        found = predict(
            Workload((segment,), _EVALUATIONS, calibration.VALIDATION),
            "abci",
            parameters=others,
            round="v0.6",
            construction_on_clock=on_clock,
        )
        training = steps * found.step_s
        return {
            "images": images,
            "steps": steps,
            "step_s": found.step_s,
            "compute_s": found.compute_s,
            "exposed_s": found.exposed_s,
            "optimizer_s": found.optimizer_s,
            "straggler_s": found.straggler_s,
            "start_s": found.train_s - training,
            "steps_s": training,
            "evaluation_s": found.evaluation_s,
            "construction_s": found.clock_s - found.train_s - found.evaluation_s,
            "clock_s": found.clock_s,
        }

    sister = run(42, 15 * _EPOCHS, False)
    record = {str(epochs): run(RECORD_IMAGES, 16 * epochs, True) for epochs in (85, 86, _EPOCHS)}
    published = {"sister": SISTER_S, "record": RECORD_S}
    return {
        "published": published,
        "sister": sister,
        "sister_error": sister["clock_s"] / published["sister"] - 1,
        "record": record,
        "record_error": {
            epochs: each["clock_s"] / published["record"] - 1 for epochs, each in record.items()
        },
        "parameters": calibration.as_mapping(others),
    }


def scaling(parameters: Parameters) -> Numbers:
    """Time to train with a fixed batch, efficiency with a fixed share of it, against devices."""
    strong, weak = {}, {}
    for name in ("abci", "dgx-a100", "dgx-h100", "tpu-v4"):
        counts = [2**k for k in range(7, 13)]
        steps = math.ceil(_EPOCHS * calibration.IMAGES / RECORD_BATCH)
        strong[name] = [
            _clock(parameters, name, count, RECORD_BATCH // count, steps) for count in counts
        ]
        first = machine(name).devices_per_node or 64  # the least TPU whose axes close to rings
        counts = [first * 2**k for k in range(13) if first * 2**k <= 4096]
        rows = [_clock(parameters, name, count, RECORD_IMAGES, 1) for count in counts]
        for row in rows:
            row["efficiency"] = rows[0]["step_s"] / row["step_s"]
        weak[name] = rows
    return {"strong": strong, "weak": weak, "epochs": _EPOCHS, "batch": RECORD_BATCH}


def _clock(parameters: Parameters, name: str, devices: int, images: int, steps: int) -> Numbers:
    found = predict(
        Workload((Segment(steps, images, devices),), _EVALUATIONS, calibration.VALIDATION),
        name,
        parameters=parameters,
    )
    return {
        "devices": devices,
        "images": images,
        "step_s": found.step_s,
        "clock_s": found.clock_s,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "device_hours": found.device_hours,
    }


def initialisation() -> list[Numbers]:
    """Sending the weights from one process, beyond drawing them on all from one seed."""
    workloads = [Workload((Segment(1, RECORD_IMAGES, 4 * 2**k),), 0, 0) for k in range(0, 11, 2)]
    found = []
    for workload in workloads:
        same, sent = (
            predict(workload, "abci", initialisation=way).start_up_s
            for way in ("same_seed", "broadcast")
        )
        found.append({"devices": workload.segments[0].devices, "more_s": sent - same})
    return found


def all_studies() -> tuple[Numbers, Parameters]:
    """Every study, by name, and the parameters."""
    numbers, parameters, others = calibrate()
    found = {
        "calibration": numbers,
        "alternatives": alternatives(),
        "fujitsu": fujitsu(others),
        "survey": lateness.survey(),
        "arrivals": lateness.arrivals(),
        "scaling": scaling(parameters),
        "timeline": network_studies.timeline(parameters),
        "bucket_sizes": network_studies.bucket_sizes(parameters),
        "algorithms": network_studies.algorithms(),
        "initialisation": initialisation(),
    }
    return found, parameters
