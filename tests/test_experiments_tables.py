"""Figure 6, tables 1 and 2, figures 8 to 10 in their quick form, and the parts of them that can be checked by themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import fig6, fig8, fig9, fig10, table1, table2
from experiments.common import Checkpoint, Experiment, one_command
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.preprocessing import StandardScaler

from nestgp import hyper, kernels
from nestgp.datasets import load
from nestgp.hyper import HalfStudentT
from nestgp.inference import Laplace, NestedEP


@pytest.fixture(scope="module")
def data(request: pytest.FixtureRequest) -> Iterator[None]:
    """NESTGP_DATA or, if that is unset, where the other tests find the data sets; skips where neither exists."""
    chosen = os.environ.get("NESTGP_DATA")
    if chosen is not None and not Path(chosen).is_dir():
        pytest.skip(f"no data sets: NESTGP_DATA is {chosen}, which is not a directory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NESTGP_DATA", chosen or str(request.getfixturevalue("datasets_dir")))
        yield


def quick(name: str, results: Path) -> Experiment:
    return Experiment(name, one_command(name, quick=True), quick=True, results=results)


def results_of(name: str, results: Path) -> Any:
    return json.loads((results / f"{name}-quick.json").read_text())["results"]


def never(*_: Any) -> Any:
    raise AssertionError("computed although it was stored")


# ------------------------------------------------------------------------------------------- table 2, figures 8 and 9


@pytest.fixture(scope="module")
def table(data: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a quick table 2."""
    path = tmp_path_factory.mktemp("table2")
    table2.run(quick("table2", path))
    return path


def test_table_2_scores_follow_from_the_rows_it_stores(table: Path) -> None:
    results = results_of("table2", table)
    assert list(results) == list(table2.QUICK_DATASETS)
    for dataset in results.values():
        assert list(dataset["methods"]) == [*table2.METHODS, *table2.PEERS]
        assert dataset["not_run"] == {}
        for protocol, keep in (("paper", slice(None)), ("clean", np.array(dataset["clean"]))):
            if protocol not in dataset["summary"]:
                assert all(dataset["clean"])
                continue
            targets = np.array(dataset["targets"])[keep]
            assert dataset["summary"][protocol]["n"] == len(targets)
            for method, row in dataset["methods"].items():
                found = dataset["summary"][protocol]["methods"][method]
                lpd, hit = np.array(row["lpd"])[keep], np.array(row["predicted"])[keep] == targets
                assert found["mlpd"]["mean"] == pytest.approx(lpd.mean())
                assert found["accuracy"]["mean"] == pytest.approx(hit.mean())
                low, high = found["mlpd"]["low"], found["mlpd"]["high"]
                if np.ptp(lpd) > 0.0:
                    assert low < lpd.mean() < high
                else:  # rows that are all far from those of training: each class has 1/c
                    assert low == pytest.approx(high)


def test_table_2_learns_and_laplace_and_its_correction_share_hyperparameters(table: Path) -> None:
    for dataset in results_of("table2", table).values():
        scores = dataset["summary"]["paper"]["methods"]
        assert scores["EP"]["mlpd"]["mean"] > -np.log(dataset["n_classes"])
        laplace, corrected = (dataset["methods"][method]["fits"][0]["theta"] for method in ("LA", "LA-TKP"))
        assert laplace == pytest.approx(corrected)


def test_chains_too_short_to_mix_are_marked(table: Path) -> None:
    record = json.loads((table / "table2-quick.json").read_text())
    for name, dataset in record["results"].items():
        row = dataset["methods"]["MCMC"]
        assert not row["reliable"]
        assert row["fits"][0]["predictions"]["ess_bulk"] < 400
        assert any(note.startswith(f"{name}/MCMC: 1 of 1 fits not mixed") for note in record["caveats"])


def test_a_quick_table_2_says_which_packages_it_leaves_out(table: Path) -> None:
    record = json.loads((table / "table2-quick.json").read_text())
    assert table2.QUICK_CAVEAT in record["caveats"]


