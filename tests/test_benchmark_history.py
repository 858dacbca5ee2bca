"""The guard over the benchmarks' history, on made-up histories: which ratios are called worse, and what is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__ as command
from benchmarks import history, record

KEY = {"n": 1157, "c": 3, "threads": 1}


def runs(*values: float, better: str = "lower", name: str = "floor", **key: Any) -> list[history.Entry]:
    """One run per value, each with a single row."""
    rows = [{**(key or KEY), "ratio": value} for value in values]
    return [history.entry(name, [row], {"ratio": better}, tuple(key or KEY)) | {"machine": "m"} for row in rows]


def test_a_worse_ratio_is_told_with_its_key_and_its_change() -> None:
    told = history.worse(runs(1.21, 1.45))
    assert told == ["worse: floor n=1157 c=3 threads=1 ratio 1.21 -> 1.45 (+20 %, m)"]


@pytest.mark.parametrize(
    ("better", "values", "flagged"),
    [
        ("lower", (1.0, 1.16), True),
        ("lower", (1.0, 1.14), False),
        ("lower", (1.0, 0.2), False),
        ("higher", (10.0, 8.4), True),
        ("higher", (10.0, 8.6), False),
        ("higher", (10.0, 30.0), False),
        ("lower", (9.0,), False),  # nothing to compare with
        ("lower", (1.0, 1.5, 1.0), False),  # only the latest counts
        ("lower", (1.0, 1.0, 9.0, 1.2), True),  # the median is not moved by one bad run
        ("lower", (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.1), False),  # five runs back, no further
        ("lower", (2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.3), True),
    ],
)
def test_the_latest_is_compared_with_the_median_of_up_to_five_before(
    better: str, values: tuple[float, ...], flagged: bool
) -> None:
    assert bool(history.worse(runs(*values, better=better))) is flagged


def test_every_key_and_every_benchmark_has_a_history_of_its_own() -> None:
    mixed = [*runs(1.0, n=200), *runs(2.0, n=500), *runs(3.0, name="wine", n=200), *runs(1.3, n=200), *runs(2.0, n=500)]
    assert history.worse(mixed) == ["worse: floor n=200 ratio 1 -> 1.3 (+30 %, m)"]


def test_only_runs_of_the_same_machine_are_compared() -> None:
    first, second, third, last = (run | {"machine": name} for run, name in zip(runs(1.0, 2.0, 1.2, 2.1), "abab", strict=True))
    assert history.worse([first, second]) == []
    told = ["worse: floor n=1157 c=3 threads=1 ratio 1 -> 1.2 (+20 %, a)"]
    assert history.worse([first, second, third]) == told
    assert history.worse([first, second, third, last]) == told  # what came of another machine later hides nothing
    nowhere = [{name: value for name, value in run.items() if name != "machine"} for run in runs(1.0, 2.0)]
    assert history.worse(nowhere) == []
    assert history.origin()["machine"].endswith("cores")


def test_a_change_for_the_worse_of_a_ratio_that_should_be_high_is_negative() -> None:
    assert history.worse(runs(8.0, 6.0, better="higher", n=500)) == ["worse: floor n=500 ratio 8 -> 6 (-25 %, m)"]


def test_rows_without_a_ratio_are_left_out() -> None:
    rows = [{"n": 1, "seconds": 2.0}, {"n": 2, "ratio": 1.5, "speed_up": 4.0}]
    made = history.entry("floor", rows, {"ratio": "lower", "speed_up": "higher"}, ("n",))
    assert made["rows"] == [{"key": {"n": 2}, "ratios": {"ratio": 1.5, "speed_up": 4.0}}]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_cannot_be_a_ratio_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"n=7: ratio is {value}, but ratios are positive"):
        runs(value, n=7)


def test_a_direction_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="'lower' or 'higher'"):
        runs(1.0, better="smaller")


def test_a_key_that_does_not_tell_rows_apart_is_refused() -> None:
    rows = [{"n": 1, "c": 3, "ratio": 1.0}, {"n": 1, "c": 5, "ratio": 1.0}]
    with pytest.raises(ValueError, match="two rows have the same key"):
        history.entry("floor", rows, {"ratio": "lower"}, ("n",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results go to a folder of the test's own, which is not there yet."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "HISTORY", tmp_path / "results" / "history.jsonl")
    return tmp_path / "results"


def save(ratio: float) -> None:
    record.save("floor", [{**KEY, "ratio": ratio}], "a goal", ratios={"ratio": "lower"}, key=tuple(KEY))


def test_save_adds_a_line_per_run_and_check_fails_on_the_latest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--check"]) == 0  # no history yet
    statuses = []
    for ratio in (1.2, 1.5, 1.2):
        save(ratio)
        statuses.append(command.main(["--check"]))
    assert statuses == [0, 1, 0]
    # Once by the run, once by the check.
    assert capsys.readouterr().out.count("worse: floor n=1157 c=3 threads=1 ratio 1.2 -> 1.5 (+25 %") == 2
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["rows"][0]["ratios"]["ratio"] for line in lines] == [1.2, 1.5, 1.2]
    assert set(lines[0]) == {"date", "nestgp", "commit", "machine", "benchmark", "better", "rows"}


def test_a_benchmark_without_ratios_leaves_no_history(folder: Path) -> None:
    record.save("floor", [{"n": 1, "seconds": 2.0}], "a goal")
    assert [path.name for path in folder.iterdir()] == ["floor.json"]


def test_a_second_table_names_the_benchmark_that_makes_it(folder: Path) -> None:
    record.save("prediction_memory", [{"n": 1}], "a goal")
    assert json.loads((folder / "prediction_memory.json").read_text())["command"] == "python -m benchmarks prediction"


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert history.origin()["commit"] is None
