"""The `nestgp` command; needs typer and rich (`pip install 'nestgp[cli]'`).

Commands are thin: each parses its options in `build_app` and calls one function that can be tested without
a terminal.
"""

import io
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestgp import __version__, diagnostics
from nestgp.arrays import FloatArray

if TYPE_CHECKING:
    import typer
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.table import Table

Report = Callable[[str], None]

#: Root of the source tree when nestgp runs from one, as after `pip install --editable .`
SOURCE = Path(__file__).resolve().parents[2]
NOT_HERE = (
    "The {what} live in the source tree of nestgp, not in the installed package. To run them, clone its\n"
    "repository and, inside the clone, run: pip install --editable '.[dev]' and then: nestgp {command}"
)

NESTED_EP = "nestgp: nested EP"
ONE_VS_REST = "scikit-learn: one-vs-rest"
# Any two informative columns would do for a picture; these overlap enough that probabilities matter.
PLANE = ("flavanoids", "color_intensity")

FIGURE_FORMATS = (".png", ".pdf", ".svg")

CAPTION = (
    "Means with 95% intervals. On average, calibrated confidence equals accuracy.\n"
    "Hyperparameters, from the same kernel and start: nestgp by type-II MAP with\n"
    "the paper's half Student-t prior, scikit-learn by type-II maximum likelihood."
)


def main() -> None:
    """Entry point: run the command line, or say in plain words what is missing."""
    try:
        app = build_app()
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.exit(
            f"The nestgp command needs {error.name}, which is not installed. Run: pip install 'nestgp[cli]'"
        )
    app()


def build_app() -> "typer.Typer":
    """The typer application, one function per command."""
    import rich  # noqa: F401  a missing rich must be reported before a command has begun
    import typer

    app = typer.Typer(
        help="Calibrated multiclass classification with Gaussian processes.",
        no_args_is_help=True,
        add_completion=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"nestgp {__version__}")
            raise typer.Exit

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=show_version, is_eager=True, help="Show the version and exit."
            ),
        ] = False,
    ) -> None:
        pass

    @app.command()
    def demo(
        figure: Annotated[Path, typer.Option(help="Where to save the figure (PNG, PDF or SVG).")] = Path(
            "nestgp-demo.png"
        ),
        seed: Annotated[int, typer.Option(min=0, help="Seed of the split into training and held-out half.")] = 0,
    ) -> None:
        """Fit a real data set, compare with scikit-learn on the held-out half, and draw it."""
        if figure.suffix.lower() not in FIGURE_FORMATS or not figure.parent.is_dir():
            what = "the folder does not exist" if not figure.parent.is_dir() else f"use one of {', '.join(FIGURE_FORMATS)}"
            raise typer.BadParameter(f"cannot save to {figure}: {what}", param_hint="--figure")
        run_demo(figure, seed)

    @app.command()
    def bench(
        names: Annotated[
            list[str] | None, typer.Argument(metavar="NAME", help="Benchmarks to run; none: all of them.")
        ] = None,
        show: Annotated[
            bool, typer.Option("--list", help="Show the names and what each measures, and exit.")
        ] = False,
    ) -> None:
        """Measure speed, memory and accuracy, as ratios (in the source tree only)."""
        raise typer.Exit(run_benchmarks([*(names or []), *(["--list"] if show else [])]))

    @app.command()
    def reproduce(
        names: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME", help="fig1 … fig10, table1, table2; all; report: only the report."),
        ] = None,
        quick: Annotated[bool, typer.Option("--quick", help="A smaller version, minutes and not a result.")] = False,
        seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
        results: Annotated[
            Path | None, typer.Option(help="Where results go; not given: the source tree's experiments/results.")
        ] = None,
        fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of going on from checkpoints.")] = False,
        show: Annotated[bool, typer.Option("--list", help="Show the names and what each shows, and exit.")] = False,
    ) -> None:
        """Make the paper's figures and tables again, and a report of them (in the source tree only)."""
        flags = [f"--{name}" for name, wanted in (("quick", quick), ("fresh", fresh), ("list", show)) if wanted]
        # The command runs elsewhere, so a relative path must be made absolute here.
        folder = [] if results is None else ["--results", str(results.resolve())]
        raise typer.Exit(run_experiments([*(names or []), "--seed", str(seed), *folder, *flags]))

    return app


def run_benchmarks(arguments: list[str]) -> int:
    """Exit status of `python -m benchmarks ARGUMENT …` in the source tree."""
    return _run_in_source("benchmarks", arguments, NOT_HERE.format(what="benchmarks", command="bench"))


