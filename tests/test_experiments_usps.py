"""Figures 4, 5 and 7 on USPS 3 vs 5 vs 7: the quick form of each, and that a trace is one long run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import fig4, fig5, fig7
from experiments import usps_marginals as usps
from experiments.common import Experiment
from sklearn.datasets import load_iris

from nestgp import datasets, kernels
from nestgp.inference import IndependentEP, NestedEP, QuadratureEP


@pytest.fixture(scope="module")
def data(request: pytest.FixtureRequest) -> Iterator[None]:
    """NESTGP_DATA or, if that is unset, where the other tests find the data sets; skips where USPS is missing."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("NESTGP_DATA"):
            patch.setenv("NESTGP_DATA", str(request.getfixturevalue("datasets_dir")))
        try:
            datasets.load("usps_357")
        except datasets.DatasetUnavailableError as error:
            pytest.skip(f"no USPS data: {error}")
        yield


def quick(module: Any, directory: Path) -> Any:
    name = module.__name__.rpartition(".")[2]
    module.run(Experiment(name, f"python -m experiments.{name} --quick", quick=True, results=directory))
    assert (directory / f"{name}-quick.png").stat().st_size > 10_000
    return json.loads((directory / f"{name}-quick.json").read_text())


@pytest.fixture(scope="module")
def marginals(data: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Records of figures 4 and 5, which share their checkpoints."""
    directory = tmp_path_factory.mktemp("results")
    return {"fig4": quick(fig4, directory), "fig5": quick(fig5, directory)}


def test_quick_runs_say_that_they_are_small(marginals: dict[str, Any]) -> None:
    for record in marginals.values():
        assert record["quick"]
        assert "90 training and 90 test rows instead of 1157 and 1175" in record["caveats"]
        assert any(caveat.startswith("MCMC probit has not mixed") for caveat in record["caveats"])
        assert any(caveat.startswith("MCMC softmax has not mixed") for caveat in record["caveats"])
        assert "EP-TKP of every 15th row only" in record["caveats"]


def test_numbers_of_figure_4(marginals: dict[str, Any]) -> None:
    record = marginals["fig4"]["results"]
    problem, _ = usps.digits(usps.QUICK.rows, 0)
    shown = record["probability_of_true_class"]
    for split in usps.SPLITS:
        y = problem.y[split]
        assert record["true_class"][split] == y.tolist()
        ep = usps.approximate("EP", problem)[split][np.arange(len(y)), y]
        np.testing.assert_allclose(shown["EP"][split], ep, atol=1e-5)
        assert len(shown["EP-TKP"][split]) == 6
        gap = np.array(shown["EP-TKP"][split]) - np.array(shown[usps.PROBIT][split])[::15]
        errors = record["difference_from_mcmc"]["EP-TKP against MCMC probit"][split]
        assert errors["rows"] == 6
        assert errors["mean"] == pytest.approx(gap.mean(), abs=2e-5)
        assert errors["rms"] == pytest.approx(np.sqrt(np.mean(gap**2)), abs=2e-5)
    lpd = np.log(shown["VB"]["test"])
    assert record["test_scores"]["VB"]["mlpd"] == pytest.approx(lpd.mean(), abs=1e-4)
    errors = record["difference_from_mcmc"]
    assert record["claims_of_the_paper"]["VB underestimates test rows"] == (
        errors["VB against MCMC probit"]["test"]["mean"] < 0
    )


def test_numbers_of_figure_5(marginals: dict[str, Any]) -> None:
    record = marginals["fig5"]["results"]
    problem, _ = usps.digits(usps.QUICK.rows, 0)
    row = record["row"]
    assert problem.y["train"][row] == usps.SHOWN_CLASS
    for name in ("EP", "LA"):
        found = usps.approximate(name, problem)
        np.testing.assert_allclose(record["latent_mean"][name], found["mean"][row], rtol=1e-6)
        np.testing.assert_allclose(record["latent_cov"][name], found["cov"][row], rtol=1e-6)
    cov = np.array(record["latent_cov"]["EP"])
    mcmc = np.array(record["latent_cov"][usps.PROBIT])
    ratio = np.sqrt([(c[1, 1] + c[0, 0] - 2 * c[0, 1]) for c in (cov, mcmc)])
    assert record["sd_of_contrasts_over_mcmc"]["EP"][0] == pytest.approx(ratio[0] / ratio[1])


def test_typical_row_is_the_median_of_class_2() -> None:
    p = np.zeros((7, 3))
    p[:, 1] = [0.9, 0.1, 0.8, 0.5, 0.95, 0.99, 0.2]
    assert usps.typical_row(p, np.array([1, 1, 1, 0, 2, 1, 1])) == 2


# ------------------------------------------------------------------------------------------------------- figure 7


@pytest.fixture(scope="module")
def iris() -> fig7.Problem:
    X, y = load_iris(return_X_y=True)
    kernel, train, test = usps.kernel(6.0, 0.5), slice(None, None, 4), slice(2, None, 4)
    cross = (kernels.cross(kernel, X[train], X[test]), kernels.diagonal(kernel, X[test]))
    return fig7.Problem(kernels.gram(kernel, X[train]), y[train], *cross, y[test], 3)


TRACED = {
    "EP standard": NestedEP(damping=0.8, inner_sweeps="converge", max_iter=9, tol=0.0),
    "EP incremental": NestedEP(damping=0.5, max_iter=9, tol=0.0),
    "IEP": IndependentEP(damping=0.8, inner_sweeps=1, max_iter=9, tol=0.0),
    "QIEP": QuadratureEP(damping=0.8, max_iter=9, tol=0.0),
}


@pytest.mark.parametrize("name", TRACED)
def test_trace_is_one_long_run(iris: fig7.Problem, name: str) -> None:
    """Its log Z is the history of the run, and its scores are those of the best state that shorter runs return."""
    inference = TRACED[name]
    rows = fig7.trace(inference, iris)
    start = fig7.from_nothing(inference, iris)
    for length in range(1, 10):
        fit = replace(inference, max_iter=length).infer(iris.K, iris.y, iris.n_classes, init=start)
        np.testing.assert_array_equal(rows["log_z"][:length], [row.log_evidence for row in fit.history])
        best = int(np.argmin(rows["residual"][:length]))
        assert iris.mlpd(fit.posterior, inference.default_rule) == pytest.approx(rows["mlpd"][best], abs=1e-12)


@pytest.mark.parametrize("name", TRACED)
def test_trace_begins_with_the_prior(iris: fig7.Problem, name: str) -> None:
    """Empty sites leave the prior, under which all classes are as probable (inner EP is not exact there)."""
    rows = fig7.trace(replace(TRACED[name], max_iter=1), iris)
    assert rows["mlpd"] == pytest.approx([-np.log(3)], abs=1e-6)
    assert rows["log_z"] == pytest.approx([-len(iris.y) * np.log(3)], rel=0.3)


def test_summary_of_a_run() -> None:
    log_z = np.array([-9.0, -3.0, -1.0, -2.0, -1.05, -1.0])
    rows = {"log_z": log_z, "mlpd": log_z / 10, "residual": np.ones(6), "damping": np.full(6, 0.8)}
    found = fig7.summary(rows, -1.0)
    assert found["updates_until_within_0.1"] == 4
    assert found["turns"] == 2
    assert found["drift_of_log_z_in_last_half"] == pytest.approx(1.0)
    assert fig7.summary(rows, 5.0)["updates_until_within_0.1"] is None


def test_quick_figure_7(data: None, tmp_path: Path) -> None:
    record = quick(fig7, tmp_path)
    assert "90 training and 90 test rows instead of 1157 and 1175" in record["caveats"]
    runs = record["results"]["runs"]
    assert len(runs) == 8
    assert all(len(run["log_z"]) == len(run["mlpd"]) == fig7.QUICK.updates + 1 for run in runs.values())
    # with converged inner EP nested IEP and quadrature IEP all but agree, as section 5.3 says
    assert record["results"]["iep_against_quadrature"]["standard, δ = 0.8"]["last"] < 0.5
    assert record["results"]["fixed_points"]["EP"]["converged"]
