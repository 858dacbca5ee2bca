"""nestgp beside what a user would pick instead: scikit-learn, GPflow and GPyTorch, each in an environment of its own.

``python -m benchmarks peers`` measures everything; ``python -m benchmarks.peers --help`` shows how to measure a part. Every run
is a fit with hyperparameters and a prediction, the folds of a problem one after the other in a process. When that has ended they
are kept in ``NAME.partial.jsonl`` until all is done, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import problems
from benchmarks.peer_report import write_report
from benchmarks.record import RESULTS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".envs"
SCRIPTS = HERE / "peer_runs"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
THREADS = ("1", "default")
#: Seconds that a fit with prediction may take: longer than any but GPflow's VGP on USPS, which is at 30 times nestgp's by then.
LIMIT = 240.0
#: Seconds for importing and warming up, beside the limit of a run.
GRACE = 300.0
INSTALL_SECONDS = 3600.0
#: Times that a short fit is made of a problem with a single fold, the best of which counts; those of several are averaged.
REPEATS = 3
#: What a script says of every test row; too much for the reports.
PER_ROW = ("lpd", "predicted")


@dataclass(frozen=True)
class Peer:
    """A package: what pip installs (nothing: use this environment), and the methods that its script knows."""

    requirements: tuple[str, ...]
    methods: tuple[str, ...]


PEERS = {
    "nestgp": Peer((), ("ep",)),
    "sklearn": Peer(("scikit-learn",), ("ovr-laplace",)),
    "gpflow": Peer(("gpflow",), ("vgp-robustmax", "vgp-softmax", "svgp-robustmax", "svgp-softmax")),
    # This torch has a build without CUDA libraries, which are several gigabytes and of no use here.
    "gpytorch": Peer(("torch==2.13.0", "gpytorch"), ("svgp-softmax", "dirichlet")),
}


def run(arguments: list[str] | None = None) -> None:
    """Measure all that the arguments ask for (none: everything but USPS with ten classes) and write the report."""
    options = parse(arguments or [])
    stem = options.name or ("peers" if is_full(options) else "peers-part")
    checkpoint = RESULTS / f"{stem}.partial.jsonl"
    RESULTS.mkdir(exist_ok=True)
    runs = measure(options, checkpoint)
    command = " ".join(["python -m benchmarks.peers", *arguments]) if arguments else "python -m benchmarks peers"
    about = {"command": command, "run": "full" if is_full(options) else "partial", "seed": options.seed}
    about |= {"limit_seconds": options.limit, "folds": options.folds, "problems": options.problems, "peers": options.peers}
    write_report(RESULTS / stem, runs, about)
    checkpoint.unlink(missing_ok=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="nestgp beside other packages, as ratios")
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES, help="default: all but usps")
    parser.add_argument("--usps", action="store_true", help="USPS with all ten classes too")
    others = [peer for peer in PEERS if peer != "nestgp"]
    parser.add_argument("--peers", nargs="+", choices=others, default=others, help="default: all; nestgp always runs")
    parser.add_argument("--methods", nargs="+", help="only these methods of the peers, such as vgp-robustmax")
    parser.add_argument("--threads", nargs="+", choices=THREADS, default=list(THREADS))
    all_folds = problems.N_FOLDS
    parser.add_argument("--folds", type=int, choices=range(1, all_folds + 1), default=all_folds, help="per UCI problem")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds per run for fit and prediction")
    parser.add_argument("--seed", type=int, default=0, help="of every method; the folds are always the same")
    parser.add_argument("--name", help="of the files in results (default: peers, or peers-part when only a part is measured)")
    options = parser.parse_args(arguments)
    options.problems = options.problems or [name for name in problems.NAMES if name != "usps"]
    if options.usps and "usps" not in options.problems:
        options.problems.append("usps")
    options.peers = ["nestgp", *options.peers]
    known = {method for peer in PEERS.values() for method in peer.methods}
    if unknown := set(options.methods or ()) - known:
        parser.error(f"no method {', '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}")
    return options


def is_full(options: argparse.Namespace) -> bool:
    """Whether nothing was left out: every problem but usps, every peer and method, both thread settings, nobody hurried."""
    all_problems = set(problems.NAMES) - {"usps"} <= set(options.problems)
    unhurried = options.folds == problems.N_FOLDS and options.limit >= LIMIT
    all_methods = set(options.peers) == set(PEERS) and not options.methods
    return all_problems and unhurried and all_methods and set(options.threads) == set(THREADS)


def measure(options: argparse.Namespace, checkpoint: Path) -> list[dict[str, Any]]:
    """One row per fold, those of the checkpoint taken over; a fold that failed is tried again."""
    for name in options.peers:
        environment(name)
    done = read_checkpoint(checkpoint)
    todo = [list(folds) for _, folds in groupby(plan(options), key=describe)]
    start, rows = time.monotonic(), []
    if done:
        print(f"{len(done)} finished runs taken from {checkpoint}; delete it to start afresh")
    for i, folds in enumerate(todo, 1):
        missing = [task for task in folds if key(task) not in done]
        if missing:
            elapsed = int(time.monotonic() - start)
            print(f"[{elapsed // 60:3d}:{elapsed % 60:02d}] {i}/{len(todo)} {describe(folds[0])}", flush=True)
            with checkpoint.open("a") as file:
                for row in run_folds(missing, REPEATS if len(folds) == 1 else 1):
                    file.write(json.dumps(row) + "\n")
                    done[key(row)] = row
                    print(f"    {outcome(row)}", flush=True)
        rows += [done[key(task)] for task in folds]
    return rows


def plan(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What there is to run, the folds of a problem together; nestgp and its peers take turns on every problem."""
    settings = {"limit": options.limit, "seed": options.seed}
    return [
        {"problem": problem, "threads": threads, "peer": peer, "method": method, "fold": fold, **settings}
        for problem in options.problems
        for threads in options.threads
        for peer in options.peers
        for method in PEERS[peer].methods
        if peer == "nestgp" or not options.methods or method in options.methods
        for fold in range(options.folds if problems.has_folds(problem) else 1)
    ]


