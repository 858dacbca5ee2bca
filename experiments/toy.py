"""Shared by figures 1 to 3: the three-class problem with scalar inputs of section 5.1, by EP, IEP and MCMC.

The paper gives the distribution of the inputs and the hyperparameters, not the draw. So seeded draws are searched for one
that shows the situation which the paper describes, with the probabilities that it prints (see `search` and `confirm`).
The three figures show the same draw and share its checkpoints; `python -m experiments.toy --fresh` makes them anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import gaussian_kde, multivariate_normal, skew
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from experiments.common import Experiment
from nestgp import GPClassifier
from nestgp.arrays import FloatArray
from nestgp.inference import IndependentEP, NestedEP, Status
from nestgp.plotting import INK, MUTED, STYLE
from nestgp.sampling import Gibbs
from nestgp.sampling.mixing import ESS_LIMIT, RHAT_LIMIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Density = Callable[[FloatArray], FloatArray]

LOG_VARIANCE, LOG_LENGTHSCALE = 4.62, 0.26
#: Mean and standard deviation of the inputs of each class.
CLASSES = ((-1.0, 1.0), (2.0, 0.5), (3.0, 0.5))
PER_CLASS = 5
METHODS = ("MCMC", "EP", "IEP")
#: Printed in the paper: probability of class 1 at x_i, of class 2 at x_j.
PAPER = {"x_i": {"MCMC": 0.95, "EP": 0.88, "IEP": 0.82}, "x_j": {"MCMC": 0.47, "EP": 0.47, "IEP": 0.47}}
#: The class (from 0) that these are probabilities of.
CLASS_AT = {"x_i": 0, "x_j": 1}
#: Shares of the probability mass inside the contours.
MASSES = (0.95, 0.9, 0.75, 0.5, 0.25)
MARKERS = ("x", "+", "o")


class Size(NamedTuple):
    """How much is computed. `short` and `long` are the chains that confirm a draw, and those of the figures."""

    seeds: int
    confirmed: int
    short: Gibbs
    long: Gibbs
    inputs: int  # at which probabilities are computed
    pixels: int  # of a density, along each side
    dots: int  # of MCMC, shown and stored


FULL = Size(1000, 12, Gibbs(300, 150, 2), Gibbs(2000, 500, 4), 181, 120, 1500)
QUICK = Size(4, 1, Gibbs(20, 10, 1), Gibbs(40, 20, 2), 37, 30, 80)


def size(experiment: Experiment) -> Size:
    """Of a quick or a full run."""
    return QUICK if experiment.quick else FULL


@dataclass(frozen=True)
class Point:
    """One of the two positions, by every method.

    Attributes
    ----------
    probability (3,) : of the classes, by method; mean (3,), cov (3, 3) : of the latents, by method.
    draws : (draws, 3) of MCMC.
    """

    name: str
    x: float
    probability: dict[str, FloatArray]
    mean: dict[str, FloatArray]
    cov: dict[str, FloatArray]
    draws: FloatArray


@dataclass(frozen=True)
class Ground:
    """What figures 1 to 3 show: inputs x (m,), probabilities and latent means (m, 3) by method, and the two points."""

    X: FloatArray
    y: NDArray[np.int64]
    x: FloatArray
    probability: dict[str, FloatArray]
    latent: dict[str, FloatArray]
    points: dict[str, Point]
    record: dict[str, Any]
    caveats: list[str]


# ---------------------------------------------------------------------------------------------------- the problem


def kernel() -> Kernel:
    """Squared exponential with the paper's hyperparameters."""
    return ConstantKernel(np.exp(LOG_VARIANCE), "fixed") * RBF(np.exp(LOG_LENGTHSCALE), "fixed")


