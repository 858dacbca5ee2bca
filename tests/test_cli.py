"""The command line: what it says, what it writes, and that importing the library stays light."""

import builtins
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import nestgp
from nestgp import cli, diagnostics


def test_version() -> None:
    result = CliRunner().invoke(cli.build_app(), ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"nestgp {nestgp.__version__}"


def test_help_lists_the_demo() -> None:
    result = CliRunner().invoke(cli.build_app(), ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output


def test_bench_lists_every_benchmark_with_a_line_on_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(cli.build_app(), ["bench", "--list"]).exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines())
    assert lines["floor"].startswith("One outer iteration of nested EP")
    # What has a run() is a benchmark.
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (cli.SOURCE / "benchmarks").glob("*.py")}
    assert set(lines) == {name for name, source in sources.items() if "\ndef run(" in source}


def test_bench_passes_names_and_exit_status_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()  # else a regular package elsewhere on the path would come first
    (tmp_path / "benchmarks" / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    monkeypatch.setattr(cli, "SOURCE", tmp_path)
    assert CliRunner().invoke(cli.build_app(), ["bench", "floor", "wine"]).exit_code == 3
    assert capfd.readouterr().out.strip() == "['floor', 'wine']"


def test_bench_names_what_there_is_when_asked_for_another(capfd: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(cli.build_app(), ["bench", "flour"]).exit_code != 0
    assert "no benchmark flour: choose from floor" in capfd.readouterr().err


def test_bench_without_a_source_tree_says_where_the_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "SOURCE", tmp_path)
    with pytest.raises(SystemExit, match=r"live in the source tree(.|\n)*clone"):
        cli.run_benchmarks([])


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named_in_plain_words(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit, match=rf"needs {missing}, .* pip install 'nestgp\[cli\]'"):
        cli.main()


def test_other_missing_modules_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(cli, "build_app", broken)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        cli.main()


def test_importing_nestgp_is_light() -> None:
    heavy = "numba", "matplotlib", "typer", "rich", "pandas", "sklearn"
    code = f"import nestgp, sys; print(sorted(set({heavy!r}) & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(Path(nestgp.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"


def test_unknown_attributes_are_reported() -> None:
    with pytest.raises(AttributeError, match="'nestgp' has no attribute 'GPRegressor'"):
        _ = nestgp.GPRegressor


def test_demo_split_is_stratified_and_repeats() -> None:
    data, again = cli.load_demo_data(3), cli.load_demo_data(3)
    np.testing.assert_array_equal(data.X_test, again.X_test)
    assert abs(len(data.y_train) - len(data.y_test)) <= 1
    # 59, 71 and 48 wines: a stratified half differs from the other by at most one of each cultivar.
    assert np.abs(np.bincount(data.y_train) - np.bincount(data.y_test)).max() <= 1
    assert not np.array_equal(data.X_test, cli.load_demo_data(4).X_test)


def test_demo_prints_the_scores_and_saves_the_figure(tmp_path: Path) -> None:
    figure = tmp_path / "demo.png"
    result = CliRunner().invoke(cli.build_app(), ["demo", "--figure", str(figure)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "converged" in result.output
    assert "log predictive density" in result.output
    assert figure.read_bytes().startswith(b"\x89PNG")
    from matplotlib.image import imread

    image = imread(figure)
    assert image.shape[1] > image.shape[0] > 500
    assert image[..., :3].std() > 0.1  # not blank


def test_demo_scores_are_those_of_the_printed_table() -> None:
    data = cli.load_demo_data(0)
    name = cli.NESTED_EP
    score = cli.fit_and_score(name, cli.make_pipelines(len(data.columns), 0)[name], data)
    np.testing.assert_allclose(score.proba.sum(axis=1), 1.0, atol=1e-12)
    # Ignorance scores −log 3 = −1.10 and 0.40; Wine is easy, so far better than that is the least to expect.
    assert diagnostics.mean_log_predictive_density(score.proba, data.y_test) > -0.3
    assert diagnostics.accuracy(score.proba, data.y_test) > 0.9
    table = cli.score_table([score], data)
    cells = list(table.columns[1].cells)
    assert cells[0] == score.log_evidence
    assert f"{diagnostics.brier(score.proba, data.y_test):.3f}" in cells
    assert "converged" in score.convergence


def test_progress_shows_the_last_line_printed() -> None:
    lines: list[str] = []
    stream = cli._LastLine(lines.append)
    print("evaluation 1\n\nevaluation 2 [x]", file=stream)
    assert lines == ["evaluation 1", "evaluation 2 \\[x]"]  # brackets are markup to the console: escaped
