"""Mutation check: break one place of the source at a time, run the tests that reach it, list what nobody noticed.

    python tools/mutate.py --count 40 --seed 0 --workers 2 svm dynamics
    python tools/mutate.py --again mutants.jsonl svm            # only what survived there

A mutant changes a comparison, an operator, a constant, a pair of twin functions (amin and amax, …) or negates a
condition; `--count` of them are drawn per package. First every test runs once on the source as it is, and the lines
that it reaches are noted. A test that fails there, or takes longer than `--longest`, takes no part. A mutant is killed
if a test that reaches its place fails, or takes far longer than before. What survives is a missing test, or changes
nothing (a tolerance, a message): look at each. This takes minutes per ten mutants and is not part of `make test`.
"""

import argparse
import ast
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGES = ("geometry", "svm", "objective", "dynamics", "diagnostics", "paths", "optim")
TESTS = {"objective": ["objective", "diagnostics"], "dynamics": ["dynamics", "test_own_objects.py"]}
"""Tests that look at a package, where they are not in the folder of its name."""
SKIPPED = ("_triton.py", "_tables.py", "_fused.py")
"""Files that run on a GPU alone, as functions named _fused_… do."""
MEMORY = 32 << 30
"""Bytes of addresses that one mutant may take."""
ENOUGH = 50
"""Calls of a function without a new line, after which a test is taken to reach no other line of it."""
LOADED = ("torch", "numpy", "scipy.optimize", "mpmath", "hypothesis", "pytest", "matplotlib", "transformers")
"""What tests import: loaded once, before the processes part."""
TWINS = {"amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
TWINS |= {"argmin": "argmax", "argmax": "argmin", "exp": "expm1", "log": "log1p", "clamp_min": "clamp_max"}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr}
OPERATORS |= {ast.BitOr: ast.BitAnd, ast.Pow: ast.Mult}


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that can be changed; type hints, docstrings and messages are left alone."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node] if node.name.startswith("_fused_") else [node.returns, *node.decorator_list]
        elif isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            parts = [node]
        skipped |= {id(x) for part in parts if part is not None for x in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        twin = isinstance(node, ast.Attribute) and node.attr in TWINS
        compared = isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS
        combined = isinstance(node, ast.BinOp) and type(node.op) in OPERATORS
        if number or twin or compared or combined or isinstance(node, ast.IfExp | ast.If):
            yield node


def change(node: ast.AST) -> str:
    """Change the node in place; returns what it was and is."""
    before = ast.unparse(node.test if isinstance(node, ast.If) else node)
    if isinstance(node, ast.Constant):
        value = node.value
        assert isinstance(value, int | float)
        node.value = value + 1 if isinstance(value, int) else 3 * value + (value == 0)
    elif isinstance(node, ast.Attribute):
        node.attr = TWINS[node.attr]
    elif isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return f"{before}  →  {ast.unparse(node.test if isinstance(node, ast.If) else node)}"


def span(tree: ast.Module, node: ast.AST) -> tuple[int, int] | None:
    """Lines that run when the node does: its statement, of a block only the head; None if it runs at import."""
    best, inside = None, False
    line: int = node.lineno  # pyright: ignore[reportAttributeAccessIssue]
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt) or not any(x is node for x in ast.walk(statement)):
            continue
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else statement.end_lineno or line
        if isinstance(statement, ast.FunctionDef):
            inside = line >= statement.body[0].lineno
        else:
            best = (statement.lineno, max(last, line))
    return best if inside else None


@dataclass
class Mutant:
    """One changed place, and what became of it."""

    package: str
    path: str
    number: int
    line: int
    words: str
    result: str = ""
    test: str = ""
    tests: int = 0
    seconds: float = 0.0

    @staticmethod
    def of(package: str, path: Path, number: int) -> "Mutant":
        node = list(places(ast.parse(path.read_text())))[number]
        return Mutant(package, str(path.relative_to(ROOT)), number, getattr(node, "lineno", 0), change(node))


