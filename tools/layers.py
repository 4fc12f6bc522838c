"""The map of the package: who imports whom. It fails on an arrow that points up, or into another's private module.

python tools/layers.py
"""

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "attsvm"
LAYERS = (
    ("errors", "tolerances", "_version"),
    ("captures", "checks", "derivatives", "frames", "interrupts", "memory", "named", "native", "progress"),
    ("schema",),
    ("files",),
    ("identity", "pages", "plots", "tables", "tokenizers"),
    ("geometry",),
    ("data",),
    ("svm", "objective"),
    ("dynamics",),
    ("diagnostics",),
    ("models", "optim", "paths", "search", "sweeps", "text"),
    ("auditing", "embeddings", "transformer"),
    ("experiments",),
    ("report",),
    ("cli",),
    ("__init__", "__main__"),
)
"""From the lowest to the highest; a package imports from lower layers and from its own files only."""


def imports(root: Path = ROOT) -> dict[str, Counter[str]]:
    """By package, how often it imports each module of attsvm, as a dotted name without "attsvm."."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "attsvm":
                base = node.module.split(".")[1:]
                modules = [base] if base else []
                modules += [[*base, name.name] for name in node.names if _is_module(root, [*base, name.name])]
            elif isinstance(node, ast.Import):
                modules = [name.name.split(".")[1:] for name in node.names if name.name.startswith("attsvm.")]
            else:
                continue
            for module in modules:
                if module[0] != parts[0]:
                    found[parts[0]][".".join(module)] += 1
    return found


def problems(found: dict[str, Counter[str]]) -> list[str]:
    """Arrows that must not be there, in words."""
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [f"{name} is in no layer" for name in found if name not in level]
    for package, modules in found.items():
        for module in modules:
            target, *inner = module.split(".")
            if any(part.startswith("_") for part in inner):
                wrong.append(f"{package} imports the private module {module}")
            if target not in level:
                wrong.append(f"{target} is in no layer")
            elif package in level and level[target] >= level[package]:
                wrong.append(f"{package} imports {module}, which is not below it")
    return sorted(set(wrong))


def _is_module(root: Path, parts: list[str]) -> bool:
    path = root.joinpath(*parts)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def main() -> int:
    found = imports()
    for number, layer in enumerate(LAYERS):
        for package in layer:
            if package in found:
                below = sorted({module.split(".")[0] for module in found[package]})
                print(f"{number:2}  {package:12} ← {', '.join(below)}")
    wrong = problems(found)
    print("\n".join(wrong) if wrong else "no arrow points up, none into a private module")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