@cache
def environment(name: str) -> str | Exception:
    """Path of the peer's interpreter, its environment made if there is none; or why it could not be made (tried once)."""
    requirements = " ".join(PEERS[name].requirements)
    if not requirements:
        return sys.executable
    folder = ENVIRONMENTS / name
    python, stamp = str(folder / "bin" / "python"), folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements:
        return python
    print(f"installing {requirements} into {folder} (once)", flush=True)
    try:
        for command in ([sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *requirements.split()]):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        return RuntimeError(last_line(getattr(error, "stderr", None)) or str(error))
    stamp.write_text(requirements)
    return python


def run_folds(tasks: list[dict[str, Any]], repeats: int = 1) -> list[dict[str, Any]]:
    """Size of each fold, status and what the peer's process measured on the whole test set, see `run_script`."""
    first, folds = tasks[0], [problems.load(task["problem"], task["fold"]) for task in tasks]
    found = run_script(first["peer"], first["method"], folds, first["threads"], first["limit"], first["seed"], repeats)
    rows = []
    for task, problem, measured in zip(tasks, folds, found, strict=True):
        row = task | {"n": len(problem.y_train), "d": problem.X_train.shape[1]}
        row |= {"n_classes": problem.n_classes, "n_test": len(problem.y_test)}
        rows.append(row | {name: value for name, value in measured.items() if name not in PER_ROW})
    return rows


def run_script(
    peer: str, method: str, todo: Sequence[problems.Problem], threads: str | None, limit: float, seed: int, repeats: int = 1
) -> list[dict[str, Any]]:
    """For each problem a status ("ok", "timeout", or what went wrong) and, if it is "ok", what `peer_runs/driver.py` writes.

    A problem that ends the process is followed by another process for those after it.

    Parameters
    ----------
    threads : "1", "default" (the package's own choice), or None: what the thread variables of this process say.
    limit : seconds for a fit with prediction; repeats : most times that a short one is made, the best of which counts.
    """
    python = environment(peer)
    if isinstance(python, Exception):
        return [{"status": f"not installed: {python}"} for _ in todo]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"problem-{i}.npz" for i in range(len(todo))]
        for problem, file in zip(todo, files, strict=True):
            problem.write(file)
        while len(rows) < len(todo):
            left, result = [str(file) for file in files[len(rows) :]], Path(folder) / f"from-{len(rows)}.jsonl"
            command = [python, str(SCRIPTS / f"run_{peer}.py"), method, str(result), str(limit), str(seed), str(repeats), *left]
            failure = run_process(command, variables(peer, threads), limit * len(left) + GRACE)
            if result.exists():
                rows += [{"status": "ok"} | json.loads(line) for line in result.read_text().splitlines()]
            if len(rows) < len(todo):
                rows.append({"status": failure})
    return rows


def run_process(command: list[str], env: dict[str, str], limit: float) -> str:
    """Run it, and say why it has ended, if not well."""
    try:
        end = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return "timeout"
    # the driver's alarm ends a fit that takes too long
    return "timeout" if end.returncode == -signal.SIGALRM else f"failed ({end.returncode}): {last_line(end.stderr)}"


def variables(peer: str, threads: str | None) -> dict[str, str]:
    """Environment of a run: the thread variables as `run_script` says, no GPU, and for peers nothing of our own path."""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    if threads is not None:
        env = {k: v for k, v in env.items() if k not in THREAD_VARIABLES}
    if threads == "1":
        env |= dict.fromkeys(THREAD_VARIABLES, "1")
    if peer != "nestgp":
        env.pop("PYTHONPATH", None)
    return env


def read_checkpoint(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {key(row): row for row in rows if row["status"] in ("ok", "timeout")}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in ("problem", "threads", "fold", "peer", "method", "limit", "seed"))


def describe(task: dict[str, Any]) -> str:
    threads = "1 thread" if task["threads"] == "1" else "default threads"
    return f"{task['problem']}, {threads}, {task['peer']} {task['method']}"


def outcome(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return row["status"] if row["status"] != "timeout" else f"stopped after {row['limit']:g} s"
    seconds = f"fit {row['fit_seconds']:.3g} s, predict {row['predict_seconds']:.2g} s"
    return f"{seconds}, MLPD {row['mlpd']:.4f}, accuracy {row['accuracy']:.3f}, {row['peak_megabytes']:.0f} MB"


def last_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


if __name__ == "__main__":
    run(sys.argv[1:])
