"""Kill a training at random moments, resume it, and compare the result with an undisturbed run.

    python scripts/soak.py --kills=50 --json=records/soak.json
    python scripts/soak.py slow_host --json=records/slow_host.json

Two undisturbed runs must be equal; the second reads its programs from the cache. Then the same
command is killed (SIGKILL) at random times and while it writes a checkpoint, and starts again.
Parameters, statistics, velocities and every row of the log must be bitwise identical. Exit code 1:
the results differ, and the directory is kept. slow_host measures a deadline while one of several
processes is slow (python scripts/soak.py slow_host --help).
"""

import dataclasses
import math
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header
from soaking.runs import (
    Attempt,
    Moment,
    attempt,
    checkpoints,
    differences,
    evidence,
    last_row,
    plan_of,
)
from soaking.slow_host import slow_host

from largebatch.checkpoint.place import BucketPlace
from largebatch.cli import Parser, written
from largebatch.config import Plan
from largebatch.config.plan import StagePlan
from largebatch.environment import ROOT
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, read_json, write_json
from largebatch.object_store import Bucket

TRAIN = ROOT / "train.py"
RECIPE = (
    f"--config={ROOT / 'configs' / 'digits.py'}",
    "--config.model.name=resnet10",
    "--config.model.width=4",
    "--config.batch.microbatch=4",
    "--config.schedule.length=1000 steps",
    "--config.schedule.warmup=100 steps",
    "--config.schedule.peak=1.0",
    "--config.run.evaluate_every=60 steps",
    "--config.run.layers_every=30 steps",
    "--config.run.checkpoint_every=40 steps",
)
"""Without --config: 20 seconds on a laptop, with two microbatches."""
KILLS_A_RUN = 5
SAVES = 0.3
"""The share of kills that are aimed at a save; the others come at any time, also in the start."""
_SAVE_S = 0.1  # longer than the save of a tiny network: some kills come just after it
_FIRST_SAVES = 4  # those of a process that are aimed at


class Lost(Exception):
    """A run did not come out as it should; the message has the reasons."""


@dataclasses.dataclass
class Kill:
    """One kill.

    Attributes:
        run: number of the run, from 1.
        attempt: number of the process in that run, from 1.
        after_s: seconds after the start of the process.
        hit: what it hit: start-up, with compilation; save; or training.
        row: step of the last row of metrics.jsonl.
        checkpoint: step of the newest complete checkpoint; 0: there was none.
        resumed: step that the run resumed from; None if it never did.
        repeated: steps that were computed again.
    """

    run: int
    attempt: int
    after_s: float
    hit: str
    row: int
    checkpoint: int
    resumed: int | None = None
    repeated: int = 0


@dataclasses.dataclass
class Soak:
    """A soak under way.

    Attributes:
        train: the command, from the path of train.py on.
        root: directory of the runs, or of their copies.
        store: URL below which the runs are kept; '' for ``root``.
        limit_s: seconds after which a process counts as hanging.
        rng: chance.
    """

    train: tuple[str, ...]
    root: Path
    store: str
    limit_s: float
    rng: random.Random
    plan: Plan | None = None
    whole: dict[str, Any] | None = None
    whole_s: float = 0.0
    kills: list[Kill] = dataclasses.field(default_factory=list)

    def undisturbed(self) -> None:
        """Run twice without a kill, for the evidence and the time.

        Raises:
            Lost: a run fails, or the second differs from the first.
        """
        for name in ("whole", "again"):
            ended = self._attempt(name, 1, None)
            if ended.code != 0:
                raise Lost(f"exit code {ended.code} without a kill:\n{ended.log[-2000:]}")
            found = evidence(self.root / name)
            if self.whole is None:
                self.whole, self.plan = found, plan_of(self.root / name)
            elif differ := differences(self.whole, found):
                raise Lost(f"two runs without a kill differ: {', '.join(differ[:9])}")
        self.whole_s = ended.seconds  # of the second run, whose programs were compiled before

    def disturbed(self, number: int, most: int) -> None:
        """Kill one run up to ``most`` times, then let it end.

        A checkpoint is written while steps are computed, so a kill in a save repeats the steps
        since the checkpoint before: at most twice the interval. A run in a store may have written
        checkpoints that were not uploaded yet.

        Raises:
            Lost: with all that is wrong.
        """
        name, end, since, count = f"run_{number}", len(self.kills) + most, len(self.kills), 0
        interval = max(_interval(stage) for stage in self.plan.stages)
        code = None
        while code is None:
            count += 1
            step = checkpoints(self.root / name)[-1]
            moment = self._draw(step, interval) if len(self.kills) < end else None
            ended = self._attempt(name, count, moment)
            code, problems = ended.code, []
            if ended.resumed is not None:
                for kill in self.kills[since:]:
                    kill.resumed, kill.repeated = ended.resumed, max(0, kill.row - ended.resumed)
                    late = kill.repeated > 2 * interval and not self.store
                    if kill.resumed != kill.checkpoint or late:
                        problems.append(f"checkpoints are {interval} steps apart: {kill}")
                since = len(self.kills)
            if code is None:
                self.kills.append(self._kill(number, count, ended))
                print(self.kills[-1], flush=True)
            elif code:
                problems.append(f"exit code {code}:\n{ended.log[-2000:]}")
            else:
                problems += differences(self.whole, evidence(self.root / name))
            if problems:
                raise Lost("\n".join([f"{name}, process {count}:", *problems[:9]]))
        shutil.rmtree(self.root / name)

    def _draw(self, step: int, interval: int) -> Moment:
        """Return a random moment in the life of a process that starts from a step."""
        saves = round((self.plan.steps - step) / interval)
        if saves and not self.store and self.rng.random() < SAVES:
            number = self.rng.randint(1, min(_FIRST_SAVES, saves))
            return Moment(self.rng.uniform(0, _SAVE_S), number)
        return Moment(self.rng.uniform(0, self.whole_s))

    def _kill(self, number: int, count: int, ended: Attempt) -> Kill:
        workdir = self.root / f"run_{number}"
        hit = "save" if ended.saving else "training" if "compiled " in ended.log else "start-up"
        after_s, newest = round(ended.seconds, 3), checkpoints(workdir)[-1]
        return Kill(number, count, after_s, hit, last_row(workdir), newest)

    def _attempt(self, name: str, count: int, moment: Moment | None) -> Attempt:
        log, local = self.root / f"{name}_{count}.log", self.root / name
        target = f"{self.store}/{name}" if self.store else str(local)
        try:
            return attempt(self.train, target, log, moment, self.limit_s)
        except TimeoutError as error:
            raise Lost(f"{name}, process {count}: {error}") from error
        finally:
            if self.store:
                shutil.rmtree(local, ignore_errors=True)
                local.mkdir()
                place = BucketPlace(Bucket(target), local)
                place.fetch_logs()
                (local / "checkpoints").mkdir()
                for name in place.files("checkpoints"):
                    (local / "checkpoints" / name).write_bytes(place.read(f"checkpoints/{name}"))


