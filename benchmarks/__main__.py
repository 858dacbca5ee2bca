"""``python -m benchmarks [NAME …]``: run the named benchmarks, or all of them; ``--help`` tells what else there is."""

import argparse
import ast
import importlib
import sys
from pathlib import Path

NAMES = (
    "floor", "steps", "scaling", "memory", "prediction", "wine", "startup", "busy", "choose", "iteration", "exact",
    "tierney_kadane", "methods", "search", "precision", "sampling", "usps", "peers",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run, list or check; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed, memory and accuracy, as ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="show the names and what each measures")
    parser.add_argument("--check", action="store_true", help="run nothing; fail if a latest ratio is worse than it used to be")
    options = parser.parse_args(arguments)
    if options.names and (options.list or options.check):
        parser.error("--list and --check take no names")
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    if options.list:
        print("\n".join(f"{name:<15} {summary(name)}" for name in NAMES))
        return 0
    if options.check:
        return check()
    for name in options.names or NAMES:
        importlib.import_module(f"benchmarks.{name}").run()
    return 0


def summary(name: str) -> str:
    """First line of the benchmark's docstring, read without importing it."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def check() -> int:
    """1 if a latest ratio in the history is worse than it used to be, else 0."""
    from benchmarks.history import read, worse
    from benchmarks.record import HISTORY

    runs = read(HISTORY)
    lines = worse(runs)
    print("\n".join(lines) or f"nothing is worse: {len(runs)} runs in {HISTORY.name}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