def test_table_2_goes_on_from_its_checkpoints(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (table / "table2-quick.json").read_text()
    monkeypatch.setattr(table2, "run_method", never)
    table2.run(quick("table2", table))
    assert (table / "table2-quick.json").read_text() == before


def test_a_part_of_table_2_says_what_is_missing(data: None, tmp_path: Path) -> None:
    table2.main(["--only", "teaching/logistic*", "--quick", "--results", str(tmp_path)])
    record = json.loads((tmp_path / "table2-quick.json").read_text())
    assert list(record["results"]["teaching"]["methods"]) == ["logistic regression"]
    (note,) = (note for note in record["caveats"] if note.startswith("not yet computed"))
    assert "glass/logistic regression" in note
    assert "teaching/logistic regression" not in note


def test_a_part_of_table_2_keeps_the_rest_of_the_file(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (table / "table2-quick.json").read_text()
    (tmp_path / "table2-quick.json").write_text(before)  # and no checkpoints, as in a fresh clone
    computed = []

    def store_of_the_table(experiment: Any, key: str, *_: Any) -> Any:
        computed.append(key)
        return quick("table2", table).checkpoint.get(key, never)

    monkeypatch.setattr(table2, "run_method", store_of_the_table)
    table2.run(quick("table2", tmp_path), "teaching/EP/*")
    assert computed == ["teaching/EP/0"]
    assert (tmp_path / "table2-quick.json").read_text() == before


def test_folds_of_an_unfinished_method_are_kept_in_the_file(data: None, tmp_path: Path) -> None:
    experiment = Experiment("table2", "nestgp reproduce table2", results=tmp_path)
    row = {"lpd": [-1.0], "predicted": [0], "status": "converged"}
    experiment.checkpoint.get("glass/MCMC/3", lambda: row)
    table2.report(experiment, {})
    assert json.loads((tmp_path / "table2.json").read_text())["results"]["glass"]["some_folds"] == {"MCMC": {"3": row}}
    experiment.checkpoint.clear()
    table2.recall(experiment, lambda key: key == "glass/MCMC/2")
    assert experiment.checkpoint.get("glass/MCMC/3", never) == row
    experiment.checkpoint.clear()
    table2.recall(experiment, lambda key: key == "glass/MCMC/3")
    assert "glass/MCMC/3" not in experiment.checkpoint


@pytest.mark.parametrize("figure", [fig8, fig9])
def test_figures_are_drawn_from_the_table(figure: Any, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2, "run_method", never)
    name = figure.__name__.rpartition(".")[2]
    figure.run(quick(name, table))
    for part in ("", "-peers"):
        assert "not a result" in (table / f"{name}-quick{part}.svg").read_text()
    drawn, stored = results_of(name, table)["summary"], results_of("table2", table)
    assert drawn == {dataset: row["summary"] for dataset, row in stored.items()}
    assert results_of(name, table)["table"] == "nestgp reproduce table2 --quick"
    assert "hollow" in (table / f"{name}-quick.svg").read_text()
    assert "hollow" not in (table / f"{name}-quick-peers.svg").read_text()


def test_summary_compares_with_ep_point_by_point() -> None:
    targets = np.array([0, 1, 2, 0])
    rows = {
        "EP": {"lpd": np.array([-0.1, -0.2, -0.3, -2.0]), "predicted": np.array([0, 1, 2, 1])},
        "VB": {"lpd": np.array([-0.2, -0.3, -0.4, -2.1]), "predicted": np.array([0, 1, 2, 1])},
        "LA": {"lpd": np.array([-0.1, -0.2, -0.3, -1.0]), "predicted": np.array([0, 1, 2, 0])},
    }
    found = table2.summarise_methods(rows, targets)
    assert "lpd_minus_ep" not in found["EP"]
    assert found["VB"]["lpd_minus_ep"][:3] == pytest.approx((-0.1, -0.1, -0.1))
    assert (found["VB"]["same_as_ep"], found["LA"]["same_as_ep"]) == (True, False)
    assert found["LA"]["accuracy_minus_ep"].only_a == 1
    assert found["LA"]["accuracy"].mean == 1.0
    assert found["LA"]["accuracy"].low == pytest.approx(0.025 ** (1 / 5))  # Beta(5, 1)


# ------------------------------------------------------------------------------------------------------- figure 6


def test_figure_6(data: None, tmp_path: Path) -> None:
    fig6.run(quick("fig6", tmp_path))
    found = results_of("fig6", tmp_path)
    for method in fig6.METHODS:
        evidence = np.array(found["grids"][method]["log_evidence"])
        assert evidence.shape == (3, 3)
        best = found["summary"][method]["maxima"]["log_evidence"]
        i, j = found["log_variance"].index(best["log_variance"]), found["log_lengthscale"].index(best["log_lengthscale"])
        assert best["value"] == evidence[i, j] == evidence.max()
    assert (tmp_path / "fig6-quick.png").stat().st_size > 10_000


def test_warm_start_along_the_grid_changes_nothing(data: None) -> None:
    usps = load("usps_357")
    rows = table2.sample_rows(usps.y_train, 40)
    problem = (usps.X_train[rows], usps.y_train[rows], usps.X_train[::100], usps.y_train[::100])
    warm, cold = fig6.Surface(NestedEP(), *problem), fig6.Surface(NestedEP(), *problem)
    warm.at(2.0, 2.0)
    a, b = warm.at(2.5, 4.0), cold.at(2.5, 4.0)
    assert [a[name] for name in fig6.SURFACES] == pytest.approx([b[name] for name in fig6.SURFACES], abs=1e-5)


def test_path_visits_all_points_and_only_steps_to_neighbours() -> None:
    steps = fig6.path(3, 4)
    assert sorted(steps) == [(i, j) for i in range(3) for j in range(4)]
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in pairwise(steps))


def test_overlap_is_whole_where_the_surfaces_agree_and_none_where_they_are_opposite() -> None:
    log_l, log_v = np.arange(4.0), np.arange(5.0)
    surface = -((log_v[:, None] - 1) ** 2) - (log_l - 2) ** 2
    same = fig6.describe({"log_evidence": surface, "lpd": surface, "accuracy": surface}, log_l, log_v)
    other = fig6.describe({"log_evidence": surface, "lpd": -surface, "accuracy": surface}, log_l, log_v)
    assert same["maxima"]["lpd"] == {"value": 0.0, "log_lengthscale": 2.0, "log_variance": 1.0}
    assert same["lpd_lost_by_choosing_by_evidence"] == 0.0
    assert other["lpd_lost_by_choosing_by_evidence"] == 13.0  # (4 − 1)² + (0 − 2)²
    assert (same["top_10%_overlap_of_evidence_and_lpd"], other["top_10%_overlap_of_evidence_and_lpd"]) == (1.0, 0.0)


# -------------------------------------------------------------------------------------------------------- table 1


def test_table_1(data: None, tmp_path: Path) -> None:
    table1.run(quick("table1", tmp_path))
    found = results_of("table1", tmp_path)
    assert list(found["exponents"]) == list(table1.METHODS)
    assert all(row["seconds"] > 0 for row in found["iterations"])
    assert found["usps_ratios"]["ratio_to_LA"]["LA"] == 1.0
    assert {row["status"] for row in found["usps"][0].values() if isinstance(row, dict) and "status" in row} == {"converged"}


def test_exponents_of_the_theory() -> None:
    sizes = [(100, 3), (200, 3), (400, 3)]
    assert table1.exponent(sizes, [table1.POSTERIOR["EP"](*size) for size in sizes], 0) == pytest.approx(3.0)
    classes = [(100, 3), (100, 6), (100, 12)]
    assert table1.exponent(classes, [table1.POSTERIOR["IEP"](*size) for size in classes], 1) == pytest.approx(1.0)
    assert table1.exponent(classes, [table1.POSTERIOR["VB"](*size) for size in classes], 1) == pytest.approx(0.0, abs=1e-12)


# ------------------------------------------------------------------------------------------------------ figure 10


def test_figure_10(data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hyper, "COARSE_FROM", 100)
    fig10.run(quick("fig10", tmp_path))
    found = results_of("fig10", tmp_path)
    assert list(found["methods"]) == list(fig10.METHODS)
    assert found["summary"]["paper"]["methods"]["EP"]["mlpd"]["mean"] > -np.log(10)
    for method, search in found["searches"].items():
        sizes = [stage["rows"] for stage in search["stages"]]
        assert sizes[0] == 150
        assert sizes == sorted(sizes, reverse=True)
        assert found["methods"][method]["fits"][0]["theta"] == search["theta"] == search["stages"][0]["theta"]


def test_figure_10_one_method_beside_the_others_as_they_were(data: None, tmp_path: Path) -> None:
    fig10.main(["--quick", "--results", str(tmp_path)])
    path = tmp_path / "fig10-quick.json"
    before = json.loads(path.read_text())
    changed = json.loads(path.read_text())
    for method in ("EP", "VB"):
        changed["results"]["methods"][method]["fits"][0]["log_evidence"] = 7.0
    path.write_text(json.dumps(changed))
    fig10.main(["--quick", "--fresh", "--only", "VB", "--results", str(tmp_path)])
    after = json.loads(path.read_text())
    assert after["results"]["methods"]["EP"] == changed["results"]["methods"]["EP"]
    (new,), (old,) = (record["results"]["methods"]["VB"]["fits"] for record in (after, before))
    assert new["log_evidence"] == pytest.approx(old["log_evidence"], abs=1e-9)
    assert after["results"]["summary"] == before["results"]["summary"]


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load("wine")
    X, y = StandardScaler().fit_transform(data.X_train), data.y_train
    kernel, units = ConstantKernel(1.0) * RBF(np.ones(13)), np.ones(14)
    problem = (kernel, X, y, 3, Laplace(), HalfStudentT(), units)
    start, bounds = kernels.theta(kernel), kernels.bounds(kernel)
    computed: list[int] = []
    evaluate = hyper.Objective._evaluate

    def counted(self: Any, theta: Any) -> Any:
        computed.append(len(self.y))
        if len(computed) == stop_at:
            raise KeyboardInterrupt
        return evaluate(self, theta)

    monkeypatch.setattr(hyper.Objective, "_evaluate", counted)
    monkeypatch.setattr(hyper, "COARSE_FROM", 100)

    def climb(folder: str) -> fig10.Remembered:
        objective = fig10.Remembered(Checkpoint(tmp_path / folder), "LA", *problem)
        hyper.coarse_to_fine(objective, start, bounds)
        return objective

    stop_at = 0
    whole = climb("whole")
    assert set(computed) == {60, 178}  # a third of 59, 71 and 48 rows, rounded up, and all of them
    count = len(computed)
    stop_at = count - 1
    assert computed[stop_at - 1] == 178  # among few rows an interrupt would keep their best instead
    computed.clear()
    with pytest.raises(KeyboardInterrupt):
        climb("parts")
    stop_at = 0
    again = climb("parts")
    assert whole.best is not None
    assert again.best is not None
    assert_allclose(again.best[0], whole.best[0], atol=1e-6)
    assert again.n_evaluations == whole.n_evaluations
    assert len(computed) == count + 1  # only the one that was interrupted is tried twice