def draw(seed: int) -> tuple[FloatArray, NDArray[np.int64]]:
    """Inputs (15, 1) and labels (15,) of one draw, five of each class."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([mean + sd * rng.standard_normal(PER_CLASS) for mean, sd in CLASSES])
    return x[:, None], np.repeat(np.arange(len(CLASSES)), PER_CLASS)


def fit(method: str, X: FloatArray, y: NDArray[np.int64], chains: Gibbs | None = None, seed: int = 0) -> GPClassifier:
    """The classifier by "EP", "IEP" or "MCMC" (with `chains`), hyperparameters fixed.

    Probabilities are exact integrals over the latents for all three: what differs is the posterior, and nothing else.
    """
    inference = {"EP": NestedEP(), "IEP": IndependentEP(max_iter=1000), "MCMC": chains}[method]
    clf = GPClassifier(kernel(), inference=inference, probabilities="exact", optimizer=None, random_state=seed)
    with warnings.catch_warnings():
        if method == "MCMC":  # short chains confirm, they need not have mixed; of the long ones `mixing` speaks
            warnings.simplefilter("ignore", ConvergenceWarning)
        return clf.fit(X, y)


# ----------------------------------------------------------------------------------------------------- the search


def search(seeds: int, inputs: int) -> dict[str, FloatArray]:
    """For every seed the x_i and x_j that come closest to the paper, by EP and IEP, which take milliseconds.

    x_i is left of the mean of class 1, within its inputs: away from the boundaries, as the paper says. x_j is where
    classes 2 and 3 meet: class 3 is more probable than class 1. `gap` is the largest of the four distances to the
    probabilities in the paper; infinite where there is no such x_i or x_j.
    """
    x = _inputs(inputs)
    rows = []
    for seed in range(seeds):
        X, y = draw(seed)
        ep, iep = (fit(method, X, y).predict_proba(x[:, None]) for method in ("EP", "IEP"))
        away = (x >= X[y == 0].min()) & (x <= CLASSES[0][0])
        gaps = [_gap({"EP": ep, "IEP": iep}, name, where) for name, where in (("x_i", away), ("x_j", ep[:, 2] > ep[:, 0]))]
        rows.append((seed, *(x[gap.argmin()] for gap in gaps), max(gap.min() for gap in gaps)))
    return dict(zip(("seed", "x_i", "x_j", "gap"), np.array(rows, dtype=np.float64).T, strict=True))


def _gap(probability: Mapping[str, FloatArray], name: str, where: NDArray[np.bool_]) -> FloatArray:
    """Largest distance to the paper's probabilities at each input, over the methods."""
    distances = [np.abs(p[:, CLASS_AT[name]] - PAPER[name][method]) for method, p in probability.items()]
    return np.where(where, np.max(distances, axis=0), np.inf)


def confirm(found: Mapping[str, FloatArray], rank: int, chains: Gibbs, seed: int) -> dict[str, float]:
    """The same at the `rank`-th best draw with MCMC too; `gap` is now the largest of six distances."""
    row = np.argsort(found["gap"], kind="stable")[rank]
    at = {name: float(found[name][row]) for name in ("seed", "x_i", "x_j")}
    clf = fit("MCMC", *draw(int(at["seed"])), chains, seed)
    p = clf.predict_proba([[at["x_i"]], [at["x_j"]]])
    mcmc = {"mcmc_x_i": float(p[0, CLASS_AT["x_i"]]), "mcmc_x_j": float(p[1, CLASS_AT["x_j"]])}
    gaps = (abs(mcmc[f"mcmc_{name}"] - PAPER[name]["MCMC"]) for name in CLASS_AT)
    return at | mcmc | {"gap": max(float(found["gap"][row]), *gaps)}


def _inputs(count: int) -> FloatArray:
    return np.linspace(-4.0, 5.0, count)


# ---------------------------------------------------------------------------------------------------- the ground


def ground(experiment: Experiment) -> Ground:
    """The chosen draw by all methods, from checkpoints that the three figures share."""
    shared = replace(experiment, name="toy")
    how = size(experiment)
    found = shared.run({"search": lambda: search(how.seeds, how.inputs)})["search"]
    checks = shared.run(
        {f"confirm/{rank}": lambda rank=rank: confirm(found, rank, how.short, experiment.seed) for rank in range(how.confirmed)}
    )
    best = min(checks.values(), key=lambda check: check["gap"])
    X, y = draw(int(best["seed"]))
    at = np.array([best["x_i"], best["x_j"]])
    mcmc = shared.run({"mcmc": lambda: sample(X, y, at, how, experiment.seed)})["mcmc"]
    return _assemble(X, y, at, how, mcmc, {"seeds_tried": how.seeds, "chosen": best, "confirmed": list(checks.values())})


