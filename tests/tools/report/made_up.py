"""Directories of runs that never were, with every kind of row and event."""

import json
import math

SECTIONS = {
    "model": {"name": "resnet10", "width": 4},
    "batch": {"workers": 8},
    "optimizer": {"name": "lars", "flavour": "mlperf"},
    "data": {"source": "digits"},
}
BEGAN = 1_700_000_000.0


def rows(steps=40, every=1, seed=0, batch=100):
    """Rows of metrics.jsonl: a loss that falls, an evaluation every tenth step."""
    found = []
    for step in range(every, steps + 1, every):
        row = {
            "step": step,
            "samples": batch * step,
            "epoch": batch * step / 1000,
            "loss": 2 * math.exp(-step / 20) + 0.01 * seed,
            "top1": 1 - math.exp(-step / 20),
            "learning_rate": 0.1 * step,
            "momentum": 0.9,
            "batch": batch,
            "image_size": 8,
            "gradient_norm": 1 / step,
            "noise_scale": 10.0 * step,
            "images_per_s": 200.0,
            "input_wait": 0.02,
            "seconds": 5 + step / 2,
        }
        if step % (10 * every) == 0:
            row |= {"validation/loss": row["loss"] + 0.1, "validation/top1": row["top1"] - 0.01}
        found.append(row)
    return found


def layers(steps=40, every=5, batch=100):
    """Rows of layers.jsonl of three layers and a BatchNorm."""
    norms = {"trust_ratio": 0.5, "weight_norm": 3.0, "gradient_norm": 0.2}
    return [
        {
            "step": step,
            "samples": batch * step,
            "layers": {
                "head/kernel": norms,
                "stage10/conv/kernel": norms | {"trust_ratio": 0.01 * step},
                "stage2/conv/kernel": norms,
                "stem/conv/kernel": norms,
                "stem/bn/scale": norms | {"trust_ratio": 1.0},
                "stem/bn": {"running_mean": 0.1 * step, "running_variance": 2.0},
            },
        }
        for step in range(every, steps + 1, every)
    ]


def event(name, second, step=0, **values):
    return {"time": BEGAN + second, "event": name, "step": step, "samples": 100 * step, **values}


def times(second, step, **spent):
    return event("times", second, step, **spent)


FIRST_TURN = {
    "compile_s": 3.0,
    "train_s": 6.0,
    "wait_s": 2.0,
    "evaluation_s": 1.0,
    "checkpoint_s": 0.5,
    "other_s": 2.0,
}
EVENTS = [
    event("attempt", 0, devices=2, processes=1, device_kind="H200", jax="0.10.2", python="3.11.7"),
    event("train_start", 3),
    times(9, 10, compile_s=3.0, train_s=4.0, wait_s=1.0, evaluation_s=0.5, checkpoint_s=0.2),
    event("eval_start", 9, 10),
    event("eval_stop", 10, 10, top1=0.4),
    event("checkpoint", 10, 10),
    event("hosts", 11, 12, slowest=1, factor=1.5, slow=True, host=["a", "b"], cause="input"),
    event("preempted", 12, 13),
    times(13, 13, **FIRST_TURN),
    event("turn", 100, 13, devices=1, processes=1, device_kind="H200"),
    event("train_start", 101, 13),
    event("skipped", 102, 15),
    event("rollback", 103, 16, reason="loss"),
    times(110, 40, compile_s=1.0, train_s=7.0, wait_s=0.5, evaluation_s=1.0, checkpoint_s=0.5),
    event("train_stop", 111, 40),
]
SUMMARY = {
    "status": "complete",
    "top1": 0.86,
    "top5": 0.99,
    "loss": 0.37,
    "steps": 40,
    "samples": 4000,
    "wall_s": 25.0,
    "compile_s": 4.0,
    "images_per_s": 210.0,
    "target_top1": 0.6,
    "target_step": 20,
    "target_s": 15.0,
}


def config(seed=0, **changes):
    """config.json; a change is named section__key."""
    sections = {name: dict(values) for name, values in SECTIONS.items()}
    sections["run"] = {"seed": seed, "target": 0.6}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        sections.setdefault(section, {})[key] = value
    return {
        "config": sections,
        "plan": {"samples_per_step": 100, "steps": 40},
        "environment": {"device": "H200", "devices": 2, "python": "3.11.7", "versions": {}},
    }


def jsonl(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def write(folder, *, seed=0, events=EVENTS, metrics=None, summary=SUMMARY, **changes):
    """Write the directory of a complete run."""
    folder.mkdir(parents=True)
    jsonl(folder / "metrics.jsonl", rows(seed=seed) if metrics is None else metrics)
    jsonl(folder / "layers.jsonl", layers())
    jsonl(folder / "events.jsonl", events)
    (folder / "config.json").write_text(json.dumps(config(seed, **changes)))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
