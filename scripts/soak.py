"""Kill a training at random moments, again and again, and prove that nothing was lost.

    python scripts/soak.py --kills=50 --json=records/soak.json
    python scripts/soak.py --kills=10 --config=configs/mine.py --config.batch.microbatch=2

One run goes through undisturbed, and a second one to see that the recipe repeats itself bit by bit
here. Then the same command runs in other directories and gets SIGKILL: at any time, as a checkpoint
is being written, and while it starts; it is started again as often, without anything being mended.
Parameters, statistics and velocities must come out bitwise equal, and so must every row of the
history. With --processes one process of several is killed. Give batch.microbatch if the recipe
leaves it to the memory that is free. Exit code 1 where something was lost; its directory is kept.
"""

import dataclasses
import datetime
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from soaking.evidence import Evidence, checkpoints, differences, gather, last_row, plan_of
from soaking.kills import Kill, hit, resume, table
from soaking.moments import Moment, draw
from soaking.turns import ROOT, Turn, take_turn

from largebatch.cli import Parser, written
from largebatch.config import Plan
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json

TRAIN = ROOT / "train.py"
RECIPE = Path("configs/digits.py")
OPTIONS = (
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
"""Of the recipe, unless another is given: some 20 seconds on a laptop, with two microbatches."""
KILLS_A_RUN = 5


class Lost(Exception):
    """A run did not come out as it should; the message has a line for each reason."""


@dataclasses.dataclass
class Soak:
    """A soak under way.

    Attributes:
        train: the command, from train.py on.
        processes: of each run.
        root: where the runs are.
        limit_s: seconds after which a turn is taken to hang.
        rng: where chance comes from.
    """

    train: tuple[str, ...]
    processes: int
    root: Path
    limit_s: float
    rng: random.Random
    plan: Plan | None = None
    whole: Evidence | None = None
    start_s: float = 0.0
    steady_s: float = 0.0
    kills: list[Kill] = dataclasses.field(default_factory=list)

    def undisturbed(self) -> None:
        """Run twice without a kill, for what the others are compared to and for the times.

        Raises:
            Lost: a run fails, or the second differs from the first.
        """
        for name in ("whole", "again"):
            turn = self._turn(self.root / name, 1, None)
            if turn.code != 0:
                raise Lost(f"it ends with code {turn.code} undisturbed:\n{turn.log[-2000:]}")
            found = gather(self.root / name)
            if self.whole is None:
                self.whole, self.plan = found, plan_of(self.root / name)
            elif said := differences(self.whole, found):
                raise Lost("\n".join(["two runs without a kill differ:", *said]))
        # Of the second, whose programs were compiled before.
        self.start_s = turn.first_row_s or turn.after_s
        self.steady_s = turn.after_s - self.start_s

    def broken(self, number: int, most: int) -> None:
        """One run, killed up to ``most`` times and then left alone to its end.

        Raises:
            Lost: with all that is wrong.
        """
        workdir, waiting, turns = self.root / f"run_{number}", [], 0
        end = len(self.kills) + most
        interval = max(stage.checkpoint_every_steps for stage in self.plan.stages)
        while True:
            turns += 1
            kept = checkpoints(workdir)
            left = 1 - (kept[-1] if kept else 0) / self.plan.steps
            moment = None
            if len(self.kills) < end:
                moment = draw(
                    self.rng,
                    start_s=self.start_s,
                    left_s=left * self.steady_s,
                    saves_left=round(left * self.plan.steps / interval),
                )
            turn = self._turn(workdir, turns, moment)
            problems = []
            if turn.resumed is not None:
                problems = resume(waiting, turn.resumed, interval)
                waiting = []
            if turn.code:
                problems.append(f"turn {turns} ends with code {turn.code}:\n{turn.log[-2000:]}")
            if turn.code == 0:
                problems += differences(self.whole, gather(workdir))
            if problems:
                raise Lost("\n".join([f"run {number}, kept in {workdir}:", *problems]))
            if turn.code == 0:
                shutil.rmtree(workdir)
                return
            row, kept = last_row(workdir), checkpoints(workdir)
            kill = Kill(
                run=number,
                turn=turns,
                aim=moment.aim,
                after_s=round(turn.after_s, 3),
                process=turn.killed,
                hit=hit(turn, row, self.plan),
                row=row,
                checkpoint=kept[-1] if kept else 0,
            )
            self.kills.append(kill)
            waiting.append(kill)
            print(
                f"run {number} turn {turns}: killed after {kill.after_s:.2f} s at {kill.hit}, "
                f"step {row}, newest checkpoint {kill.checkpoint}",
                flush=True,
            )

    def _turn(self, workdir: Path, number: int, moment: Moment | None) -> Turn:
        log = self.root / f"{workdir.name}_{number}.log"
        try:
            return take_turn(
                self.train,
                workdir,
                log,
                moment,
                processes=self.processes,
                limit_s=self.limit_s,
                rng=self.rng,
            )
        except TimeoutError as error:
            raise Lost(f"turn {number} in {workdir}: {error}; it printed {log}") from error


def parser() -> Parser:
    """The command line."""
    made = Parser(__doc__)
    made.add_argument("--kills", type=int, default=50, help="how many (50)")
    made.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    made.add_argument("--processes", type=int, default=1, help="processes of a run (1)")
    made.add_recipe("recipe: a name or a file (digits, shortened)", optional=True)
    made.add_argument("--limit_s", type=float, default=600.0, help="most seconds of a turn (600)")
    made.add_record()
    return made


def main(arguments: Sequence[str]) -> int:
    """Soak; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Soak and report.

    Returns:
      1 where something was lost.

    Raises:
      UserError: a mistake on the command line.
    """
    flags, overrides = parser().parse_run(arguments)
    options = written(overrides)
    if flags.kills < 1 or flags.processes < 1:
        raise UserError("--kills and --processes must be at least 1")
    if flags.json:
        check_parent(flags.json)
    root = Path(tempfile.mkdtemp(prefix="soak_"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(root / "cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    recipe = (f"--config={_from_root(flags.config)}",) if flags.config else _default()
    soak = Soak(
        train=(str(TRAIN), *recipe, "--config.run.log_every=1 steps", *options),
        processes=flags.processes,
        root=root,
        limit_s=flags.limit_s,
        rng=random.Random(flags.seed),
    )
    began, runs, lost = time.monotonic(), 0, ""
    try:
        soak.undisturbed()
        while (left := flags.kills - len(soak.kills)) > 0:
            runs += 1
            if runs > 10 * flags.kills:
                raise Lost(f"{flags.kills - left} kills in {runs} runs: they end before them")
            soak.broken(runs, min(KILLS_A_RUN, left))
    except Lost as error:
        lost = str(error)
        print(f"lost: {lost}", file=sys.stderr)
    print(table(soak.kills))
    if flags.json:
        write_json(flags.json, _record(soak, arguments, runs, lost, began))
    if lost:
        return 1
    print(f"{runs} runs with {len(soak.kills)} kills equal the one without: nothing was lost")
    shutil.rmtree(root)
    return 0


def _from_root(path: Path) -> Path:
    """The path as train.py is given it, which runs in the root of the repository."""
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _default() -> tuple[str, ...]:
    return (f"--config={RECIPE}", *OPTIONS)


def _record(
    soak: Soak, arguments: Sequence[str], runs: int, lost: str, began: float
) -> dict[str, object]:
    """What is kept."""
    described = soak.root / "whole" / "config.json"
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "scripts/soak.py", *arguments]),
        "train": shlex.join(["train.py", *soak.train[1:]]),
        "processes": soak.processes,
        "environment": (
            json.loads(described.read_text())["environment"] if described.exists() else None
        ),
        "steps": soak.plan and soak.plan.steps,
        "checkpoint_every_steps": soak.plan and soak.plan.first_stage.checkpoint_every_steps,
        "start_s": round(soak.start_s, 2),
        "steady_s": round(soak.steady_s, 2),
        "wall_s": round(time.monotonic() - began, 1),
        "runs": runs,
        "lost": lost,
        "most_repeated": max((kill.repeated or 0 for kill in soak.kills), default=0),
        "kills": [dataclasses.asdict(kill) for kill in soak.kills],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
