"""Stands in for train.py in a trial's directory: python fake_train.py WORKDIR

`script.json` of the sweep has for each trial a list of attempts: evaluations to write, whether to
wait for SIGTERM and to ignore it, the exit code, top-1, the output. Every attempt is a line of
`starts.txt`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

workdir = Path(sys.argv[1])
sweep = workdir.parent.parent
script = json.loads((sweep / "script.json").read_text())


def save(*_):
    print("saved", flush=True)
    sys.exit(75)


signal.signal(signal.SIGTERM, save)
with (sweep / "starts.txt").open("a") as stream:
    stream.write(f"{int(workdir.name)}\n")
earlier = (workdir / "output.txt").read_text().count("started")
print("started", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
attempts = script.get(str(int(workdir.name)), [{}])
attempt = attempts[min(earlier, len(attempts) - 1)]
for step, top1 in enumerate(attempt.get("evaluations", []), 1):
    with (workdir / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": step, "validation/top1": top1}) + "\n")
    time.sleep(attempt.get("pause", 0))
if "unhealthy" in attempt:
    event = {"event": "unhealthy", "why": attempt["unhealthy"]}
    (workdir / "events.jsonl").write_text(json.dumps(event) + "\n")
print(attempt.get("output", ""), flush=True)
if attempt.get("wait"):
    if attempt.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("waiting", flush=True)
    time.sleep(60)
code = attempt.get("code", 0)
if code == 0:
    names = ("top5", "loss", "images_per_s")
    summary = {"status": "complete", "top1": attempt.get("top1", 0.5), "steps": 9, "samples": 72}
    summary |= dict.fromkeys(names, 0.25) | {"wall_s": 1.5, "compile_s": 0.5}
    (workdir / "summary.json").write_text(json.dumps(summary))
sys.exit(code)
