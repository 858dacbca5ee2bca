"""Peers in processes of their own, with a made-up one: what `benchmarks.peers` and table 2 take from its script."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import peer_report, peers, problems
from experiments import fig8, table2
from experiments.common import Experiment

from nestgp.datasets import load

#: Class shares of the training rows, whatever the input; or an error, or no end. It fails only after the warm-up of 30 rows.
SCRIPT = """
import signal, sys
import numpy as np
sys.path.insert(0, {driver!r})
from driver import main

def fit(method, X, y, lengthscale, seed):
    if method == "breaks" and len(y) != 30:
        raise ArithmeticError("no such matrix")
    if method == "breaks_at_161" and len(y) == 161:
        raise ArithmeticError("no such matrix")
    if method == "waits" and len(y) != 30:
        signal.pause()
    return lambda X_test: np.tile(np.bincount(y) / len(y), (len(X_test), 1))

main(fit, ("numpy",))
"""
WINE = "wine"  # scikit-learn carries it


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package called fake, which this interpreter runs, is all that table 2 knows beside its own methods."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "run_fake.py").write_text(SCRIPT.format(driver=str(peers.SCRIPTS)))
    monkeypatch.setattr(peers, "SCRIPTS", scripts)
    monkeypatch.setitem(peers.PEERS, "fake", peers.Peer((), ("shares", "breaks", "breaks_at_161", "waits")))
    monkeypatch.setattr(table2, "DATASETS", (WINE,))
    monkeypatch.setattr(table2, "SCRIPTED_PEERS", {f"fake {method}": ("fake", method) for method in peers.PEERS["fake"].methods})


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return Experiment("table2", "nestgp reproduce table2", results=tmp_path / "results")


def record_of(experiment: Experiment) -> Any:
    return json.loads((experiment.results / "table2.json").read_text())


def share_of(split: Any) -> Any:
    """Log share in the training rows of each test row's class."""
    return np.log(np.bincount(split.y_train) / len(split.y_train))[split.y_test]


def test_folds_of_the_benchmark_are_those_of_the_data_set() -> None:
    for fold, split in enumerate(load(WINE).folds()):
        problem = problems.load(WINE, fold)
        for part in ("X_train", "y_train", "X_test", "y_test"):
            np.testing.assert_array_equal(getattr(problem, part), getattr(split, part))
        np.testing.assert_array_equal(problem.lengthscale, np.ones(13))


def test_median_of_squared_distances() -> None:
    assert problems.median_square(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])) == pytest.approx(18.0)  # of 1, 18, 25


def options_for(method: str, folds: int) -> Namespace:
    return Namespace(problems=[WINE], threads=["1"], folds=folds, peers=["fake"], methods=[method], limit=60.0, seed=0)


def test_the_rows_of_a_report_have_scores_but_nothing_per_test_row(fake: None) -> None:
    rows = peers.run_folds(peers.plan(options_for("shares", 2)))
    for fold, (row, split) in enumerate(zip(rows, load(WINE).folds(), strict=False)):
        assert (row["status"], row["fold"], row["n"], row["n_test"]) == ("ok", fold, len(split.y_train), len(split.y_test))
        assert row["mlpd"] == pytest.approx(share_of(split).mean())
        assert not set(peers.PER_ROW) & set(row)
        assert row["repeats"] == 1
    assert len(rows) == 2


def test_a_fold_that_is_left_over_is_timed_as_often_as_the_others(fake: None, tmp_path: Path) -> None:
    options, checkpoint = options_for("shares", 2), tmp_path / "some.partial.jsonl"
    first, *_ = peers.run_folds(peers.plan(options)[:1])
    checkpoint.write_text(json.dumps(first) + "\n")
    assert [row["repeats"] for row in peers.measure(options, checkpoint)] == [1, 1]
    single = peers.measure(options_for("shares", 1), tmp_path / "single.partial.jsonl")
    assert [row["repeats"] for row in single] == [peers.REPEATS]


def test_folds_after_one_that_fails_are_run_all_the_same(fake: None) -> None:
    rows = peers.run_folds(peers.plan(options_for("breaks_at_161", 10)))
    sizes = [len(split.y_train) for split in load(WINE).folds()]
    assert sorted(set(sizes)) == [160, 161]  # so that some break
    assert [row["status"] == "ok" for row in rows] == [n != 161 for n in sizes]


def fold_row(peer: str, fold: int, **found: object) -> dict[str, Any]:
    """A run of ten test rows, two seconds and an MLPD of −1, unless it says otherwise."""
    method = {"nestgp": "ep", "sklearn": "ovr", "gpflow": "vgp"}[peer]
    row = {"problem": "p", "threads": "1", "peer": peer, "method": method, "fold": fold, "limit": 60.0}
    row |= {"n": 90, "d": 2, "n_classes": 3, "n_test": 10, "status": "ok", "fit_seconds": 1.5, "predict_seconds": 0.5}
    return row | {"below_tiny": 0, "peak_megabytes": 1.0, "warm_up_seconds": 0.1, "mlpd": -1.0, "accuracy": 0.5} | found


