"""What the experiments share: results with all that is needed to repeat them, figures, checkpoints, progress, comparison.

An experiment is a set of named tasks whose values are kept on disk, so that an interrupted run goes on:

    experiment = Experiment.from_command_line("table_2", "Predictive performance on the paper's data sets.")
    values = experiment.run({"glass/ep": lambda: …, "glass/vb": lambda: …})
    experiment.save(payload)
    experiment.save_figure(figure)

Scores and intervals (Bayesian bootstrap, mean log predictive density) are in `nestgp.diagnostics`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TextIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc

from nestgp.diagnostics import Interval, compare_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results"
#: In the order of a run of all: what takes little time first, figures 8 and 9 after the table that they are drawn from.
NAMES = ("fig1", "fig2", "fig3", "fig7", "fig4", "fig5", "fig6", "table1", "table2", "fig8", "fig9", "fig10")
PACKAGES = ("nestgp", "numpy", "scipy", "scikit-learn", "numba")
QUICK_NOTE = "quick run: smaller than the experiment, not a result"
SECONDS_BETWEEN_LINES = 1.0
#: An innermost list of numbers in indented JSON, which is read more easily on one line.
NUMBERS = re.compile(r"\[\s[-+\d.eE,\s]+\]")


# ------------------------------------------------------------------------------------------------- an experiment


@dataclass(frozen=True)
class Experiment:
    """One run: its name, seed and size, and where things go.

    A quick run has results, figures and checkpoints of its own (`NAME-quick`), so that it never replaces a full one.
    """

    name: str
    command: str
    seed: int = 0
    quick: bool = False
    results: Path = RESULTS

    @classmethod
    def from_command_line(cls, name: str, description: str, argv: Sequence[str] | None = None) -> Experiment:
        """Options that every experiment has: --quick, --seed, --results, --fresh (forget the checkpoints)."""
        parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=description)
        parser.add_argument("--quick", action="store_true", help="a smaller version that ends within minutes")
        parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
        parser.add_argument("--results", type=Path, default=RESULTS, help="directory of results, figures and checkpoints")
        parser.add_argument("--fresh", action="store_true", help="begin anew instead of going on from checkpoints")
        options = parser.parse_args(argv)
        experiment = cls(name, one_command(name, options.seed, options.quick), options.seed, options.quick, options.results)
        if options.fresh:
            experiment.checkpoint.clear()
        return experiment

    @property
    def stem(self) -> str:
        return f"{self.name}-quick" if self.quick else self.name

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.results / ".checkpoints" / f"{self.stem}-seed{self.seed}")

    def run(self, tasks: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Value of each task, computed now or by an earlier run; progress on stderr."""
        values, checkpoint, progress = {}, self.checkpoint, Progress(len(tasks), self.stem)
        for key, compute in tasks.items():
            stored = key in checkpoint
            values[key] = checkpoint.get(key, compute)
            progress.step(key, stored=stored)
        return values

    def save(self, payload: Any, caveats: Sequence[str] = ()) -> Path:
        """Write the results, see `save_result`."""
        return save_result(self.stem, payload, self.command, self.seed, self.quick, caveats, self.results)

    def save_figure(self, figure: Figure, part: str = "", caveats: Sequence[str] = ()) -> Path:
        """Write the figure, or one `part` of several, see `save_figure`."""
        stem = f"{self.stem}-{part}" if part else self.stem
        return save_figure(figure, self.results / stem, self.quick, caveats)


def one_command(name: str, seed: int = 0, quick: bool = False) -> str:
    """What to type to have this result again.

    >>> one_command("fig6"), one_command("fig6", 3, quick=True)
    ('nestgp reproduce fig6', 'nestgp reproduce fig6 --seed 3 --quick')
    """
    return f"nestgp reproduce {name}" + (f" --seed {seed}" if seed else "") + " --quick" * quick


