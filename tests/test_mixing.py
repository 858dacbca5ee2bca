"""R-hat and effective sample sizes against ArviZ and against processes whose answer is known."""

import warnings

import numpy as np
import pytest

from nestgp.sampling.mixing import ess_bulk, ess_tail, mixed, rhat, split_chains, summarise
from tests.oracles._types import Array


def ar1(rho: float, chains: int, draws: int, seed: int) -> Array:
    """Stationary AR(1) chains of unit variance, (chains, draws)."""
    rng = np.random.default_rng(seed)
    x = np.empty((chains, draws))
    x[:, 0] = rng.standard_normal(chains)
    for t in range(1, draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1.0 - rho**2) * rng.standard_normal(chains)
    return x


def stuck() -> Array:
    """Four chains of which one stays elsewhere."""
    return ar1(0.3, 4, 500, 7) + np.array([[0.0], [0.0], [0.0], [3.0]])


SERIES = {
    "iid": ar1(0.0, 4, 500, 0),
    "odd length": ar1(0.0, 3, 501, 1),
    "one chain": ar1(0.4, 1, 1000, 2),
    "slow": ar1(0.95, 4, 1000, 3),
    "antithetic": ar1(-0.6, 4, 500, 4),
    "heavy tails": np.tan(1.5 * np.tanh(ar1(0.5, 4, 600, 5))),
    "drift": ar1(0.2, 2, 400, 6) + np.linspace(0.0, 2.0, 400),
    "stuck": stuck(),
    "ties": np.round(ar1(0.5, 4, 500, 8)),
}


@pytest.mark.parametrize("name", SERIES)
def test_against_arviz(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import announces a refactor
        arviz = pytest.importorskip("arviz")
    x = SERIES[name]
    if len(x) > 1:  # ArviZ refuses one chain, of which the halves can be compared all the same
        assert rhat(x) == pytest.approx(float(arviz.rhat(x, method="rank")), rel=1e-10)
    # Both truncate the sum of autocorrelations by Geyer's rule; ArviZ adds part of the first pair that is left out.
    assert ess_bulk(x) == pytest.approx(float(arviz.ess(x, method="bulk")), rel=0.05)
    assert ess_tail(x) == pytest.approx(float(arviz.ess(x, method="tail")), rel=0.05)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_draws_of_ar1(rho: float) -> None:
    """m n (1 − ρ)/(1 + ρ); the estimate of 8 × 4000 draws has a standard error of a few per cent."""
    x = ar1(rho, 8, 4000, 9)
    assert ess_bulk(x) == pytest.approx(x.size * (1.0 - rho) / (1.0 + rho), rel=0.15)
    assert rhat(x) < 1.01


def test_stuck_and_drifting_chains_are_seen() -> None:
    assert rhat(SERIES["stuck"]) > 1.3
    assert rhat(SERIES["drift"]) > 1.1
    assert ess_bulk(SERIES["stuck"]) < 20
    wide = ar1(0.0, 4, 500, 10) * np.array([[1.0], [1.0], [1.0], [6.0]])
    assert rhat(wide) > 1.1  # equal means, unequal spreads: only the folded draws tell


def test_monotone_transformations_change_nothing() -> None:
    x = SERIES["slow"]
    assert rhat(np.exp(3.0 * x)) == pytest.approx(rhat(x), abs=5e-3)  # the folded half is not invariant
    assert ess_bulk(np.exp(3.0 * x)) == pytest.approx(ess_bulk(x), rel=1e-12)


def test_constant_chains() -> None:
    same = np.full((4, 100), 0.25)
    assert rhat(same) == 1.0
    assert ess_bulk(same) == 400.0
    apart = same + np.arange(4.0)[:, None]
    assert rhat(apart) > 1e6
    assert np.isnan(rhat(same[:, :3]))
    assert np.isnan(ess_bulk(same[:, :3]))
    assert np.isnan(ess_tail(same[:, :3]))


def test_split_drops_the_middle_of_an_odd_chain() -> None:
    x = np.arange(10.0).reshape(2, 5)
    np.testing.assert_array_equal(split_chains(x), [[0.0, 1.0], [5.0, 6.0], [3.0, 4.0], [8.0, 9.0]])


def test_mixed_needs_every_quantity() -> None:
    good, bad = ar1(0.0, 4, 1000, 11), stuck()
    assert mixed(summarise(good[:, :, None]))
    both = np.stack([good[:, :500], bad], axis=2)
    assert not mixed(summarise(both))
    assert not mixed(summarise(good[:, :90, None]))  # 360 draws
