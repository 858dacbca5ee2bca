"""Table 1 and section 5.3: how the cost of one iteration grows with n and c, and CPU times relative to LA on USPS 3 vs 5 vs 7.

An exponent is the slope of log seconds against log n or log c; that of the theory is the slope of the operation count of the
paper's Table 1 over the same sizes, so that (c + 1) n³ has an exponent below 1 in c. Seconds are CPU seconds of one thread.

What is one iteration: of EP, IEP, QIEP, VB and LA, a whole inference of a few iterations over their number, so that VB's only
factorisation is shared out among them; of LA-TKP, all labels of one test input, given the fit; of MCMC, a sweep of Gibbs
sampling: plain at fixed hyperparameters, with the library's latent move, and as in the paper with hyperparameters sampled
given the latents, where every step of a trajectory factorises K.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel
from threadpoolctl import threadpool_limits

from experiments.common import Experiment
from experiments.table2 import sample_rows
from nestgp import kernels
from nestgp.arrays import FloatArray, IntArray
from nestgp.datasets import load
from nestgp.hyper import HalfStudentT
from nestgp.inference import IndependentEP, Laplace, NestedEP, QuadratureEP, VariationalBayes
from nestgp.plotting import INK, MARKERS, MUTED, PALETTE, STYLE
from nestgp.sampling import Gibbs
from nestgp.sampling.chain import Problem
from nestgp.tierney_kadane import tierney_kadane_log_probabilities

Sizes = list[tuple[int, int]]
Count = Callable[[float, float], float]

INFERENCES: dict[str, Any] = {
    "EP": NestedEP(),
    "IEP": IndependentEP(),
    "QIEP": QuadratureEP(),
    "VB": VariationalBayes(),
    "LA": Laplace(),
}
#: Name → sampler, and whether hyperparameters are sampled.
SWEEPS = {
    "Gibbs": (Gibbs(latent_move="none"), False),
    "Gibbs, HMC": (Gibbs(latent_move="hmc"), False),
    "Gibbs, θ | f": (Gibbs(latent_move="none", hyper="joint"), True),
}
METHODS = (*INFERENCES, "LA-TKP", *SWEEPS)
#: The paper's Table 1, first and second row; LA-TKP: its text, c + 1 times LA.
POSTERIOR: dict[str, Count] = {
    "EP": lambda n, c: (c + 1) * n**3,
    "IEP": lambda n, c: c * n**3,
    "QIEP": lambda n, c: c * n**3,
    "VB": lambda n, c: n**3,
    "LA": lambda n, c: (c + 1) * n**3,
    "LA-TKP": lambda n, c: (c + 1) ** 2 * n**3,
    **dict.fromkeys(SWEEPS, lambda n, c: c * n**3),
}
LIKELIHOOD: dict[str, Count] = {
    "EP": lambda n, c: n * (c - 1) ** 3,
    "IEP": lambda n, c: n * (c - 1) ** 3,
    "QIEP": lambda n, c: n * (2 * c - 1),
    "VB": lambda n, c: n * (c - 1),
    "LA": lambda n, c: n * c,
    "LA-TKP": lambda n, c: n * c * (c + 1),
    **dict.fromkeys(SWEEPS, lambda n, c: n * c),
}
#: n with the first number of classes; c with the second n.
N, C = (500, 1000, 2000, 3000), (3, 5, 10, 20)
QUICK_N, QUICK_C = (50, 80, 120), (3, 4, 6)
#: Nine settings of figure 6's grid, (log σ², log l).
SETTINGS = tuple(product((4.0, 6.0, 8.0), (2.0, 2.5, 3.0)))
#: CPU time relative to LA as the paper states it.
PAPER_RATIOS = {"EP": "about 3", "VB": "about 3", "MCMC": "over 100 (thousands of sweeps)", "LA-TKP": "c + 1 per test input"}
ITERATIONS, NEW_POINTS, SWEEP_COUNT, REPEATS, QUICK_REPEATS = 5, 4, 5, 3, 1
#: Sweeps that stand for one MCMC run in the ratios.
MCMC_SWEEPS = 1000


def problem(n: int, c: int) -> tuple[Kernel, FloatArray, IntArray]:
    """A kernel, inputs (n, 5), and labels that follow them with some noise; every class occurs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    y = (X @ rng.normal(size=(5, c)) + 0.5 * rng.normal(size=(n, c))).argmax(axis=1)
    y[:c] = np.arange(c)
    return ConstantKernel(10.0) * RBF(2.0), X, y