def save_result(
    name: str,
    payload: Any,
    command: str,
    seed: int,
    quick: bool,
    caveats: Sequence[str] = (),
    directory: Path = RESULTS,
) -> Path:
    """Write DIRECTORY/NAME.json: the payload and what is needed to repeat it.

    Arrays become lists and named tuples objects. JSON has no infinities and no NaN: they are the words that
    `float` reads, "inf", "-inf" and "nan".
    """
    record = {
        "experiment": name,
        "command": command,
        "seed": seed,
        "quick": quick,
        "caveats": list(caveats),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "results": _plain(payload),
    }
    path = directory / f"{name}.json"
    directory.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as file:
        text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False)
        file.write((NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n").encode())
    return path


def save_figure(figure: Figure, path: Path, quick: bool, caveats: Sequence[str] = ()) -> Path:
    """Write PATH.png (150 dpi) and PATH.svg; a quick run and caveats are written below the picture, in it."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    notes = "; ".join([QUICK_NOTE] * quick + list(caveats))
    # 6 point letters are about half as wide as high. Below the figure: a tight box takes it in, and nothing is covered.
    lines = textwrap.fill(notes, max(20, int(figure.get_figwidth() * 72 / 3.2)))
    text = figure.text(0.01, -0.01, lines, fontsize=6, color="0.35", ha="left", va="top") if notes else None
    png = path.with_name(path.name + ".png")
    # Without dates and random identifiers the same figure gives the same file.
    with mpl.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(png, dpi=150, bbox_inches="tight")
        # clouds of dots are pixels in the vector file too
        figure.savefig(path.with_name(path.name + ".svg"), dpi=200, bbox_inches="tight", metadata={"Date": None})
    if text is not None:
        text.remove()
    return png


# -------------------------------------------------------------------------------------------------- checkpoints


class Checkpoint:
    """Values kept on disk under keys, one small file each: npz for a dict of arrays, JSON for anything else.

    A file is replaced as a whole, so an interrupted run leaves either the old one or the new one. Nothing notices a
    change of code: clear it after one that changes values.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The value of the key; computed and stored if there is none.

        It is read back from its file even when it was just computed, so that a run that was interrupted and one that
        was not see the same (JSON makes lists of tuples).
        """
        if key not in self:
            self._write(key, compute())
        return self._read(key)

    def __contains__(self, key: str) -> bool:
        return any(file.exists() for file in self._files(key))

    def clear(self) -> None:
        """Forget everything, half-run chains (.pkl, also in a folder below) included."""
        for file in list(self.path.rglob("*")):
            if file.suffix in {".npz", ".json", ".pkl"}:
                file.unlink()

    def _files(self, key: str) -> tuple[Path, Path]:
        # Readable, and still different for keys that differ in punctuation or case only.
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", key)[:80]
        stem = f"{slug}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        return self.path / f"{stem}.npz", self.path / f"{stem}.json"

    def _write(self, key: str, value: Any) -> None:
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            (self.path / ".gitignore").write_text("*\n")
        npz, plain = self._files(key)
        if isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
            with _replacing(npz) as file:
                np.savez_compressed(file, **value)
        else:
            with _replacing(plain) as file:
                file.write(json.dumps(_plain(value)).encode())

    def _read(self, key: str) -> Any:
        npz, plain = self._files(key)
        path = npz if npz.exists() else plain
        try:
            if path == plain:
                return json.loads(plain.read_text())
            with np.load(npz) as arrays:
                return dict(arrays)
        except (ValueError, EOFError, BadZipFile) as error:
            raise ValueError(f"the checkpoint {path} of {key!r} cannot be read; remove it to compute it anew") from error


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when it is complete, and vanishes if it never is."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o644)  # a temporary file is made for its owner only
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    """The same in what strict JSON has."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


# ----------------------------------------------------------------------------------------------------- progress


class Progress:
    """Lines on stderr: how much is done, and the time left by the mean time of the steps that had to be computed."""

    def __init__(self, total: int, label: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.label, self.clock = total, label, clock
        self.stream = sys.stderr if stream is None else stream
        self.done = self.computed = 0
        self.spent = 0.0
        self.last_step = clock()
        self.last_line = -math.inf

    def step(self, note: str = "", stored: bool = False) -> None:
        """One more is done; `stored` if it was there already, which says nothing about the time of the others."""
        now = self.clock()
        self.done += 1
        if not stored:
            self.computed += 1
            self.spent += now - self.last_step
        self.last_step = now
        if self.done == self.total or now - self.last_line >= SECONDS_BETWEEN_LINES:
            self.last_line = now
            print(self._line(note), file=self.stream, flush=True)

    def _line(self, note: str) -> str:
        left = self.total - self.done
        if left == 0:
            timing = f"{duration(self.spent)} in all"
        elif self.computed == 0:
            timing = "from checkpoints"
        else:
            timing = f"about {duration(left * self.spent / self.computed)} left"
        return f"{self.label}: {self.done}/{self.total}, {timing}" + (f" ({note})" if note else "")


def duration(seconds: float) -> str:
    """In words, with two units at most.

    >>> duration(7.6), duration(754), duration(3 * 3600 + 5 * 60 + 59)
    ('8 s', '12 min 34 s', '3 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# --------------------------------------------------------------------------------------------------- comparison


class PairedAccuracy(NamedTuple):
    """Two classifiers on the same points: how many each got right, and what that says of which is better."""

    both_right: int
    only_a: int
    only_b: int
    both_wrong: int
    probability_a_better: float
    difference: Interval  # accuracy of a − accuracy of b


def compare_paired(correct_a: ArrayLike, correct_b: ArrayLike) -> PairedAccuracy:
    """P(accuracy of a > accuracy of b | counts) under a flat Dirichlet prior, with the interval of the difference.

    With p ~ Dirichlet(counts + 1) over both right, only a, only b, both wrong, a is better where p_only_a > p_only_b.
    Their ratio does not depend on the other two: p_only_a / (p_only_a + p_only_b) ~ Beta(only_a + 1, only_b + 1), so
    the probability is that of this Beta above 1/2. The interval is that of `nestgp.diagnostics.compare_accuracy`.
    """
    difference = compare_accuracy(correct_a, correct_b)
    a, b = np.asarray(correct_a), np.asarray(correct_b)
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    better = float(betainc(only_b + 1, only_a + 1, 0.5))
    return PairedAccuracy(int(np.sum(a & b)), only_a, only_b, int(np.sum(~a & ~b)), better, difference)
