"""Figures 1 to 3: the search for a draw, densities and their contours, and the quick form of each figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import fig1, fig2, fig3, toy
from experiments.common import Experiment

from nestgp.predict import class_probabilities

FIGURES = {"fig1": fig1, "fig2": fig2, "fig3": fig3}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Records of the quick runs, which share one set of checkpoints."""
    directory = tmp_path_factory.mktemp("results")
    for name, module in FIGURES.items():
        module.run(Experiment(name, f"python -m experiments.{name} --quick", quick=True, results=directory))
        assert (directory / f"{name}-quick.png").stat().st_size > 10_000
        assert (directory / f"{name}-quick.svg").exists()
    return {name: json.loads((directory / f"{name}-quick.json").read_text()) for name in FIGURES}


def test_inputs_are_drawn_as_in_section_5_1() -> None:
    draws = np.array([toy.draw(seed)[0][:, 0].reshape(3, 5) for seed in range(400)])
    np.testing.assert_allclose(draws.mean(axis=(0, 2)), [-1.0, 2.0, 3.0], atol=0.1)
    np.testing.assert_allclose(draws.std(axis=(0, 2)), [1.0, 0.5, 0.5], rtol=0.05)
    np.testing.assert_array_equal(toy.draw(3)[0], toy.draw(3)[0])
    np.testing.assert_array_equal(toy.draw(3)[1], np.repeat([0, 1, 2], 5))


def test_search_keeps_the_closest_admissible_inputs() -> None:
    found = toy.search(2, 37)
    for seed in range(2):
        X, y = toy.draw(seed)
        at = np.array([[found["x_i"][seed]], [found["x_j"][seed]]])
        assert X[y == 0].min() <= at[0, 0] <= -1.0
        gaps = []
        for method in ("EP", "IEP"):
            p = toy.fit(method, X, y).predict_proba(at)
            gaps += [abs(p[0, 0] - toy.PAPER["x_i"][method]), abs(p[1, 1] - toy.PAPER["x_j"][method])]
            if method == "EP":
                assert p[1, 2] > p[1, 0]
        assert found["gap"][seed] == pytest.approx(max(gaps), abs=1e-9)


def test_levels_hold_their_share_of_a_gaussian() -> None:
    """Of a Gaussian in the plane, the region of mass p ends where the density is 1 − p of its peak."""
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 0.7], [0.7, 1.0]])
    reach = 6 * np.sqrt(np.diag(cov))
    points = toy.plane(mean - reach, mean + reach, 401)
    density = toy.gaussian(mean, cov)(points)
    np.testing.assert_allclose(toy.mass_levels(density) / density.max(), 1.0 - np.array(toy.MASSES), atol=2e-3)


def test_integral_of_the_tilted_density_is_the_class_probability() -> None:
    """The noise u and the differences are right if the plane integral is the orthant probability."""
    mean, cov = np.array([2.0, 0.5, -1.0]), np.array([[3.0, 1.0, 0.2], [1.0, 2.0, -0.3], [0.2, -0.3, 1.5]])
    exact = np.exp(class_probabilities(mean[None, None], cov[None, None], "exact"))[0]
    for name, k in toy.CLASS_AT.items():
        point = toy.Point(name, 0.0, {}, {"EP": mean}, {"EP": cov}, np.zeros((1, 3)))
        g = toy.transformed(point, np.random.default_rng(0))
        reach = 7 * np.sqrt(np.diag(g.cov["EP"]))
        points = toy.plane(g.mean["EP"] - reach, g.mean["EP"] + reach, 301)
        density = toy.tilted(toy.gaussian(g.mean["EP"], g.cov["EP"]))
        assert density(points).sum() * np.prod(points[1, 1] - points[0, 0]) == pytest.approx(exact[k], abs=1e-6)


def test_a_chain_that_has_not_mixed_is_a_caveat() -> None:
    good = {"rhat": np.array([1.0, 1.009]), "ess_bulk": np.array([500.0, 400.0]), "ess_tail": np.array([450.0, 900.0])}
    assert toy.judge(good) == ({"rhat": 1.009, "ess_bulk": 400.0, "ess_tail": 450.0}, [])
    for name, value in (("rhat", 1.02), ("ess_bulk", 399.0), ("ess_tail", 20.0), ("rhat", np.nan)):
        assert toy.judge(good | {name: np.array([value, good[name][0]])})[1][0].startswith("MCMC has not mixed")


def test_figures_show_one_draw_and_say_that_it_was_searched_for(results: dict[str, Any]) -> None:
    shared = [record["results"]["probabilities"] for record in results.values()]
    assert shared[0] == shared[1] == shared[2]
    for record in results.values():
        assert "draw is unknown" in record["caveats"][0]
        assert record["caveats"][1].startswith("MCMC has not mixed")  # a quick run is far too short
        search = record["results"]["search"]
        assert search["seeds_tried"] == toy.QUICK.seeds
        X, _ = toy.draw(int(search["chosen"]["seed"]))
        assert record["results"]["x_train"] == X[:, 0].tolist()


def test_numbers_of_figure_1(results: dict[str, Any]) -> None:
    record = results["fig1"]["results"]
    X, y = toy.draw(int(record["search"]["chosen"]["seed"]))
    x = np.array(record["curves"]["x"])[:, None]
    for method in ("EP", "IEP"):
        clf = toy.fit(method, X, y)
        np.testing.assert_allclose(record["curves"]["probabilities"][method], clf.predict_proba(x), atol=1e-9)
        np.testing.assert_allclose(record["curves"]["latent_means"][method], clf.predict_latent(x)[0], atol=1e-6)
    np.testing.assert_allclose(np.sum(record["curves"]["probabilities"]["MCMC"], axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize(("figure", "name"), [("fig2", "x_i"), ("fig3", "x_j")])
def test_numbers_of_figures_2_and_3(results: dict[str, Any], figure: str, name: str) -> None:
    record = results[figure]["results"]
    point = record["point"]
    assert point["paper"] == toy.PAPER[name]
    X, y = toy.draw(int(record["search"]["chosen"]["seed"]))
    ep = toy.fit("EP", X, y)
    assert point["here"]["EP"] == pytest.approx(ep.predict_proba([[point["x"]]])[0, toy.CLASS_AT[name]], abs=1e-9)
    np.testing.assert_allclose(record["latent_cov"]["EP"], ep.predict_latent([[point["x"]]])[1][0], rtol=1e-6)
    assert np.count_nonzero(np.array(record["latent_cov"]["IEP"]) - np.diag(np.diag(record["latent_cov"]["IEP"]))) == 0
    # the panel cuts the tails off, and its pixels are coarse
    for method in ("EP", "IEP"):
        assert record["integral_of_tilted_density_on_the_grid"][method] == pytest.approx(point["here"][method], abs=0.02)


def test_a_second_run_uses_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "QUICK", toy.QUICK._replace(seeds=1))
    experiment = Experiment("fig1", "c", quick=True, results=tmp_path)
    first = toy.ground(experiment)

    def never(*_: Any) -> Any:
        raise AssertionError("computed although it was stored")

    for name in ("search", "confirm", "sample"):
        monkeypatch.setattr(toy, name, never)
    again = toy.ground(Experiment("fig2", "c", quick=True, results=tmp_path))
    np.testing.assert_array_equal(again.probability["MCMC"], first.probability["MCMC"])