def test_a_peer_is_compared_on_the_folds_that_it_has_not_failed_on() -> None:
    ours = [fold_row("nestgp", fold, mlpd=-2.0 * fold, fit_seconds=0.5) for fold in range(3)]
    theirs = [fold_row("sklearn", 0), fold_row("sklearn", 1), fold_row("sklearn", 2, status="failed (1): no such matrix")]
    mine, row = peer_report.compare([ours, theirs])
    assert (mine["ratio"], mine["mlpd"]) == (1.0, pytest.approx(-2.0))
    assert (row["status"], row["failed"], row["ratio"], row["mlpd_nestgp"]) == ("ok", 1, pytest.approx(2.0), pytest.approx(-1.0))
    assert (row["ratio_goal_met"], row["mlpd_goal_met"]) == (True, False)
    assert "sklearn ovr (failed on 1 of 3 folds)" in peer_report._cells(row)


def test_a_peer_that_was_stopped_or_failed_everywhere_has_no_scores() -> None:
    ours = [fold_row("nestgp", fold) for fold in range(2)]
    stopped = [fold_row("gpflow", 0), fold_row("gpflow", 1, status="timeout")]
    failed = [fold_row("sklearn", fold, status="failed (1): no such matrix") for fold in range(2)]
    _, slow, broken = peer_report.compare([ours, stopped, failed])
    assert (slow["ratio"], slow["ratio_is_lower_bound"]) == (62.0 / 4.0, True)
    assert "mlpd" not in slow
    assert broken["status"] == "failed (1): no such matrix"
    assert "ratio" not in broken


@pytest.mark.parametrize(("threads", "expected"), [("1", "1"), ("default", None), (None, "7")])
def test_thread_variables(threads: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert peers.variables("gpflow", threads).get("OMP_NUM_THREADS") == expected


def test_table_2_takes_in_the_rows_of_a_peer(fake: None, experiment: Experiment) -> None:
    table2.run(experiment, "wine/fake shares/*")
    data = record_of(experiment)["results"][WINE]
    row, splits = data["methods"]["fake shares"], list(load(WINE).folds())
    assert row["lpd"] == pytest.approx(np.concatenate([share_of(split) for split in splits]))
    assert row["predicted"] == [1] * 178  # the largest class in every fold
    assert row["reliable"]
    assert [set(fit) for fit in row["fits"]] == [{"status", "seconds", "below_tiny", "versions"}] * 10
    assert data["summary"]["paper"]["methods"]["fake shares"]["mlpd"]["mean"] == pytest.approx(np.mean(row["lpd"]))


@pytest.mark.parametrize(
    ("method", "limit", "reason"),
    [("fake breaks", 600.0, "failed (1): ArithmeticError: no such matrix"), ("fake waits", 0.05, "stopped after 0.05 s")],
)
def test_a_peer_that_fails_has_a_status_and_no_scores(
    method: str, limit: float, reason: str, fake: None, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table2, "LIMIT", limit)
    table2.run(experiment, f"wine/{method}/[34]")
    record = record_of(experiment)
    data = record["results"][WINE]
    assert data["not_run"] == {method: f"not run: {reason} (fold 3), and 1 more"}
    assert data["methods"] == {}
    assert f"wine/{method}: not run: {reason} (fold 3), and 1 more" in record["caveats"]


def test_a_peer_that_cannot_be_installed_is_named_and_tried_again_by_the_next_run(
    fake: None, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(peers, "environment", lambda name: RuntimeError("no network"))
        table2.run(experiment, "wine/fake shares/*")
    assert record_of(experiment)["results"][WINE]["not_run"] == {"fake shares": "not run: not installed: no network"}
    table2.run(experiment, "wine/fake shares/*")
    data = record_of(experiment)["results"][WINE]
    assert data["not_run"] == {}
    assert list(data["methods"]) == ["fake shares"]


def test_figures_tell_a_peer_that_failed_from_one_that_is_still_to_be_run(fake: None, experiment: Experiment) -> None:
    table2.run(experiment, "wine/logistic*")
    table2.run(experiment, "wine/fake breaks/0")
    results = record_of(experiment)["results"]
    assert [note.split(":")[0] for note in fig8.notes(results, ("logistic regression", "fake breaks"))] == ["not run"]
    assert [note.split(":")[0] for note in fig8.notes(results, ("logistic regression", "EP"))] == ["incomplete"]
    assert fig8.notes(results, ("logistic regression",)) == []
    figure = fig8.draw(results, "lpd", ("logistic regression", "fake breaks"))
    assert [text.get_text() for text in figure.axes[0].texts] == ["not run"]