def run_experiments(arguments: list[str]) -> int:
    """Exit status of `python -m experiments ARGUMENT …` in the source tree."""
    return _run_in_source("experiments", arguments, NOT_HERE.format(what="experiments", command="reproduce"))


def _run_in_source(package: str, arguments: list[str], missing: str) -> int:
    """Exit status of `python -m PACKAGE ARGUMENT …` in the source tree; ends with `missing` if this is not one."""
    if not (SOURCE / package / "__main__.py").exists():
        sys.exit(missing)
    return subprocess.run([sys.executable, "-m", package, *arguments], cwd=SOURCE, check=False).returncode


class Wine(NamedTuple):
    """Half of scikit-learn's wine data to train on, half held out."""

    X_train: FloatArray
    X_test: FloatArray
    y_train: NDArray[np.int64]
    y_test: NDArray[np.int64]
    columns: list[str]


@dataclass(frozen=True)
class Score:
    """One classifier on the held-out half."""

    name: str
    proba: FloatArray  # (n_test, c)
    lpd: FloatArray  # (n_test,), log probability of what happened
    log_evidence: str
    convergence: str
    seconds: float


def load_demo_data(seed: int) -> Wine:
    """A stratified half-half split of 178 wines from three cultivars, 13 chemical measurements."""
    from sklearn.datasets import load_wine
    from sklearn.model_selection import train_test_split

    wine = load_wine()
    X_train, X_test, y_train, y_test = train_test_split(
        wine.data, wine.target, test_size=0.5, stratify=wine.target, random_state=seed
    )
    return Wine(X_train, X_test, y_train, y_test, list(wine.feature_names))


def make_pipelines(n_columns: int, seed: int, verbose: int = 0) -> dict[str, Any]:
    """Both classifiers behind a StandardScaler, same kernel and same starting hyperparameters."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from nestgp import GPClassifier

    kernel = ConstantKernel(1.0) * RBF(np.ones(n_columns))
    classifiers = {
        NESTED_EP: GPClassifier(kernel=kernel, random_state=seed, verbose=verbose),
        ONE_VS_REST: GaussianProcessClassifier(kernel=kernel, random_state=seed),
    }
    return {name: make_pipeline(StandardScaler(), clf) for name, clf in classifiers.items()}


def fit_and_score(name: str, pipeline: Any, data: Wine) -> Score:
    """Fit on the training half, predict the held-out half; the time is that of both."""
    from threadpoolctl import threadpool_limits

    start = time.perf_counter()
    # One BLAS thread for both: with matrices this small, more only measure how busy the machine is.
    with warnings.catch_warnings(record=True) as caught, threadpool_limits(1, user_api="blas"):
        warnings.simplefilter("always")
        pipeline.fit(data.X_train, data.y_train)
        proba = np.asarray(pipeline.predict_proba(data.X_test))
    seconds = time.perf_counter() - start
    clf = pipeline[-1]
    if name == NESTED_EP:
        evidence = f"{clf.log_marginal_likelihood_value_:.2f}"
        convergence = f"{clf.status_.name.lower().replace('_', ' ')}, {clf.n_iter_} iterations"
    else:
        # Its log_marginal_likelihood_value_ is the mean over separate binary problems: another quantity.
        evidence = "no joint model"
        convergence = "not reported"
    if caught:
        convergence += f"; {len(caught)} warning{'s' if len(caught) > 1 else ''}"
    lpd = diagnostics.log_predictive_density(proba, data.y_test)
    return Score(name, proba, lpd, evidence, convergence, seconds)


def run_demo(figure: Path, seed: int) -> list[Score]:
    """Fit, print the table, save the figure; returns the scores, nested EP first."""
    from rich.console import Console

    # A fixed file: the spinner must not write into the stream that it listens to.
    console = Console(file=sys.stdout)
    data = load_demo_data(seed)
    console.print(
        f"\n[bold]Wine[/bold]: {len(data.y_train)} training and {len(data.y_test)} held-out wines, "
        f"{len(data.columns)} measurements, {np.unique(data.y_train).size} cultivars (seed {seed})\n"
    )
    with progress(console, "loading compiled code (compiled on the first run only)"):
        warm_up(seed)
    scores = []
    for name, pipeline in make_pipelines(len(data.columns), seed, verbose=1).items():
        with progress(console, f"fitting {name}"):
            scores.append(fit_and_score(name, pipeline, data))
    console.print(score_table(scores, data))
    console.print(verdict(scores, data) + "\n")
    try:
        with progress(console, "drawing"):
            demo_figure(data, scores, seed).savefig(figure)
        console.print(f"figure: [bold]{figure}[/bold]\n", soft_wrap=True)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        console.print("no figure: matplotlib is not installed. Run: pip install 'nestgp\\[plot]'\n")
    return scores


def warm_up(seed: int) -> None:
    """Compile what a fit needs, so that the times in the table are those of the methods."""
    y = np.arange(12) % 3
    X = np.random.default_rng(seed).normal(size=(12, 2)) + y[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody looks at these hyperparameters
        make_pipelines(2, seed)[NESTED_EP].fit(X, y).predict_proba(X)


@contextmanager
def progress(console: "Console", what: str) -> Iterator[None]:
    """A spinner that shows what is going on and the last line that it printed."""
    with console.status(what) as status:
        stream = _LastLine(lambda line: status.update(f"{what}: {line}"))
        with redirect_stdout(stream), redirect_stderr(stream):
            yield


class _LastLine(io.TextIOBase):
    """A text stream that hands each non-empty line on."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def write(self, text: str) -> int:
        for line in text.splitlines():
            if line.strip():
                self._report(line.strip().replace("[", "\\["))
        return len(text)


