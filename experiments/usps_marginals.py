"""Shared by figures 4 and 5: USPS 3 vs 5 vs 7 at log σ² = 4, log l = 2 by the approximations and by MCMC (section 5.2).

Laplace's method has the softmax for its likelihood, all others have the multinomial probit: there are chains for either.
Every method, every block of Tierney-Kadane probabilities and every chain has checkpoints of its own, which the two figures
share; `python -m experiments.usps_marginals --fresh` makes them anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from experiments.common import Experiment
from experiments.toy import judge
from nestgp import GPClassifier, datasets
from nestgp.arrays import FloatArray, IntArray
from nestgp.inference import IndependentEP, Laplace, NestedEP, VariationalBayes
from nestgp.sampling import Gibbs, Hamiltonian

LOG_VARIANCE, LOG_LENGTHSCALE = 4.0, 2.0
APPROXIMATIONS: dict[str, Any] = {
    "EP": NestedEP(),
    "IEP": IndependentEP(max_iter=1000),
    "VB": VariationalBayes(),
    "LA": Laplace(),
}
#: Class probabilities as ratios of the evidences of these.
TIERNEY_KADANE: dict[str, Any] = {"LA-TKP": Laplace(), "EP-TKP": NestedEP(precision="mixed")}
PROBIT, SOFTMAX = "MCMC probit", "MCMC softmax"
SPLITS = ("train", "test")
#: Which digit the latents of figure 5 are of: the paper's class 2.
SHOWN_CLASS = 1
ROWS_AT_ONCE = 50


class Size(NamedTuple):
    """How much is computed: rows of each class (None: all), chains, processes for them, and every which row gets EP-TKP."""

    rows: int | None
    gibbs: Gibbs
    hamiltonian: Hamiltonian
    jobs: int | None
    ep_tkp_step: int
    pixels: int
    dots: int


# EP-TKP infers three problems of n + 1 points per row: two hours of one core for all rows.
FULL = Size(None, Gibbs(900, 100, 4), Hamiltonian(900, 100, 4), None, 1, 100, 1500)
QUICK = Size(30, Gibbs(20, 10, 2), Hamiltonian(20, 10, 2), None, 15, 30, 40)


def size(experiment: Experiment) -> Size:
    """Of a quick or a full run."""
    return QUICK if experiment.quick else FULL


@dataclass(frozen=True)
class Digits:
    """Images X and labels y of each split, and the digits' names."""

    X: dict[str, FloatArray]
    y: dict[str, IntArray]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Method:
    """What one method says.

    Attributes
    ----------
    rows, probability : by split, rows (m,) and their class probabilities (m, c).
    mean (c,), cov (c, c), draws (S, c) : latents of the point of figure 5; empty where there are none.
    """

    rows: dict[str, IntArray]
    probability: dict[str, FloatArray]
    mean: FloatArray
    cov: FloatArray
    draws: FloatArray

    def of_truth(self, digits: Digits, split: str) -> FloatArray:
        """Probability of the true class of the rows of a split, (m,)."""
        rows = self.rows[split]
        return np.take_along_axis(self.probability[split], digits.y[split][rows, None], axis=1)[:, 0]


@dataclass(frozen=True)
class Ground:
    """The problem, every method by name, the training row of figure 5, and what a reader must know."""

    digits: Digits
    methods: dict[str, Method]
    row: int
    record: dict[str, Any]
    caveats: list[str]


# ----------------------------------------------------------------------------------------------------- the problem


def kernel(log_variance: float = LOG_VARIANCE, log_lengthscale: float = LOG_LENGTHSCALE) -> Kernel:
    """Squared exponential with fixed hyperparameters."""
    return ConstantKernel(np.exp(log_variance), "fixed") * RBF(np.exp(log_lengthscale), "fixed")


def digits(rows: int | None, seed: int) -> tuple[Digits, list[str]]:
    """USPS 3 vs 5 vs 7, or that many random rows of each class in either split; and what a reader must know."""
    data = datasets.load("usps_357")
    assert data.X_test is not None
    X, y = {"train": data.X_train, "test": data.X_test}, {"train": data.y_train, "test": data.targets}
    caveats = list(data.caveats)
    if rows is not None:
        rng = np.random.default_rng(seed)
        for split in SPLITS:
            chosen = [rng.choice(np.flatnonzero(y[split] == k), rows, replace=False) for k in range(data.n_classes)]
            kept = np.sort(np.concatenate(chosen))
            X[split], y[split] = X[split][kept], y[split][kept]
        sizes = f"{len(y['train'])} training and {len(y['test'])} test rows"
        caveats.append(f"{sizes} instead of {len(data.y_train)} and {data.n_test}")
    return Digits(X, y, data.class_names), caveats