def sample(X: FloatArray, y: NDArray[np.int64], at: FloatArray, how: Size, seed: int) -> dict[str, FloatArray]:
    """Probabilities, their mixing and latent moments at the inputs and the two points, and draws at the two points."""
    clf = fit("MCMC", X, y, how.long, seed)
    x = np.concatenate([_inputs(how.inputs), at])[:, None]
    mean, cov = clf.predict_latent(x)
    diagnostics = clf.proba_diagnostics(x)
    means, covs = clf.posterior_.latent(at[:, None])  # of every draw: f at a new input is Gaussian given the draw
    spread = np.sqrt(np.einsum("smkk->smk", covs))
    draws = means + spread * np.random.default_rng(seed).standard_normal(means.shape)
    return {"probability": clf.predict_proba(x), "mean": mean, "cov": cov, "draws": draws, **diagnostics}


def _assemble(
    X: FloatArray, y: NDArray[np.int64], at: FloatArray, how: Size, mcmc: dict[str, FloatArray], chosen: dict[str, Any]
) -> Ground:
    x = _inputs(how.inputs)
    everywhere = np.concatenate([x, at])[:, None]
    caveats: list[str] = []
    probability, mean, cov = {"MCMC": mcmc["probability"]}, {"MCMC": mcmc["mean"]}, {"MCMC": mcmc["cov"]}
    for method in ("EP", "IEP"):
        clf = fit(method, X, y)
        caveats += [f"{method} has not converged"] if clf.status_ is not Status.CONVERGED else []
        probability[method] = clf.predict_proba(everywhere)
        mean[method], cov[method] = clf.predict_latent(everywhere)
    points = {}
    for k, name in enumerate(CLASS_AT):
        row = x.size + k
        by_method = ({method: values[method][row] for method in METHODS} for values in (probability, mean, cov))
        points[name] = Point(name, float(at[k]), *by_method, mcmc["draws"][:, k])
    mixing, not_mixed = judge(mcmc)
    unknown = (
        f"the paper's draw is unknown: seed {int(chosen['chosen']['seed'])} of {how.seeds} was chosen for its closeness to the "
        f"paper's six probabilities at x_i and x_j, largest distance {_distance(points):.3f}"
    )
    record = {
        "log_variance": LOG_VARIANCE,
        "log_lengthscale": LOG_LENGTHSCALE,
        "x_train": X[:, 0],
        "y_train": y + 1,
        "search": {"criterion": _criterion(how), **chosen},
        "sampler": repr(how.long),
        "mixing": mixing,
        "largest_distance_to_paper": _distance(points),
        "probabilities": {name: verdict(point) for name, point in points.items()},
    }
    inside = slice(x.size)
    shown = ({method: values[method][inside] for method in METHODS} for values in (probability, mean))
    return Ground(X, y, x, *shown, points, record, [unknown, *not_mixed, *caveats])


def _criterion(how: Size) -> str:
    return (
        f"seeds 0 to {how.seeds - 1} of inputs N(-1, 1), N(2, 0.5), N(3, 0.5), five each; smallest largest distance to the "
        "paper's probabilities of class 1 at an x_i left of -1 within the inputs of class 1, and of class 2 at an x_j where "
        "class 3 is more probable than class 1, by EP and IEP; then, among the best "
        f"{how.confirmed}, by MCMC ({how.short.n_chains} x {how.short.n_draws} draws) too"
    )


def judge(diagnostics: Mapping[str, FloatArray]) -> tuple[dict[str, float], list[str]]:
    """Worst R-hat and effective sample size of the probabilities shown, and a caveat if they miss the limits."""
    worst = {"rhat": float(np.max(diagnostics["rhat"]))}
    worst |= {name: float(np.min(diagnostics[name])) for name in ("ess_bulk", "ess_tail")}
    if worst["rhat"] < RHAT_LIMIT and min(worst["ess_bulk"], worst["ess_tail"]) >= ESS_LIMIT:
        return worst, []
    ess = min(worst["ess_bulk"], worst["ess_tail"])
    limits = f"(limits {RHAT_LIMIT}, {ESS_LIMIT:.0f})"
    return worst, [f"MCMC has not mixed: R-hat up to {worst['rhat']:.3f}, effective draws down to {ess:.0f} {limits}"]