def cpu(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def iteration_seconds(
    method: str, kernel: Kernel, X: FloatArray, y: IntArray, X_new: FloatArray, repeats: int
) -> float:
    """CPU seconds of one iteration, test input or sweep (see the top of this file); the best of some repeats."""
    c = int(y.max()) + 1
    if method in SWEEPS:
        return sweep_seconds(method, kernel, X, y, c)
    K = kernels.gram(kernel, X)
    if method == "LA-TKP":
        return min(test_input_seconds(kernel, K, X, y, c, X_new) for _ in range(repeats))
    inference = replace(INFERENCES[method], max_iter=ITERATIONS, tol=0.0)
    made = inference.infer(K, y, c).n_iter  # compiled before it is timed
    return min(cpu(partial(inference.infer, K, y, c)) for _ in range(repeats)) / made


def test_input_seconds(kernel: Kernel, K: FloatArray, X: FloatArray, y: IntArray, c: int, X_new: FloatArray) -> float:
    """LA-TKP: all labels of one test input, given the fit."""
    inference = Laplace()
    border = (kernels.cross(kernel, X, X_new), kernels.diagonal(kernel, X_new))
    fit = inference.infer(K, y, c)
    return cpu(partial(tierney_kadane_log_probabilities, inference, fit, K, y, c, *border)) / len(X_new)


def sweep_seconds(method: str, kernel: Kernel, X: FloatArray, y: IntArray, c: int) -> float:
    """Mean over some sweeps after some of warm-up: the length of a trajectory is random."""
    sampler, sampled = SWEEPS[method]
    rng = np.random.default_rng(0)
    setting = Problem(kernel, X, y, c, HalfStudentT() if sampled else None, np.ones(kernels.theta(kernel).size))
    state = sampler.start(setting, rng)
    for _ in range(SWEEP_COUNT):
        sampler.sweep(setting, state, rng, True)
    return cpu(lambda: [sampler.sweep(setting, state, rng, False) for _ in range(SWEEP_COUNT)]) / SWEEP_COUNT


def scaling(method: str, n: int, c: int, repeats: int) -> float:
    """Seconds of one iteration at this size, one thread."""
    kernel, X, y = problem(n, c)
    X_new = np.random.default_rng(1).normal(size=(NEW_POINTS, X.shape[1]))
    with threadpool_limits(1):
        return iteration_seconds(method, kernel, X, y, X_new, repeats)


def exponent(sizes: Sizes, values: list[float], axis: int) -> float:
    """Slope of log value against log n (axis 0) or log c (axis 1)."""
    return float(np.polyfit(np.log([size[axis] for size in sizes]), np.log(values), 1)[0])


def usps_seconds(quick: bool, log_variance: float, log_lengthscale: float) -> dict[str, Any]:
    """CPU seconds of every method at one setting, to convergence; per test input for LA-TKP, per sweep for Gibbs."""
    data = load("usps_357")
    assert data.X_test is not None
    rows = sample_rows(data.y_train) if quick else np.arange(len(data.y_train))
    X, y, X_new = data.X_train[rows], data.y_train[rows], data.X_test[:NEW_POINTS]
    kernel = ConstantKernel(np.exp(log_variance)) * RBF(np.exp(log_lengthscale))
    K, found = kernels.gram(kernel, X), {}
    with threadpool_limits(1):
        for name, inference in INFERENCES.items():
            replace(inference, max_iter=1).infer(K, y, 3)  # compiled before it is timed
            start = time.process_time()
            fit = inference.infer(K, y, 3)
            seconds = time.process_time() - start
            found[name] = {"seconds": seconds, "n_iter": fit.n_iter, "status": fit.status.value}
        found["LA-TKP"] = {"seconds": test_input_seconds(kernel, K, X, y, 3, X_new)}
        for name in ("Gibbs", "Gibbs, HMC"):
            found[name] = {"seconds": sweep_seconds(name, kernel, X, y, 3)}
    return found


def ratios(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """CPU time over that of LA, summed over the settings; of Gibbs, that of 1000 sweeps."""
    total = {name: sum(setting[name]["seconds"] for setting in settings) for name in settings[0]}
    each = {name: seconds / total["LA"] * (MCMC_SWEEPS if name in SWEEPS else 1) for name, seconds in total.items()}
    return {"ratio_to_LA": each, "sweeps": MCMC_SWEEPS, "paper": PAPER_RATIOS}


def cut_short(settings: tuple[tuple[float, float], ...], on_usps: list[dict[str, Any]]) -> list[str]:
    """A sentence for every method that was stopped before it converged."""
    found: dict[str, list[str]] = {}
    for (v, x), row in zip(settings, on_usps, strict=True):
        for method, values in row.items():
            if values.get("status", "converged") != "converged":
                found.setdefault(method, []).append(f"({v:g}, {x:g}) after {values['n_iter']} iterations")
    tail = "without having converged: its CPU time over that of LA would be more than stated"
    return [f"{method} was stopped at (log σ², log l) = {', '.join(where)}, {tail}" for method, where in found.items()]


def table(seconds: dict[str, dict[tuple[int, int], float]], along_n: Sizes, along_c: Sizes) -> dict[str, Any]:
    """Measured and theoretical exponents of every method."""
    found: dict[str, Any] = {}
    for method in METHODS:
        found[method] = {}
        for axis, name, sizes in ((0, "n", along_n), (1, "c", along_c)):
            measured = exponent(sizes, [seconds[method][size] for size in sizes], axis)
            theory = {
                f"theory_{row}": exponent(sizes, [count[method](*size) for size in sizes], axis)
                for row, count in (("posterior", POSTERIOR), ("likelihood", LIKELIHOOD))
            }
            found[method][name] = {"measured": measured, **theory}
    return found


def draw(seconds: dict[str, dict[tuple[int, int], float]], exponents: dict[str, Any], along_n: Sizes, along_c: Sizes) -> Figure:
    """Seconds of one iteration against n and against c, log scales; the legend has the measured exponent and the theory's."""
    with rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(9.5, 5.2), layout="constrained")
        for ax, axis, name, sizes in zip(figure.subplots(1, 2), (0, 1), "nc", (along_n, along_c), strict=True):
            x = [size[axis] for size in sizes]
            for i, method in enumerate(METHODS):
                row = exponents[method][name]
                label = f"{method}: {row['measured']:.2f} ({row['theory_posterior']:.2f})"
                look = {"marker": MARKERS[i % len(MARKERS)], "color": (*PALETTE, INK)[i], "markersize": 4, "linewidth": 1.1}
                ax.plot(x, [seconds[method][size] for size in sizes], label=label, **look)
            fixed = f"c = {sizes[0][1]}" if axis == 0 else f"n = {sizes[0][0]}"
            ax.set(xscale="log", yscale="log", xlabel=name, ylabel="CPU seconds of one iteration")
            ax.set_title(f"{fixed}: exponent of {name}, in brackets that of the posterior in theory", fontsize=8, color=INK)
            ax.set_xticks(x, [str(value) for value in x])
            ax.minorticks_off()
            ax.grid(alpha=0.25, color=MUTED)
            ax.legend(frameon=False, fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return figure


def run(experiment: Experiment) -> None:
    """Exponents, ratios on USPS, figure."""
    ns, cs = (QUICK_N, QUICK_C) if experiment.quick else (N, C)
    along_n, along_c = [(n, cs[0]) for n in ns], [(ns[1], c) for c in cs]
    sizes = list(dict.fromkeys([*along_n, *along_c]))
    repeats = QUICK_REPEATS if experiment.quick else REPEATS
    work: dict[str, Callable[[], Any]] = {}
    for (n, c), method in product(sizes, METHODS):
        work[f"{method}/{n}/{c}"] = partial(scaling, method, n, c, repeats)
    settings = SETTINGS[:1] if experiment.quick else SETTINGS
    for setting in settings:
        work[f"usps/{setting[0]:g}/{setting[1]:g}"] = partial(usps_seconds, experiment.quick, *setting)
    values = experiment.run(work)
    seconds = {method: {size: values[f"{method}/{size[0]}/{size[1]}"] for size in sizes} for method in METHODS}
    exponents = table(seconds, along_n, along_c)
    on_usps = [values[f"usps/{v:g}/{x:g}"] for v, x in settings]
    rows = [{"method": m, "n": n, "c": c, "seconds": seconds[m][n, c]} for m in METHODS for n, c in sizes]
    usps = [{"log_variance": v, "log_lengthscale": x, **row} for (v, x), row in zip(settings, on_usps, strict=True)]
    payload = {"exponents": exponents, "iterations": rows, "usps": usps, "usps_ratios": ratios(on_usps)}
    experiment.save(payload, cut_short(settings, on_usps))
    experiment.save_figure(draw(seconds, exponents, along_n, along_c))


def main(argv: list[str] | None = None) -> None:
    run(Experiment.from_command_line("table1", "Scaling of every method with n and c, and CPU times relative to LA.", argv))


if __name__ == "__main__":
    main()