def score_table(scores: list[Score], data: Wine) -> "Table":
    """Held-out scores, one column per classifier."""
    from rich.table import Table

    table = Table(
        caption=CAPTION,
        caption_justify="left",
    )
    table.add_column("on the held-out half")
    for score in scores:
        table.add_column(score.name, justify="right")
    y = data.y_test
    rows: list[tuple[str, Callable[[Score], str]]] = [
        ("log evidence", lambda s: s.log_evidence),
        ("convergence", lambda s: s.convergence),
        (
            "log predictive density ↑",
            lambda s: _interval(diagnostics.bayesian_bootstrap_interval(s.lpd)),
        ),
        ("Brier score ↓", lambda s: f"{diagnostics.brier(s.proba, y):.3f}"),
        ("accuracy ↑", lambda s: f"{diagnostics.accuracy(s.proba, y):.3f}"),
        ("mean confidence", lambda s: f"{s.proba.max(axis=1).mean():.3f}"),
        (
            "calibration error ↓",
            lambda s: f"{diagnostics.expected_calibration_error(s.proba, y):.3f}",
        ),
        ("seconds, one BLAS thread", lambda s: f"{s.seconds:.2f}"),
    ]
    for label, cell in rows:
        table.add_row(label, *(cell(score) for score in scores))
    return table


def verdict(scores: list[Score], data: Wine) -> str:
    """The paired comparison in one sentence."""
    ours, theirs = scores
    density = diagnostics.compare_log_density(ours.lpd, theirs.lpd)
    correct = [s.proba.argmax(axis=1) == data.y_test for s in scores]
    accuracy = diagnostics.compare_accuracy(*correct)
    return (
        f"Paired difference, {ours.name} minus {theirs.name}:\n"
        f"log predictive density {_interval(density, '+')}, accuracy {_interval(accuracy, '+')}."
    )


def _interval(i: diagnostics.Interval, sign: str = "") -> str:
    return f"{i.mean:{sign}.2f} ({i.low:{sign}.2f} to {i.high:{sign}.2f})"


def demo_figure(data: Wine, scores: list[Score], seed: int) -> "Figure":
    """Two maps of class probabilities in a plane, and the held-out probabilities of the full fits."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from nestgp import plotting

    cultivars = [f"cultivar {k + 1}" for k in range(scores[0].proba.shape[1])]
    X, y = data.X_train[:, [data.columns.index(name) for name in PLANE]], data.y_train
    with rc_context(plotting.STYLE):
        fig = Figure(figsize=(12.8, 4.8), dpi=160, layout="constrained")
        *maps, paired = fig.subplots(1, 3)
        for ax, (name, pipeline) in zip(maps, make_pipelines(2, seed).items(), strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a lengthscale at its bound does not spoil a picture
                pipeline.fit(X, y)
            plotting.plot_probability_map(pipeline, X, y, ax, labels=cultivars, certainty=(0.9,))
            plotting.set_titles(ax, name, f"trained on two measurements of {len(y)} wines")
            ax.set(xlabel="flavanoids", ylabel="colour intensity")
        plotting.plot_paired_probability(
            scores[0].proba, scores[1].proba, data.y_test, paired, names=("nested EP", "one-vs-rest")
        )
        n_test, n_columns = data.X_test.shape
        plotting.set_titles(
            paired, "Which one believed the truth?", f"{n_test} held-out wines, {n_columns} measurements"
        )
        handles, names = maps[0].get_legend_handles_labels()
        handles += [Line2D([], [], color=plotting.INK, linewidth=1.3)]
        handles += [Line2D([], [], color=plotting.INK, linewidth=0.8, linestyle="dashed")]
        names += ["decision changes", "90% certain"]
        fig.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return fig
