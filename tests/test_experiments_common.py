"""The ground of the experiments: records, figures, checkpoints, progress, paired comparison."""

from __future__ import annotations

import io
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from experiments import common
from experiments.common import Checkpoint, Experiment, Progress, compare_paired, duration, save_figure, save_result
from matplotlib.figure import Figure

from nestgp.diagnostics import Interval, bayesian_bootstrap_interval, compare_log_density


def never() -> Any:
    raise AssertionError("computed although it was stored")


# ------------------------------------------------------------------------------------------------------ records


def test_result_holds_what_is_needed_to_repeat_it(tmp_path: Path) -> None:
    payload = {"mlpd": Interval(-0.1, -0.2, -0.05), "surface": np.array([[1.0, np.inf], [np.nan, 2.5]]), 3: np.float32(0.5)}
    path = save_result("demo", payload, "python -m experiments.demo", 7, True, ["n is small"], tmp_path)
    assert path == tmp_path / "demo.json"

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is not JSON")

    record = json.loads(path.read_text(), parse_constant=refuse)
    assert record["command"] == "python -m experiments.demo"
    assert (record["seed"], record["quick"], record["caveats"]) == (7, True, ["n is small"])
    assert set(record["versions"]) == {"nestgp", "numpy", "scipy", "scikit-learn", "numba"}
    assert record["versions"]["numpy"] == np.__version__
    assert record["results"]["mlpd"] == {"mean": -0.1, "low": -0.2, "high": -0.05, "level": 0.95}
    assert record["results"]["surface"] == [[1.0, "inf"], ["nan", 2.5]]
    assert record["results"]["3"] == 0.5


def test_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    save_result("demo", 1, "c", 0, False, directory=tmp_path)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_result("demo", object(), "c", 0, False, directory=tmp_path)
    assert json.loads((tmp_path / "demo.json").read_text())["results"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["demo.json"]


# ------------------------------------------------------------------------------------------------------ figures


@pytest.fixture
def figure() -> Any:
    drawn, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [0, 1])
    yield drawn
    plt.close(drawn)


def test_figure_is_written_twice_and_says_quick_and_caveats(figure: Figure, tmp_path: Path) -> None:
    png = save_figure(figure, tmp_path / "full", quick=False)
    assert png == tmp_path / "full.png"
    save_figure(figure, tmp_path / "quick", quick=True, caveats=["folds hold other rows"])
    full, quick = ((tmp_path / f"{name}.svg").read_text() for name in ("full", "quick"))
    assert "quick run" not in full
    # Text becomes outlines in SVG, each line with its words as a comment.
    words = " ".join(re.findall("<!-- (.*?) -->", quick))
    assert "quick run: smaller than the experiment, not a result; folds hold other rows" in words
    small, large = (plt.imread(tmp_path / f"{name}.png") for name in ("full", "quick"))
    assert large.shape[0] > small.shape[0]  # the line is below the picture, not on it
    assert not figure.texts


def test_png_has_150_dots_per_inch(figure: Figure, tmp_path: Path) -> None:
    from PIL import Image

    with Image.open(save_figure(figure, tmp_path / "a.b", quick=False)) as image:
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
    assert (tmp_path / "a.b.svg").exists()


