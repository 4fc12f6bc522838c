"""Mutation check: break one place of the source at a time, run its tests, and list what nobody noticed.

    python tools/mutate.py --count 40 --seed 0 svm dynamics

A mutant changes a comparison, an operator, a constant, a pair of twin functions (amin and amax, …) or negates a
condition. It is killed if the tests of its package fail. What survives is a missing test, or changes nothing
(a tolerance, a message): look at each. This takes minutes per ten mutants and is not part of `make test`.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("geometry", "svm", "objective", "dynamics", "diagnostics", "paths", "optim")
TESTS = {
    "objective": ["objective", "diagnostics"],
    "dynamics": ["dynamics", "test_own_objects.py"],
    "svm": ["svm"],
}
"""Tests that look at a package, where they are not in the folder of its name."""
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
            parts = [node.returns, *node.decorator_list]
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


def mutants(packages: list[str], count: int, seed: int) -> list[tuple[Path, int]]:
    """Files and numbers of places, drawn evenly over all places."""
    every = []
    for package in packages:
        for path in sorted((ROOT / "src" / "attsvm" / package).glob("*.py")):
            every += [(path, number) for number, _ in enumerate(places(ast.parse(path.read_text())))]
    return random.Random(seed).sample(every, min(count, len(every)))


def survives(path: Path, number: int, timeout: float) -> tuple[bool, str]:
    """Do the tests pass with this place changed? And what was changed."""
    tree = ast.parse(path.read_text())
    node = list(places(tree))[number]
    line, words = getattr(node, "lineno", 0), change(node)
    package = path.parent.name
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / path.relative_to(ROOT / "src")).write_text(ast.unparse(tree))
        tests = [str(ROOT / "tests" / name) for name in TESTS.get(package, [package])]
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        try:
            result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout)
            passed = result.returncode == 0
        except subprocess.TimeoutExpired:
            passed = False
    return passed, f"{path.relative_to(ROOT)}:{line}  {words}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which a mutant counts as killed")
    options = parser.parse_args()
    chosen = mutants(options.packages, options.count, options.seed)
    alive = 0
    for done, (path, number) in enumerate(chosen, start=1):
        passed, words = survives(path, number, options.timeout)
        alive += passed
        print(f"{done:3}/{len(chosen)}  {'SURVIVED' if passed else 'killed  '}  {words}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed")


if __name__ == "__main__":
    main()