def drawn(packages: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """Places drawn evenly from each package; the packages take turns, so that a run cut short is fair to each."""
    columns = []
    for package in packages:
        every = []
        for path in sorted((SOURCE / "attsvm" / package).glob("*.py")):
            if path.name not in SKIPPED:
                every += [(path, number) for number, _ in enumerate(places(ast.parse(path.read_text())))]
        chosen = random.Random(f"{package} {seed}").sample(every, min(count, len(every)))
        columns.append([Mutant.of(package, *place) for place in chosen])
    return [column[k] for k in range(count) for column in columns if k < len(column)]


def survivors(path: Path, packages: Iterable[str]) -> list[Mutant]:
    """Those of an earlier run that are still there, wherever their line is now."""
    found = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row.get("result") != "survived" or row["package"] not in packages:
            continue
        file = ROOT / row["path"]
        now = [Mutant.of(row["package"], file, k) for k, _ in enumerate(places(ast.parse(file.read_text())))]
        same = [mutant for mutant in now if mutant.words == row["words"]]
        found += sorted(same, key=lambda mutant: abs(mutant.line - row["line"]))[:1]
    return found


class Noted:
    """A plugin of pytest that keeps the outcome of each test and its seconds, and takes only the chosen ones."""

    def __init__(self, source: str, chosen: list[str] | None = None) -> None:
        self.source, self.chosen = source, chosen
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self.chosen is not None:
            found = {item.nodeid: item for item in items}
            items[:] = [found[name] for name in self.chosen if name in found]

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self.tests.setdefault(report.nodeid, {"passed": True, "seconds": 0.0})
        test["seconds"] += report.duration
        test["passed"] &= report.passed


class Traced(Noted):
    """Also notes the lines of the source that each test reaches."""

    def trace(self, frame: Any, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self.source) or self.calls[code] > ENOUGH:
            return None
        line = (code.co_filename[len(self.source) + 1 :], frame.f_lineno)
        self.calls[code] = 0 if line not in self.lines else self.calls[code] + (event == "call")
        self.lines.add(line)
        return self.trace

    def pytest_runtest_logstart(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.calls: Counter[Any] = Counter()
        sys.settrace(self.trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        self.tests[nodeid]["lines"] = sorted(self.lines)


def tested(folder: Path, source: Path, files: list[str], chosen: list[str] | None) -> None:
    """In a process of its own: run tests on a source, and leave what came of them in folder/noted.json."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    searched = os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {"PYTHONPATH": searched, "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    sys.path.insert(0, str(source))
    os.chdir(ROOT)
    pytest = importlib.import_module("pytest")
    noted = (Traced if chosen is None else Noted)(str(source), chosen)
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "tmp")] + ["-x"] * (chosen is not None)
    code = pytest.main([*options, *files], plugins=[noted])
    (folder / "noted.json").write_text(json.dumps({"code": int(code), "tests": noted.tests}))
    os._exit(0)


def at_once(tasks: list[tuple[Any, Callable[[Path], None], float]], workers: int) -> Iterator[tuple[Any, Path, float]]:
    """Run each task in a process with a folder of its own; yields its key, folder and seconds when it has ended.

    A task that takes longer than its limit is ended, with all that it has started.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(tasks)), []
    while waiting or running:
        while waiting and len(running) < workers:
            key, work, limit = waiting.pop()
            folder = Path(tempfile.mkdtemp(prefix="mutant-"))
            process = context.Process(target=work, args=(folder,))
            process.start()
            running.append((key, folder, process, time.monotonic(), limit))
        time.sleep(0.02)
        for one in list(running):
            key, folder, process, start, limit = one
            seconds = time.monotonic() - start
            if process.exitcode is None and seconds < limit:
                continue
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.join()
            running.remove(one)
            yield key, folder, seconds
            shutil.rmtree(folder, ignore_errors=True)


def baseline(files: list[str], workers: int) -> dict[str, dict[str, Any]]:
    """Every test on the source as it is."""

    def task(file: str) -> Callable[[Path], None]:
        return lambda folder: tested(folder, SOURCE, [file], None)

    tests = {}
    for file, folder, seconds in at_once([(file, task(file), 600.0) for file in files], workers):
        try:
            noted = json.loads((folder / "noted.json").read_text())
        except FileNotFoundError:
            noted = {"code": -1, "tests": {}}
        tests |= noted["tests"]
        bad = [name for name, test in noted["tests"].items() if not test["passed"]]
        print(f"{file}: {len(noted['tests'])} tests in {seconds:.0f} s, code {noted['code']}", flush=True)
        if noted["code"] not in (0, 5):
            output = folder / "output"
            print(*bad, output.read_text()[-2000:] if output.exists() else "", sep="\n", flush=True)
    return tests


def by_file(tests: dict[str, dict[str, Any]], longest: float) -> dict[str, dict[str, list[int]]]:
    """By file of the source, the tests that reach it and the lines that they reach."""
    index: dict[str, dict[str, list[int]]] = {}
    for test, noted in tests.items():
        if noted["passed"] and noted["seconds"] <= longest:
            for name, line in noted["lines"]:
                index.setdefault(name, {}).setdefault(test, []).append(line)
    return index


def reaching(
    mutant: Mutant, tests: dict[str, dict[str, Any]], index: dict[str, dict[str, list[int]]], budget: float
) -> list[str]:
    """Tests that reach the place, those of its package first and short ones first, of at most `budget` seconds."""
    path = ROOT / mutant.path
    tree = ast.parse(path.read_text())
    lines, name = span(tree, list(places(tree))[mutant.number]), str(path.relative_to(SOURCE))
    own = tuple(f"tests/{folder}" for folder in TESTS.get(mutant.package, [mutant.package]))
    found = []
    for test, reached in index.get(name, {}).items():
        if lines is None or any(lines[0] <= line <= lines[1] for line in reached):
            seconds = tests[test]["seconds"]
            found.append(((not test.startswith(own), seconds > 1, test.partition("::")[0], seconds), test))
    chosen, total = [], 0.0
    for _, test in sorted(found):
        total += tests[test]["seconds"]
        if total > budget and chosen:
            break
        chosen.append(test)
    return chosen


def mutate(mutant: Mutant, chosen: list[str], folder: Path) -> None:
    source = folder / "src"
    shutil.copytree(SOURCE, source)
    tree = ast.parse((ROOT / mutant.path).read_text())
    change(list(places(tree))[mutant.number])
    (source / Path(mutant.path).relative_to("src")).write_text(ast.unparse(tree))
    tested(folder, source, sorted({test.partition("::")[0] for test in chosen}), chosen)


def judged(mutants: list[Mutant], tests: dict[str, dict[str, Any]], options: argparse.Namespace) -> Iterator[Mutant]:
    """Each mutant with its result, as it comes."""

    def task(mutant: Mutant, chosen: list[str]) -> Callable[[Path], None]:
        return lambda folder: mutate(mutant, chosen, folder)

    tasks, index = [], by_file(tests, options.longest)
    for mutant in mutants:
        chosen = reaching(mutant, tests, index, options.budget)
        mutant.tests = len(chosen)
        limit = 30 + 5 * sum(tests[test]["seconds"] for test in chosen)
        if chosen:
            tasks.append((mutant, task(mutant, chosen), limit))
        else:
            mutant.result = "survived"
            yield mutant
    for mutant, folder, seconds in at_once(tasks, options.workers):
        mutant.seconds = round(seconds, 1)
        try:
            noted = json.loads((folder / "noted.json").read_text())
        except FileNotFoundError:
            noted = {"code": 1, "tests": {"no answer: too long, or the process died": {"passed": False}}}
        failed = [test for test, outcome in noted["tests"].items() if not outcome["passed"]]
        mutant.result = "killed" if noted["code"] else "survived"
        mutant.test = failed[0] if failed else ""
        yield mutant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--count", type=int, default=20, help="mutants per package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="only the survivors in this file of results")
    parser.add_argument("--tests", nargs="+", help="test files or folders (default: those of the packages)")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds; longer tests take no part")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests per mutant")
    parser.add_argument("--baseline", type=Path, help="keep what the tests reach in this file, or read it from there")
    parser.add_argument("--out", type=Path, help="a line of JSON per mutant, written at once")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in LOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not there: tests that need it take no part", flush=True)
    mutants = survivors(options.again, options.packages) if options.again else []
    mutants = mutants or drawn(options.packages, options.count, options.seed)
    asked = options.tests or [f"tests/{x}" for package in options.packages for x in TESTS.get(package, [package])]
    files = [ROOT / name for name in asked if name.endswith(".py")]
    files += [path for name in asked for path in (ROOT / name).glob("test_*.py")]
    names = sorted({str(path.relative_to(ROOT)) for path in files})
    if options.baseline is not None and options.baseline.exists():
        tests = json.loads(options.baseline.read_text())
    else:
        tests = baseline(names, options.workers)
    if options.baseline is not None:
        options.baseline.write_text(json.dumps(tests))
    done: list[Mutant] = []
    for mutant in judged(mutants, tests, options):
        done.append(mutant)
        where = f"{mutant.path}:{mutant.line}"
        print(f"{len(done):3}/{len(mutants)}  {mutant.result:8}  {where}  {mutant.words}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(mutant) | {"seed": options.seed}, ensure_ascii=False) + "\n")
    for package in options.packages:
        results = [mutant.result for mutant in done if mutant.package == package]
        print(f"{package}: {results.count('killed')} of {len(results)} killed")


if __name__ == "__main__":
    main()