def verdict(point: Point) -> dict[str, Any]:
    """Probability of the paper's class at the point by method, beside the paper's."""
    k = CLASS_AT[point.name]
    ours = {method: float(point.probability[method][k]) for method in METHODS}
    return {"x": point.x, "class": k + 1, "here": ours, "paper": PAPER[point.name]}


def _distance(points: Mapping[str, Point]) -> float:
    verdicts = [verdict(point) for point in points.values()]
    return max(abs(v["here"][method] - v["paper"][method]) for v in verdicts for method in METHODS)


# ------------------------------------------------------------------------------------------------------ densities


def mass_levels(density: FloatArray, masses: Sequence[float] = MASSES) -> FloatArray:
    """Levels of a density on an even grid whose regions above hold these shares of its mass, increasing.

    >>> mass_levels(np.array([[4.0, 3.0], [2.0, 1.0]]), (0.9, 0.4))
    array([2., 4.])
    """
    falling = np.sort(density, axis=None)[::-1]
    share = np.cumsum(falling) / falling.sum()
    return falling[np.searchsorted(share, np.sort(masses)[::-1])]


def smoothed(draws: FloatArray) -> Density:
    """Density of draws (S, 2) by Gaussian kernels of Scott's width."""
    estimate = gaussian_kde(draws.T)
    return lambda points: estimate(points.reshape(-1, 2).T).reshape(points.shape[:-1])


def gaussian(mean: FloatArray, cov: FloatArray) -> Density:
    """Density of N(mean, cov) in the plane."""
    return lambda points: multivariate_normal(mean, cov).pdf(points)


def tilted(density: Density) -> Density:
    """q(g) Π_k Φ(g_k), whose integral is the class probability."""
    return lambda points: density(points) * ndtr(points).prod(axis=-1)


def plane(low: FloatArray, high: FloatArray, pixels: int) -> FloatArray:
    """(pixels, pixels, 2) points between two corners."""
    return np.stack(np.meshgrid(*np.linspace(low, high, pixels).T), axis=-1)


def contours(ax: Axes, points: FloatArray, density: Density, bold: bool) -> None:
    """Regions of 95, 90, 75, 50 and 25 % of the mass: bold black, or grey to compare with."""
    values = density(points)
    # Levels of a coarse grid may coincide, and contour lines need increasing ones.
    levels = np.unique(mass_levels(values))
    style: dict[str, Any] = {"colors": INK, "linewidths": 1.3} if bold else {"colors": "0.65", "linewidths": 0.8}
    ax.contour(points[..., 0], points[..., 1], values, levels=levels, **style)


# ------------------------------------------------------------------------------------------------ figures 2 and 3


class Marginals(NamedTuple):
    """Of two variables at a point: mean (2,) and covariance (2, 2) by method, draws (S, 2) of MCMC, names of the axes."""

    mean: dict[str, FloatArray]
    cov: dict[str, FloatArray]
    draws: FloatArray
    names: tuple[str, str]


def latent_pair(point: Point, pair: tuple[int, int]) -> Marginals:
    """Marginals of two of the latents."""
    rows = list(pair)
    mean = {method: value[rows] for method, value in point.mean.items()}
    cov = {method: value[np.ix_(rows, rows)] for method, value in point.cov.items()}
    first, second = (f"$f_{point.name[-1]}^{k + 1}$" for k in pair)
    return Marginals(mean, cov, point.draws[:, rows], (first, second))


def transformed(point: Point, rng: np.random.Generator) -> Marginals:
    """Marginals of g_k = u + f_y − f_k for the other classes k, with the paper's noise u ~ N(0, 1)."""
    y = CLASS_AT[point.name]
    others = [k for k in range(len(CLASSES)) if k != y]
    difference = np.eye(len(CLASSES))[y] - np.eye(len(CLASSES))[others]
    mean = {method: difference @ value for method, value in point.mean.items()}
    cov = {method: difference @ value @ difference.T + 1.0 for method, value in point.cov.items()}
    draws = point.draws @ difference.T + rng.standard_normal((len(point.draws), 1))
    first, second = (f"$g_{point.name[-1]}^{k + 1}$" for k in others)
    return Marginals(mean, cov, draws, (first, second))


