"""An executor without processes: each attempt of a trial follows a script."""

import dataclasses
import json

from largebatch.tracking.summary import Summary


def summary(status="complete", *, top1=0.5, loss=0.25, steps=9, wall_s=1.5, **others):
    """What a training leaves, after half a second of compiling."""
    return Summary(status, top1, 1.0, loss, steps, 8 * steps, wall_s, 0.5, 100.0, **others)


@dataclasses.dataclass
class FakeHandle:
    job: object
    attempt: dict
    executor: object
    token: str = ""
    polls: int = 0
    asked: bool = False
    ended: int | None = None

    def poll(self):
        if self.ended is None:
            self.polls += 1
            evaluations = self.attempt.get("evaluations", [])
            if self.polls <= len(evaluations):
                row = {"step": self.polls, "validation/top1": evaluations[self.polls - 1]}
                with (self.job.workdir / "metrics.jsonl").open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
            if self.asked and self.attempt.get("obeys", True):
                self._end(75)
            elif self.polls > len(evaluations) and "code" in self.attempt:
                self._end(self.attempt["code"])
        if self.ended is not None:
            self.executor.running.discard(self.job.number)
        return self.ended

    def _end(self, code):
        self.ended = code
        (self.job.workdir / "output.txt").write_text(self.attempt.get("output", ""))
        if "unhealthy" in self.attempt:
            event = {"event": "unhealthy", "why": self.attempt["unhealthy"]}
            (self.job.workdir / "events.jsonl").write_text(json.dumps(event) + "\n")
        if code == 0:
            summary(top1=self.attempt["top1"]).write(self.job.workdir)

    def stop(self):
        self.asked = True

    def kill(self):
        self.ended = -9


class FakeExecutor:
    """Trial n does ``script[n]``, an attempt after the other; the default is to come to 0.5."""

    every_s = 0.5
    token = ""

    def __init__(self, script=None, at_once=2):
        self.at_once = at_once
        self.script = script or {}
        self.started = []
        self.running = set()
        self.most = 0
        self.handles = {}

    def start(self, jobs):
        return [self._start(job) for job in jobs]

    def _start(self, job):
        attempts = self.script.get(job.number, [{"code": 0, "top1": 0.5}])
        attempt = attempts[min(self.started.count(job.number), len(attempts) - 1)]
        self.started.append(job.number)
        assert job.number not in self.running
        self.running.add(job.number)
        self.most = max(self.most, len(self.running))
        job.workdir.mkdir(parents=True, exist_ok=True)
        self.handles[job.number] = FakeHandle(job, attempt, self, self.token)
        return self.handles[job.number]

    def attach(self, token):
        return self.handles[int(token.partition("_")[2])] if token else None