def test_same_figure_same_svg(figure: Figure, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        save_figure(figure, tmp_path / "same", quick=True)
        texts.append((tmp_path / "same.svg").read_text())
    assert texts[0] == texts[1]


# -------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("value", [1.5, None, [1, 2], {"a": 0.1, "b": [None, "x"]}, {}])
def test_checkpoint_computes_once(tmp_path: Path, value: Any) -> None:
    assert Checkpoint(tmp_path / "c").get("key", lambda: value) == value
    assert Checkpoint(tmp_path / "c").get("key", never) == value


def test_checkpoint_of_arrays_keeps_bits_and_types(tmp_path: Path) -> None:
    value = {"p": np.array([[0.1, np.nan]]), "hit": np.array([True, False]), "n": np.arange(3)}
    store = Checkpoint(tmp_path / "c")
    for compute in (lambda: value, never):
        back = store.get("glass/ep", compute)
        assert back.keys() == value.keys()
        for name, array in value.items():
            assert back[name].dtype == array.dtype
            np.testing.assert_array_equal(back[name], array)


def test_checkpoint_gives_the_same_the_first_time_and_later(tmp_path: Path) -> None:
    store = Checkpoint(tmp_path)
    first = store.get("k", lambda: (np.float64(1.0), (2, 3), -math.inf))
    assert first == [1.0, [2, 3], "-inf"]
    assert store.get("k", never) == first


def test_checkpoint_keys_that_look_alike_stay_apart(tmp_path: Path) -> None:
    store = Checkpoint(tmp_path)
    keys = ["a/b", "a-b", "A/b", "a b", "a" * 200, "a" * 201]
    for i, key in enumerate(keys):
        assert key not in store
        store.get(key, partial(int, i))
    assert [store.get(key, never) for key in keys] == list(range(6))
    # Also where names of files do not tell upper from lower case.
    assert len({file.name.lower() for file in tmp_path.glob("*.json")}) == 6


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_interrupted_computation_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    def compute() -> Any:
        raise stop

    store = Checkpoint(tmp_path / "c")
    with pytest.raises(stop):
        store.get("k", compute)
    assert "k" not in store
    assert store.get("k", lambda: 2) == 2


def test_interrupted_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoint(tmp_path)

    def half(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(common.np, "savez_compressed", half)
        with pytest.raises(KeyboardInterrupt):
            store.get("k", lambda: {"a": np.ones(2)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [3, {"a": np.ones(2)}])
def test_damaged_checkpoint_is_named(tmp_path: Path, value: Any) -> None:
    store = Checkpoint(tmp_path)
    store.get("k", lambda: value)
    (file,) = tmp_path.glob("k-*")
    file.write_bytes(b"{")
    with pytest.raises(ValueError, match=rf"{file.name} of 'k' cannot be read; remove it"):
        store.get("k", never)


def test_clear(tmp_path: Path) -> None:
    store = Checkpoint(tmp_path / "c")
    store.get("a", lambda: 1)
    store.get("b", lambda: {"x": np.ones(1)})
    chains = [store.path / "MCMC.chain0.pkl", store.path / "chains" / "glass-MCMC-0.chain1.pkl"]
    chains[1].parent.mkdir()
    for chain in chains:
        chain.write_bytes(b"half a chain")
    store.clear()
    assert "a" not in store
    assert "b" not in store
    assert not any(chain.exists() for chain in chains)
    Checkpoint(tmp_path / "nothing").clear()


# ----------------------------------------------------------------------------------------------------- progress


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_left_is_that_of_computed_steps_only() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(5, "table", stream, clock)
    progress.step("a", stored=True)
    for note, seconds in (("b", 60.0), ("c", 120.0), ("d", 0.5), ("e", 0.2)):
        clock.now += seconds
        progress.step(note)
    assert stream.getvalue().splitlines() == [
        "table: 1/5, from checkpoints (a)",
        "table: 2/5, about 3 min 0 s left (b)",
        "table: 3/5, about 3 min 0 s left (c)",
        "table: 5/5, 3 min 1 s in all (e)",  # d came within a second of the line before it
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (90000, "25 h 0 min")]
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# ------------------------------------------------------------------------------------------------- an experiment


def test_run_goes_on_where_it_was_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = Experiment("demo", "c", results=tmp_path)

    def stop() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run({"a": lambda: 1, "b": stop, "c": lambda: 3})
    assert experiment.run({"a": never, "b": lambda: 2, "c": lambda: 3}) == {"a": 1, "b": 2, "c": 3}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "demo: 3/3" in captured.err


def test_quick_runs_and_other_seeds_keep_apart(tmp_path: Path) -> None:
    runs = [
        Experiment.from_command_line("demo", "", ["--results", str(tmp_path), *more])
        for more in ([], ["--quick"], ["--seed", "1"], ["--quick", "--seed", "1"])
    ]
    for i, run in enumerate(runs):
        assert run.run({"k": partial(int, i)}) == {"k": i}
    assert [run.command for run in runs][::3] == [
        "nestgp reproduce demo",
        "nestgp reproduce demo --seed 1 --quick",
    ]
    assert runs[0].save({}).name == "demo.json"
    assert json.loads(runs[1].save({}).read_text())["quick"] is True
    assert {file.name for file in tmp_path.glob("*.json")} == {"demo.json", "demo-quick.json"}


def test_fresh_forgets(tmp_path: Path) -> None:
    options = ["--results", str(tmp_path)]
    Experiment.from_command_line("demo", "", options).run({"k": lambda: 1})
    assert Experiment.from_command_line("demo", "", options).run({"k": never}) == {"k": 1}
    assert Experiment.from_command_line("demo", "", [*options, "--fresh"]).run({"k": lambda: 2}) == {"k": 2}


def test_figures_of_an_experiment(figure: Figure, tmp_path: Path) -> None:
    run = Experiment("demo", "c", quick=True, results=tmp_path)
    assert run.save_figure(figure).name == "demo-quick.png"
    assert run.save_figure(figure, "glass").name == "demo-quick-glass.png"


# --------------------------------------------------------------------------------------------------- comparison


def test_paired_counts_and_probability_against_draws() -> None:
    a = np.array([True] * 30 + [True] * 9 + [False] * 4 + [False] * 7)
    b = np.array([True] * 30 + [False] * 9 + [True] * 4 + [False] * 7)
    pair = compare_paired(a, b)
    assert pair[:4] == (30, 9, 4, 7)
    draws = np.random.default_rng(0).dirichlet(np.array(pair[:4]) + 1.0, size=200_000)
    # Standard error of a share of 200 000 draws: at most 0.0011.
    assert pair.probability_a_better == pytest.approx(np.mean(draws[:, 1] > draws[:, 2]), abs=0.005)
    assert pair.difference.low < 0 < pair.difference.mean < pair.difference.high


def test_paired_probability_by_hand() -> None:
    # Beta(2, 1) has the distribution function x²: above 1/2 with probability 3/4.
    assert compare_paired([True], [False]).probability_a_better == pytest.approx(0.75, rel=1e-14)
    assert compare_paired([False], [True]).probability_a_better == pytest.approx(0.25, rel=1e-14)
    assert compare_paired([True, False], [True, False]).probability_a_better == pytest.approx(0.5, rel=1e-14)


def test_bootstrap_of_the_library_has_the_moments_of_rubins() -> None:
    # Σ w_i v_i with w ~ Dirichlet(1, …, 1) has mean v̄ and variance Σ (v_i − v̄)² / (n (n + 1)); normal for many values.
    v = np.random.default_rng(1).normal(size=400)
    interval = bayesian_bootstrap_interval(v)
    sd = math.sqrt(np.sum((v - v.mean()) ** 2) / (400 * 401))
    assert interval.mean == pytest.approx(v.mean(), rel=1e-12)
    # 4000 draws: a 2.5% quantile is known to about 0.04 of a standard deviation.
    assert interval.low == pytest.approx(v.mean() - 1.96 * sd, abs=0.15 * sd)
    assert interval.high == pytest.approx(v.mean() + 1.96 * sd, abs=0.15 * sd)
    assert compare_log_density(v, v) == (0.0, 0.0, 0.0, 0.95)