def _interval(stage: StagePlan) -> int:
    """Return the largest number of steps between two checkpoints of a stage."""
    return math.ceil(stage.checkpoint_every / stage.samples_per_step)


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(__doc__, usage="soak.py [slow_host] [flags] [--config.section.key=value …]")
    made.add_argument("--kills", type=int, default=50, help="number of kills (50)")
    made.add_argument("--seed", type=int, default=0, help="seed of the moments (0)")
    made.add_recipe("recipe: a name or a file (digits, shortened)", optional=True)
    made.add_argument("--store", default="", metavar="URL", help="keep the runs in s3:// or gs://")
    made.add_argument("--limit_s", type=float, default=600.0, help="most seconds of a run (600)")
    made.add_record()
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the trial; return the exit code of the process."""
    if arguments and arguments[0] == "slow_host":
        return exit_code(lambda: slow_host(arguments[1:]))
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Soak; return 1 if something was lost.

    Raises:
      UserError: a mistake on the command line.
    """
    flags, overrides = parser().parse_run(arguments)
    if flags.kills < 1:
        raise UserError(f"--kills={flags.kills}: expected at least 1")
    if flags.json:
        check_parent(flags.json)
    root = Path(tempfile.mkdtemp(prefix="soak_"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(root / "cache"))
    recipe = (f"--config={flags.config.resolve()}",) if flags.config else RECIPE
    train = (str(TRAIN), *recipe, "--config.run.log_every=1 steps", *written(overrides))
    store = f"{flags.store.rstrip('/')}/{root.name}" if flags.store else ""
    soak = Soak(train, root, store, flags.limit_s, random.Random(flags.seed))
    began, runs, lost = time.monotonic(), 0, ""
    try:
        soak.undisturbed()
        while (left := flags.kills - len(soak.kills)) > 0:
            runs += 1
            if runs > 10 * flags.kills:
                raise Lost(f"{flags.kills - left} kills in {runs} runs: the runs end before them")
            soak.disturbed(runs, min(KILLS_A_RUN, left))
    except Lost as error:
        lost = str(error)
        print(f"lost: {lost}\nkept: {root}", file=sys.stderr)
    most = max((kill.repeated for kill in soak.kills), default=0)
    hits = Counter(kill.hit for kill in soak.kills)
    print(f"{len(soak.kills)} kills {dict(hits)}, at most {most} steps repeated")
    if flags.json:
        described = root / "whole" / "config.json"
        environment = read_json(described)["environment"] if described.exists() else None
        record = header("soak.py", arguments, environment) | {
            "train": shlex.join(["train.py", *train[1:]]).replace(f"{ROOT}/", ""),
            "steps": soak.plan and soak.plan.steps,
            "checkpoint_every_steps": soak.plan and _interval(soak.plan.first_stage),
            "wall_s": round(time.monotonic() - began, 1),
            "runs": runs,
            "lost": lost,
            "most_repeated": most,
            "kills": [dataclasses.asdict(kill) for kill in soak.kills],
        }
        write_json(flags.json, record)
    if lost:
        return 1
    print(f"{runs} runs with {len(soak.kills)} kills equal the one without: nothing was lost")
    shutil.rmtree(root)
    if store:
        bucket = Bucket(store)
        bucket.delete(*bucket.objects())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