def run_marginals(experiment: Experiment, name: str, pair: tuple[int, int]) -> None:
    """Figure 2 or 3: the latents of `pair` at the point, and the tilted distribution of their differences."""
    here = ground(experiment)
    point, how = here.points[name], size(experiment)
    rows = (latent_pair(point, pair), transformed(point, np.random.default_rng(experiment.seed)))
    integrals = _draw(experiment, rows, point, here.caveats)
    payload = here.record | {
        "point": verdict(point),
        "integral_of_tilted_density_on_the_grid": integrals,
        "note_on_integrals": "that of MCMC is of smoothed draws, which spill over the boundary; `point` has the exact one",
        "latent_mean": point.mean,
        "latent_cov": point.cov,
        "skewness_of_mcmc_draws": skew(point.draws),
        "contour_masses": MASSES,
        "draws_shown": np.round(point.draws[_dots(point, how)], 3),
    }
    experiment.save(payload, here.caveats)


def _draw(
    experiment: Experiment, rows: tuple[Marginals, Marginals], point: Point, caveats: Sequence[str]
) -> dict[str, float]:
    """The six panels; returns the integral of each tilted density over its panel."""
    import matplotlib.pyplot as plt

    how, integrals = size(experiment), {}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), layout="constrained")
        for ax_row, row, tilt in zip(axes, rows, (False, True), strict=True):
            points = _panel(row, how.pixels)
            densities = {"MCMC": smoothed(row.draws)} | {m: gaussian(row.mean[m], row.cov[m]) for m in ("EP", "IEP")}
            if tilt:
                densities = {method: tilted(density) for method, density in densities.items()}
                pixel = np.prod(points[1, 1] - points[0, 0])
                integrals = {method: float(density(points).sum() * pixel) for method, density in densities.items()}
            for ax, method in zip(ax_row, METHODS, strict=True):
                if method == "MCMC" and not tilt:
                    dots = row.draws[_dots(point, how)].T
                    ax.scatter(*dots, s=3, color="#56B4E9", alpha=0.5, linewidth=0, rasterized=True)
                if method != "MCMC":
                    contours(ax, points, densities["MCMC"], bold=False)
                contours(ax, points, densities[method], bold=True)
                _decorate(ax, row, points, _title(point, method, tilt))
        experiment.save_figure(figure, caveats=[*caveats, "contours hold 95, 90, 75, 50, 25 % of the mass; grey: MCMC"])
        plt.close(figure)
    return integrals


def _title(point: Point, method: str, tilt: bool) -> str:
    if not tilt:
        return f"{method}: latents at ${point.name}$ = {point.x:.2f}"
    k = CLASS_AT[point.name]
    return f"{method}: p(class {k + 1}) = {point.probability[method][k]:.3f} (paper {PAPER[point.name][method]:.2f})"


def _panel(row: Marginals, pixels: int) -> FloatArray:
    """A frame around the draws and the Gaussians."""
    low, high = np.quantile(row.draws, (0.002, 0.998), axis=0)
    for method in ("EP", "IEP"):
        reach = 2.8 * np.sqrt(np.diag(row.cov[method]))
        low, high = np.minimum(low, row.mean[method] - reach), np.maximum(high, row.mean[method] + reach)
    return plane(low, high, pixels)


def _decorate(ax: Axes, row: Marginals, points: FloatArray, title: str) -> None:
    low, high = points[0, 0], points[-1, -1]
    if row.names[0].startswith("$f"):
        ax.axline((0, 0), slope=1, color=MUTED, linewidth=0.6, linestyle=":")
    else:
        ax.axhline(0, color=MUTED, linewidth=0.6, linestyle=":")
        ax.axvline(0, color=MUTED, linewidth=0.6, linestyle=":")
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel=row.names[0], ylabel=row.names[1])
    ax.set_title(title, fontsize=10)


def _dots(point: Point, how: Size) -> NDArray[np.int64]:
    return np.linspace(0, len(point.draws) - 1, min(how.dots, len(point.draws))).astype(np.int64)


def main() -> None:
    """Search, confirm and sample, without a figure."""
    here = ground(Experiment.from_command_line("toy", __doc__ or ""))
    for name, values in here.record["probabilities"].items():
        print(name, values)


if __name__ == "__main__":
    main()
