"""``python -m experiments NAME …`` (``nestgp reproduce NAME …``): run experiments of the paper, then write the report.

NAME is fig1 to fig10, table1, table2, all, or report (nothing is run); ``--help`` tells what else there is.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common import HERE, NAMES, RESULTS, Experiment, one_command

#: Experiments whose checkpoints are under another name, because they share them.
SHARED = dict.fromkeys(("fig1", "fig2", "fig3"), "toy") | dict.fromkeys(("fig4", "fig5"), "usps_marginals")


def main(arguments: Sequence[str]) -> int:
    """Run, list or report; the exit status is 1 if an experiment failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    known = (*NAMES, "all", "report")
    if unknown := sorted(set(options.names) - set(known)):
        parser.error(f"no experiment {', '.join(unknown)}: choose from {', '.join(known)}")
    if options.list or not options.names:
        print(listing())
        return 0
    chosen = [name for name in NAMES if name in options.names or "all" in options.names]
    experiments = [
        Experiment(name, one_command(name, options.seed, options.quick), options.seed, options.quick, options.results)
        for name in chosen
    ]
    if options.fresh:
        forget(experiments)
    failures = run(experiments)
    write_report(options.results, options.quick)
    for name, reason in failures.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
    return int(bool(failures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nestgp reproduce", description="The paper's figures and tables, made again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run; all; report: write the report only")
    parser.add_argument("--list", action="store_true", help="show the names and what each shows")
    parser.add_argument("--quick", action="store_true", help="a smaller version of each: minutes, and not a result")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of results, figures, checkpoints and report")
    parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on from checkpoints")
    return parser


def listing() -> str:
    """A line for each name."""
    more = {"all": "All of these, in this order, and the report.", "report": "Only the report, from the results that exist."}
    lines = {name: summary(name) for name in NAMES} | more
    return "\n".join(f"{name:<8}{line}" for name, line in lines.items())


def summary(name: str) -> str:
    """First line of the experiment's docstring, read without importing it."""
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def module(name: str) -> Any:
    """The experiment's module, which has a `run`."""
    return importlib.import_module(f"experiments.{name}")


def forget(experiments: Sequence[Experiment]) -> None:
    """Clear the checkpoints of all of them once, before any is run: later ones go on from those of earlier ones."""
    for experiment in experiments:
        name = SHARED.get(experiment.name, experiment.name)
        Experiment(name, "", experiment.seed, experiment.quick, experiment.results).checkpoint.clear()


def run(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Run one after the other; name → first line of why it failed, which does not stop the others."""
    failures = {}
    for experiment in experiments:
        print(f"{experiment.stem}: {summary(experiment.name)}", file=sys.stderr, flush=True)
        try:
            module(experiment.name).run(experiment)
        except Exception as error:
            traceback.print_exc()
            failures[experiment.name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return failures


def write_report(results: Path, quick: bool) -> None:
    """DIRECTORY/report.html; for full results in the source tree also the page of the documentation."""
    from experiments import report

    print(f"report: {report.write_html(results)}")
    if not quick and results.resolve() == RESULTS.resolve():
        print(f"claims: {report.write_page(results, HERE.parent / 'docs' / 'paper-claims.md')}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
