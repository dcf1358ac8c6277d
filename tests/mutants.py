"""Does the suite notice a fault? Change one operator, constant or condition at a time, and run it.

    python -m tests.mutants --seed 1 --count 60 largebatch/optim largebatch/data/order.py

Each mutant is made in a copy of the repository. Its line says `killed` (a test failed), `timeout`
(which counts as killed) or `SURVIVED`; the exit status is 1 if one survived.
"""

import argparse
import ast
import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.Pow: "*", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=",
    ast.NotEq: "==", ast.And: "or", ast.Or: "and", ast.Is: "is not", ast.IsNot: "is",
    ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    path: pathlib.Path
    line: int
    start: int  # bytes from the beginning of the file
    end: int
    old: str
    new: str

    def __str__(self):
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.old!r} -> {self.new!r}"

    def write(self, root: pathlib.Path):
        text = self.path.read_bytes()
        changed = text[: self.start] + self.new.encode() + text[self.end :]
        (root / self.path.relative_to(ROOT)).write_bytes(changed)


def mutants_of(path: pathlib.Path) -> list[Mutant]:
    """All mutants of one module: of operators, numbers, truth values and conditions."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []

    def add(line, start, end, new):
        found.append(Mutant(path, line, start, end, text[start:end].decode(), new))

    def begin(node):
        return starts[node.lineno - 1] + node.col_offset

    def end(node):
        return starts[node.end_lineno - 1] + node.end_col_offset

    def operator(node, left, right):
        between = text[end(left) : begin(right)].decode()
        word = between.strip(" ()\n\\")
        if "#" not in between and word and type(node) in OPERATORS:
            start = end(left) + between.index(word)
            add(left.end_lineno, start, start + len(word), OPERATORS[type(node)])

    def visit(node):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.arguments):
            return  # messages, annotations and defaults
        match node:
            case ast.BinOp() if not isinstance(node.left, ast.Constant | ast.JoinedStr):
                operator(node.op, node.left, node.right)
            case ast.Compare():
                for op, left, right in zip(
                    node.ops, [node.left, *node.comparators], node.comparators, strict=False
                ):
                    operator(op, left, right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    operator(node.op, left, right)
            case ast.If() | ast.IfExp() | ast.While():
                test = node.test
                add(test.lineno, begin(test), end(test),
                    f"not ({text[begin(test) : end(test)].decode()})")  # fmt: skip
            case ast.Constant(value=bool()):
                add(node.lineno, begin(node), end(node), str(not node.value))
            case ast.Constant(value=int() | float()):
                add(node.lineno, begin(node), end(node), repr(node.value + 1))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(text))
    return [each for each in found if "\n" not in each.old]


def tests_of(path: pathlib.Path) -> list[str]:
    """The folder that mirrors the module, and the proofs that cover the whole step."""
    own = ROOT / "tests" / pathlib.Path(*path.relative_to(ROOT).parts[1:-1])
    whole = ["tests/properties", "tests/test_reference.py", "tests/training"]
    return [str(own.relative_to(ROOT)), *(each for each in whole if each != f"tests/{own.name}")]


def outcome(mutant: Mutant, tests: list[str], seconds: float) -> str:
    """Run the tests on the mutant until one fails."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "repository"
        shutil.copytree(
            ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*")
        )
        mutant.write(root)
        environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
        cache = f"cache_dir={ROOT / '.pytest_cache'}"  # compiled programs of earlier runs
        command = [sys.executable, "-m", "pytest", "-x", "-o", cache, *tests]
        with subprocess.Popen(
            command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return "timeout"
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if process.returncode == 0:
            return "SURVIVED"
        if not failed:
            raise SystemExit(f"pytest could not run {tests}:\n{output}")
        return "killed by " + failed[0].split(" - ")[0].split(" ", 1)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", type=pathlib.Path, help="modules or packages to change")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument("--count", type=int, default=10, help="number of mutants")
    parser.add_argument("--skip", type=int, default=0, help="mutants of an earlier, cut-off call")
    parser.add_argument("--tests", nargs="*", help="in place of the tests that mirror the module")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one mutant")
    arguments = parser.parse_args()
    modules = [
        module
        for path in map(pathlib.Path.resolve, arguments.paths)
        for module in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
    ]
    everything = [mutant for module in modules for mutant in mutants_of(module)]
    count = min(arguments.count, len(everything))
    chosen = random.Random(arguments.seed).sample(everything, count)[arguments.skip :]
    survived = 0
    for mutant in chosen:
        result = outcome(mutant, arguments.tests or tests_of(mutant.path), arguments.timeout)
        survived += result == "SURVIVED"
        print(f"{result}   {mutant}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} killed, seed {arguments.seed}")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