def typical_row(probability: FloatArray, y: IntArray) -> int:
    """The row of class 2 whose own probability is the median of its class; the paper does not say which it shows."""
    rows = np.flatnonzero(y == SHOWN_CLASS)
    return int(rows[np.argsort(probability[rows, SHOWN_CLASS], kind="stable")[rows.size // 2]])


# ----------------------------------------------------------------------------------------------------- the methods


def ground(experiment: Experiment) -> Ground:
    """Everything that figures 4 and 5 show, from checkpoints that they share."""
    shared, how = replace(experiment, name="usps_marginals"), size(experiment)
    problem, caveats = digits(how.rows, experiment.seed)
    found = shared.run({name: partial(approximate, name, problem) for name in APPROXIMATIONS})
    row = typical_row(found["EP"]["train"], problem.y["train"])
    found |= _tierney_kadane(shared, problem, how)
    # The methods before have made the directory of checkpoints, which the chains need.
    chains = {name: partial(sample, name, problem, row, how, shared) for name in (PROBIT, SOFTMAX)}
    found |= shared.run(chains)
    mixing = {}
    for name in chains:
        mixing[name], worse = judge({key: found[name][key] for key in ("rhat", "ess_bulk", "ess_tail")})
        caveats += [caveat.replace("MCMC", name, 1) for caveat in worse]
    caveats += [f"{name} has not converged" for name in APPROXIMATIONS if not found[name]["converged"]]
    caveats += [f"EP-TKP of every {how.ep_tkp_step}th row only"] if how.ep_tkp_step > 1 else []
    record = {
        "log_variance": LOG_VARIANCE,
        "log_lengthscale": LOG_LENGTHSCALE,
        "n_train": len(problem.y["train"]),
        "n_test": len(problem.y["test"]),
        "samplers": {PROBIT: repr(how.gibbs), SOFTMAX: repr(how.hamiltonian)},
        "worst_mixing_of_probabilities_shown": mixing,
        "log_evidence": {name: float(found[name]["log_evidence"]) for name in APPROXIMATIONS},
    }
    return Ground(problem, {name: _method(values, row) for name, values in found.items()}, row, record, caveats)


def _classifier(inference: Any, problem: Digits, **how: Any) -> GPClassifier:
    clf = GPClassifier(kernel(), inference=inference, optimizer=None, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # becomes a caveat of the results
        return clf.fit(problem.X["train"], problem.y["train"])


def approximate(name: str, problem: Digits) -> dict[str, NDArray[Any]]:
    """Probabilities by split, and latent moments at the training rows."""
    clf = _classifier(APPROXIMATIONS[name], problem)
    gaussian = clf.posterior_.gaussian
    return {
        **{split: clf.predict_proba(problem.X[split]) for split in SPLITS},
        "mean": gaussian.mean,
        "cov": gaussian.covariance,
        "log_evidence": np.array(clf.log_marginal_likelihood_value_),
        "converged": np.array(clf.status_.value == "converged"),
    }


def _tierney_kadane(shared: Experiment, problem: Digits, how: Size) -> dict[str, dict[str, NDArray[Any]]]:
    """Ratios of evidences, a checkpoint for every few rows."""
    steps = {"LA-TKP": 1, "EP-TKP": how.ep_tkp_step}
    tasks: dict[str, Callable[[], Any]] = {}
    for name, inference in TIERNEY_KADANE.items():
        # One fit for all blocks, and none if they are all there.
        fitted = cache(partial(_classifier, inference, problem, probabilities="tkp"))
        for split, rows in _blocks(problem, steps[name]):
            key = f"{name}/{split}/{rows[0]}" + f" by {steps[name]}" * (steps[name] > 1)
            tasks[key] = lambda fitted=fitted, split=split, rows=rows: {
                "probability": fitted().predict_proba(problem.X[split][rows])
            }
    values = shared.run(tasks)
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name in TIERNEY_KADANE:
        mine = {split: [values[key]["probability"] for key in tasks if key.startswith(f"{name}/{split}/")] for split in SPLITS}
        found[name] = {split: np.concatenate(parts) for split, parts in mine.items()}
        found[name] |= {f"{split}_rows": np.arange(0, len(problem.y[split]), steps[name]) for split in SPLITS}
    return found


def _blocks(problem: Digits, step: int) -> Iterator[tuple[str, IntArray]]:
    for split in SPLITS:
        rows = np.arange(0, len(problem.y[split]), step)
        for first in range(0, rows.size, ROWS_AT_ONCE):
            yield split, rows[first : first + ROWS_AT_ONCE]


def sample(name: str, problem: Digits, row: int, how: Size, shared: Experiment) -> dict[str, NDArray[Any]]:
    """Probabilities by split, their mixing where the figure shows them (the true class), and draws of the row's latents."""
    sampler: Any = how.gibbs if name == PROBIT else how.hamiltonian
    sampler = replace(sampler, checkpoint=str(shared.checkpoint.path / name.replace(" ", "-")))
    clf = _classifier(sampler, problem, random_state=shared.seed, n_jobs=how.jobs)
    draws = clf.posterior_.draws.f[:, :, :, row].reshape(-1, len(problem.names))
    out = {split: clf.predict_proba(problem.X[split]) for split in SPLITS}
    for split in SPLITS:
        mixing = clf.proba_diagnostics(problem.X[split])
        for key, values in mixing.items():
            shown = np.take_along_axis(values, problem.y[split][:, None], axis=1)[:, 0]
            out[key] = np.concatenate([out[key], shown]) if key in out else shown
    return {**out, "draws": draws}


def _method(values: dict[str, NDArray[Any]], row: int) -> Method:
    rows = {split: values.get(f"{split}_rows", np.arange(len(values[split]))) for split in SPLITS}
    draws = values.get("draws", np.empty((0, 3)))
    if draws.size:
        mean, cov = draws.mean(axis=0), np.cov(draws.T)
    elif "mean" in values:
        mean, cov = values["mean"][row], values["cov"][row]
    else:
        mean, cov = np.empty(0), np.empty((0, 0))
    return Method(rows, {split: values[split] for split in SPLITS}, mean, cov, draws)


def main() -> None:
    """All methods, without a figure."""
    here = ground(Experiment.from_command_line("usps_marginals", __doc__ or ""))
    print(here.record, *here.caveats, sep="\n")


if __name__ == "__main__":
    main()
