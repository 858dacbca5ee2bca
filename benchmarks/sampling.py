"""Cost of a Gibbs sweep against its bare matrix products, and effective draws per second of the ways to sample θ."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

from benchmarks.floor import problem
from benchmarks.record import save
from nestgp import hyper, kernels
from nestgp.datasets import load
from nestgp.inference import NestedEP
from nestgp.sampling import Gibbs
from nestgp.sampling.chain import ChainState, Problem, run_chain
from nestgp.sampling.mixing import ess_bulk

N, C = 1157, 3
#: Data set → sweeps of warm-up and after it, per scheme of sampling θ.
SWEEPS = {"glass": {"surrogate": (300, 500), "collapsed": (300, 1000), "joint": (300, 1000)},
          "usps_357": {"surrogate": (30, 60), "collapsed": (100, 500), "joint": (100, 500)}}  # fmt: skip


def totals(tasks: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Mean time of each task, in turns: the length of a trajectory is random, and the best time would be that of the shortest."""
    total = dict.fromkeys(tasks, 0.0)
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            total[name] += time.perf_counter() - start
    return {name: seconds / repeats for name, seconds in total.items()}


def bare_products(state: ChainState, b: Any, steps: int) -> None:
    """The products of a sweep: L z and Q r for f | v; per leapfrog L or Lᵀ, K twice and M each way; half at either end."""
    factors = state.factors
    factors.times(factors.prior_root, b)
    factors.times(factors.noisy_inverse, b)
    if steps:
        w = state.whitening
        for _ in range(2 * (steps + 1) + 2):
            factors.times(w.L, b)
            w.blocks.multiply_kernel(b)
            w.blocks.solve(b)
            w.blocks.multiply_kernel(b)


def sweep_rows() -> list[dict[str, Any]]:
    """A sweep at fixed θ with and without the latent move, beside the products with n×n matrices that it makes."""
    _, y = problem(N, C)
    X = np.random.default_rng(0).normal(size=(N, 5))
    setting = Problem(ConstantKernel(50.0) * RBF(2.0), X, y.astype(np.int64), C, None, np.ones(2))
    rows = []
    for move in ("none", "hmc"):
        rng, sampler = np.random.default_rng(0), Gibbs(latent_move=move)
        state = sampler.start(setting, rng)
        for _ in range(30):
            sampler.sweep(setting, state, rng, True)
        state.latent_step.freeze()
        steps = 0 if move == "none" else int(np.ceil(0.5 * np.pi / state.latent_step.value))
        tasks = {
            "products": partial(bare_products, state, rng.standard_normal((C, N)), steps),
            "sweep": partial(sampler.sweep, setting, state, rng, False),
        }
        t = totals(tasks, 100 if move == "none" else 30)
        rows.append({"latent_move": move, "leapfrog_steps": steps, **t, "ratio": t["sweep"] / t["products"]})
    return rows


def efficiency_rows(name: str) -> list[dict[str, Any]]:
    """Effective draws per second of θ and of the log likelihood, one chain each from the type-II MAP of nested EP."""
    split = next(iter(load(name).folds()))
    X, y = split.X_train, split.y_train.astype(np.int64)
    c = int(y.max()) + 1
    if name == "usps_357":
        kernel: Any = ConstantKernel(np.exp(4.0), (1e-3, 1e5)) * RBF(np.exp(2.0), (0.1, 1e3))
    else:
        kernel = ConstantKernel(10.0, (1e-3, 1e5)) * RBF(np.full(X.shape[1], 2.0), (1e-2, 1e4))
    units = np.ones(kernels.theta(kernel).size)
    objective = hyper.Objective(kernel, X, y, c, NestedEP(tol=1e-3), hyper.HalfStudentT(), units)
    kernel = kernels.with_theta(kernel, hyper.search(objective, kernels.theta(kernel), kernels.bounds(kernel)).theta)
    rows = []
    for scheme, (warmup, draws) in SWEEPS[name].items():
        sampler = Gibbs(draws, warmup, 1, hyper=scheme, latent_move="none" if scheme == "joint" else "hmc")
        setting = Problem(kernel, X, y, c, hyper.HalfStudentT(), units)
        start = time.process_time()  # of one thread: another process takes nothing from it
        records, _ = run_chain(sampler, setting, np.random.default_rng(0), 0, "")
        seconds = (time.process_time() - start) * draws / (draws + warmup)
        theta = np.array([r.theta for r in records])
        log_p = np.array([np.log(r.probability).sum() for r in records])
        ess = [ess_bulk(column[None]) for column in (*theta.T, log_p)]
        row = {"data": name, "scheme": scheme, "draws": draws, "seconds": seconds, "ess_theta_min": min(ess[:-1])}
        rows.append({**row, "ess_log_likelihood": ess[-1], "ess_min_per_second": min(ess) / seconds})
        print(rows[-1], flush=True)
    return rows


def run() -> None:
    """The sweep first, then Glass and USPS 3 vs 5 vs 7."""
    save(
        "sampling_sweep",
        sweep_rows(),
        "a sweep at fixed hyperparameters at most 1.5 times its bare products, n = 1157, c = 3",
        ratios={"ratio": "lower"},
        key=("latent_move",),
    )
    with threadpool_limits(1):
        rows = [row for name in SWEEPS for row in efficiency_rows(name)]
    save(
        "sampling",
        [
            row | {"over_joint": row["ess_min_per_second"] / joint["ess_min_per_second"]}
            for row in rows
            for joint in rows
            if (joint["data"], joint["scheme"]) == (row["data"], "joint")
        ],
        "effective draws per second: surrogate and collapsed against the paper's θ | f (joint)",
        ratios={"over_joint": "higher"},
        key=("data", "scheme"),
    )
