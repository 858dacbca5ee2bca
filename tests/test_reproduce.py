"""`nestgp reproduce`: names, failures, the report, and claims decided on made-up numbers on both sides of their limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from experiments import __main__ as command
from experiments import claims, report, verdicts
from experiments import claims_scores as scores
from experiments.common import NAMES, Experiment, save_result
from experiments.fig7 import COLUMNS
from experiments.sections import SECTIONS
from experiments.usps_marginals import PROBIT, SOFTMAX
from experiments.verdicts import NOT_REPRODUCED, REPRODUCED, UNDECIDED
from typer.testing import CliRunner

from nestgp import cli
from nestgp.diagnostics import Interval

# -------------------------------------------------------------------------------------------------------- command


def test_all_runs_cheap_experiments_first_and_table_2_before_its_figures() -> None:
    assert set(NAMES) == {*(f"fig{i}" for i in range(1, 11)), "table1", "table2"}
    assert NAMES[:4] == ("fig1", "fig2", "fig3", "fig7")
    assert NAMES.index("table2") < NAMES.index("fig8") < NAMES.index("fig9")
    assert {section.name for section in SECTIONS} == set(NAMES)


def test_list_has_a_line_for_each(capfd: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(cli.build_app(), ["reproduce", "--list"]).exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines())
    assert list(lines) == [*NAMES, "all", "report"]
    assert lines["fig6"].startswith("Figure 6: log evidence")


def test_no_name_shows_the_list_and_runs_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run", lambda _: pytest.fail("ran"))
    assert command.main([]) == 0
    assert "fig10" in capsys.readouterr().out


def test_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["fig1", "fig11"])
    assert "no experiment fig11: choose from fig1, fig2" in capsys.readouterr().err


def test_cli_passes_everything_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").touch()
    (tmp_path / "experiments" / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    monkeypatch.setattr(cli, "SOURCE", tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ["reproduce", "fig6", "--quick", "--seed", "2", "--fresh", "--results", "here"]
    assert CliRunner().invoke(cli.build_app(), options).exit_code == 3
    folder = str(tmp_path.resolve() / "here")
    assert capfd.readouterr().out.strip() == str(["fig6", "--seed", "2", "--results", folder, "--quick", "--fresh"])


def test_without_a_source_tree_the_cli_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SOURCE", tmp_path)
    with pytest.raises(SystemExit, match=r"experiments live in the source tree(.|\n)*nestgp reproduce"):
        cli.run_experiments([])


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """Every experiment only remembers that it was run, and fig2 fails; the report is not written."""
    ran: list[Experiment] = []

    def run(experiment: Experiment) -> None:
        ran.append(experiment)
        if experiment.name == "fig2":
            raise ValueError("no such luck\nand more")

    monkeypatch.setattr(command, "module", lambda _: SimpleNamespace(run=run))
    monkeypatch.setattr(command, "write_report", lambda *_: None)
    return ran


def test_a_failure_is_told_at_the_end_and_stops_nothing(
    stubs: list[Experiment], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["all", "--quick", "--seed", "3", "--results", str(tmp_path)]) == 1
    assert [experiment.name for experiment in stubs] == list(NAMES)
    assert {(run.command, run.seed, run.quick, run.results) for run in stubs[:1]} == {
        ("nestgp reproduce fig1 --seed 3 --quick", 3, True, tmp_path)
    }
    assert capsys.readouterr().err.splitlines()[-1] == "fig2 failed: ValueError: no such luck"


def test_some_names_run_in_the_order_of_all(stubs: list[Experiment], tmp_path: Path) -> None:
    assert command.main(["fig4", "fig7", "--results", str(tmp_path)]) == 0
    assert [experiment.name for experiment in stubs] == ["fig7", "fig4"]
    assert stubs[0].command == "nestgp reproduce fig7"


def test_fresh_forgets_what_is_stored_under_a_shared_name_too(stubs: list[Experiment], tmp_path: Path) -> None:
    stored = [Experiment(name, "", results=tmp_path).checkpoint for name in ("toy", "fig6", "usps_marginals")]
    for checkpoint in stored:
        checkpoint.get("k", lambda: 1)
    command.main(["fig1", "fig3", "fig6", "--fresh", "--results", str(tmp_path)])
    assert ["k" in checkpoint for checkpoint in stored] == [False, False, True]


# --------------------------------------------------------------------------------------------------------- report


def toy(mcmc: float = 0.95, ep: float = 0.88, iep: float = 0.82, at_x_j: float = 0.47) -> dict[str, Any]:
    """Results of figure 1."""
    here = {"x_i": {"MCMC": mcmc, "EP": ep, "IEP": iep}, "x_j": {"MCMC": 0.47, "EP": at_x_j, "IEP": 0.47}}
    paper = {"MCMC": 0.95, "EP": 0.88, "IEP": 0.82}
    points = {name: {"x": -2.0, "class": 1, "here": values, "paper": paper} for name, values in here.items()}
    return {"probabilities": points, "mixing": {"ess_bulk": 900.0}}


def save(name: str, results: Any, folder: Path, quick: bool = False) -> None:
    stem = f"{name}-quick" if quick else name
    save_result(stem, results, f"nestgp reproduce {name}", 0, quick, ["a <caveat>"], folder)


def section_of(page: str, name: str) -> str:
    return page.split(f'<h2 id="{name}">')[1].split("<h2")[0]


def test_report_shows_what_there_is_and_says_what_there_is_not(tmp_path: Path) -> None:
    save("fig1", toy(), tmp_path)
    (tmp_path / "fig1.png").write_bytes(b"picture")
    (tmp_path / "fig1-more.png").write_bytes(b"another")
    save("fig6", {}, tmp_path, quick=True)
    (tmp_path / "fig6-quick.png").write_bytes(b"small")
    page = report.write_html(tmp_path).read_text(encoding="utf-8")
    assert page == report.write_html(tmp_path).read_text(encoding="utf-8")
    first = section_of(page, "fig1")
    assert first.count("<img") == 2
    assert first.index("cGljdHVyZQ==") < first.index("YW5vdGhlcg==")
    assert "a &lt;caveat&gt;" in first
    assert "nestgp reproduce fig1" in first
    assert ">0.880<" in first
    assert "only a quick run, not used" in section_of(page, "fig6")
    assert "<img" not in section_of(page, "fig6")
    assert "not run" in section_of(page, "fig10")
    assert f"{len(claims.CLAIMS)} claims: 2 reproduced, 0 not reproduced" in page
    assert not re.search(r"<script|https?://|<link|src=\"(?!data:)", page)


def test_page_of_the_documentation_has_every_claim_with_its_verdict(tmp_path: Path) -> None:
    save("fig1", toy(ep=0.8), tmp_path)
    page = report.write_page(tmp_path, tmp_path / "page.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "**" in line]
    assert len(rows) == len(claims.CLAIMS)
    assert "**not reproduced**" in rows[0]
    assert "EP − IEP −0.020" in rows[0]
    assert all(line.count(" | ") == 3 for line in rows)


@pytest.mark.parametrize(
    ("folder", "quick", "written"), [("default", False, True), ("default", True, False), ("other", False, False)]
)
def test_only_full_results_of_the_source_tree_change_the_documentation(
    folder: str, quick: bool, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[Path] = []
    monkeypatch.setattr(command, "RESULTS", tmp_path / "default")
    monkeypatch.setattr(report, "write_page", lambda _, page: pages.append(page))
    command.write_report(tmp_path / folder, quick)
    assert (tmp_path / folder / "report.html").exists()
    assert [page.name for page in pages] == ["paper-claims.md"] * written


# --------------------------------------------------------------------------------------------------------- claims


def record(results: Any, *caveats: str, quick: bool = False) -> dict[str, Any]:
    return {"quick": quick, "caveats": list(caveats), "results": json.loads(json.dumps(results))}


def verdict(claim: verdicts.Claim, results: Any, *caveats: str, protocol: str = "paper") -> verdicts.Verdict:
    return claim.decide({claim.needs[0]: record(results, *caveats)}, protocol)


def test_missing_quick_and_unmixed_results_decide_nothing() -> None:
    claim = claims.order_at_x_i
    assert claim.decide({}) == (UNDECIDED, "figure 1: not run")
    assert claim.decide({"fig1": record(toy(), quick=True)}) == (UNDECIDED, "figure 1: only a quick run, not used")
    assert verdict(claim, toy(), "MCMC has not mixed: R-hat up to 1.2").verdict == UNDECIDED
    assert verdict(claim, toy(), "the paper's draw is unknown").verdict == REPRODUCED


def test_every_claim_is_undecided_without_results() -> None:
    for claim in claims.CLAIMS:
        for protocol in claim.protocols:
            found = claim.decide({}, protocol)
            assert found.verdict == UNDECIDED
            assert found.sentence.endswith("not run")


# The Monte Carlo error of 0.9 from 900 draws is at most 1.96 √(0.9 · 0.1 / 900) = 0.0196.
@pytest.mark.parametrize(
    ("ep", "iep", "expected"),
    [
        (0.88, 0.82, REPRODUCED),
        (0.89, 0.82, UNDECIDED),
        (0.91, 0.82, UNDECIDED),
        (0.93, 0.82, NOT_REPRODUCED),
        (0.8, 0.82, NOT_REPRODUCED),
    ],
)
def test_order_at_x_i(ep: float, iep: float, expected: str) -> None:
    assert verdict(claims.order_at_x_i, toy(0.9, ep, iep)).verdict == expected


@pytest.mark.parametrize(("p", "expected"), [(0.479, REPRODUCED), (0.461, REPRODUCED), (0.481, NOT_REPRODUCED)])
def test_equal_at_x_j(p: float, expected: str) -> None:
    assert verdict(claims.equal_at_x_j, toy(at_x_j=p)).verdict == expected


@pytest.mark.parametrize(("ratio", "expected"), [(0.89, REPRODUCED), (0.95, UNDECIDED), (1.05, UNDECIDED), (1.2, NOT_REPRODUCED)])
def test_spread_of_the_latents(ratio: float, expected: str) -> None:
    cov = {"MCMC": (4.0 * np.eye(3)).tolist(), "IEP": np.diag([9.0, 4.0 * 0.25, 4.0 * ratio**2]).tolist()}
    found = verdict(claims.iep_is_too_sure_at_x_j, {"latent_cov": cov})
    assert found.verdict == expected
    assert f"f2 0.50; f3 {ratio:.2f}" in found.sentence


def figure_4(**error: float) -> dict[str, Any]:
    """Probabilities below those of MCMC by a method's error, give or take a little; 40 rows in each split."""
    errors = {"EP": 0.01, "IEP": 0.03, "VB": 0.1, "LA": 0.2, "LA-TKP": 0.05} | {k.replace("_", "-"): v for k, v in error.items()}
    noise = np.resize([0.01, -0.01], 40)
    p = {name: {split: (0.8 - size + noise).tolist() for split in ("train", "test")} for name, size in errors.items()}
    chain = {split: [0.8] * 40 for split in ("train", "test")}
    return {"probability_of_true_class": p | {PROBIT: chain, SOFTMAX: chain}}


def test_ep_is_closest() -> None:
    assert verdict(claims.ep_is_closest, figure_4()).verdict == REPRODUCED
    assert verdict(claims.ep_is_closest, figure_4(IEP=0.005)).verdict == UNDECIDED  # both are 0.01 away from MCMC
    assert verdict(claims.ep_is_closest, figure_4(EP=0.04)).verdict == NOT_REPRODUCED
    assert verdict(claims.ep_is_closest, figure_4(), "VB has not converged") == (UNDECIDED, "VB has not converged")
    assert "has not mixed" in verdict(claims.ep_is_closest, figure_4(), f"{SOFTMAX} has not mixed").sentence


def test_underestimates_and_their_correction() -> None:
    assert verdict(claims.vb_and_la_underestimate, figure_4()).verdict == REPRODUCED
    assert verdict(claims.vb_and_la_underestimate, figure_4(VB=0.0001)).verdict == UNDECIDED
    assert verdict(claims.vb_and_la_underestimate, figure_4(VB=-0.1)).verdict == NOT_REPRODUCED
    assert verdict(claims.tkp_is_closer, figure_4()).verdict == REPRODUCED
    assert verdict(claims.tkp_is_closer, figure_4(LA_TKP=0.3)).verdict == NOT_REPRODUCED


def surfaces(evidence: tuple[int, int], lpd: tuple[int, int], accuracy: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """Hills on a 5 × 6 grid with their tops (log σ², log l) at these indices."""
    i, j = np.mgrid[:5, :6]
    tops = {"log_evidence": (evidence, -160.0), "lpd": (lpd, -70.0), "accuracy": (accuracy, 0.98)}
    grids = {name: (peak - 5.0 * ((i - y) ** 2 + (j - x) ** 2)).tolist() for name, ((y, x), peak) in tops.items()}
    return grids | {"status": [["converged"] * 6] * 5}


def figure_6(**methods: dict[str, Any]) -> dict[str, Any]:
    every = {name: surfaces((3, 3), (3, 3)) for name in ("EP", "IEP", "VB", "LA")} | methods
    return {"log_variance": [0.0, 2.0, 4.0, 6.0, 8.0], "log_lengthscale": list(range(6)), "grids": every}


def test_tops_of_evidence_and_density() -> None:
    apart = surfaces((0, 0), (4, 5))
    assert verdict(claims.iep_tops_differ, figure_6(IEP=apart)).verdict == REPRODUCED
    assert verdict(claims.iep_tops_differ, figure_6()).verdict == NOT_REPRODUCED
    low = surfaces((0, 0), (4, 5)) | {"lpd": [[-80.0] * 6] * 5}
    assert "the largest are −160.0 and −80.0" in verdict(claims.iep_tops_differ, figure_6(IEP=low)).sentence
    assert verdict(claims.ep_tops_agree, figure_6(IEP=apart)).verdict == REPRODUCED
    assert verdict(claims.ep_tops_agree, figure_6()).verdict == UNDECIDED  # IEP's agree as well
    assert verdict(claims.ep_tops_agree, figure_6(EP=apart)).verdict == NOT_REPRODUCED


def test_evidence_of_vb_and_la() -> None:
    small = surfaces((1, 3), (3, 3), (4, 5))
    assert verdict(claims.vb_and_la_favour_small_variances, figure_6(VB=small, LA=small)).verdict == REPRODUCED
    assert verdict(claims.vb_and_la_favour_small_variances, figure_6(VB=small)).verdict == NOT_REPRODUCED
    assert verdict(claims.vb_peaks_differ, figure_6(VB=small)).verdict == REPRODUCED
    assert verdict(claims.vb_peaks_differ, figure_6(VB=surfaces((1, 3), (3, 3), (1, 3)))).verdict == NOT_REPRODUCED


def test_grid_points_that_have_not_converged_are_left_out_unless_they_are_many() -> None:
    lost = surfaces((1, 3), (3, 3))
    lost["status"] = [["converged"] * 6 for _ in range(5)]
    lost["status"][1][3] = "diverged"
    found = verdict(claims.vb_and_la_favour_small_variances, figure_6(VB=lost, LA=surfaces((0, 0), (0, 0))))
    assert "VB 0.0" in found.sentence  # without the top at 2.0, its first neighbour is the highest
    lost["status"] = [["diverged"] * 6] + [["converged"] * 6] * 4
    assert verdict(claims.vb_peaks_differ, figure_6(VB=lost)) == (UNDECIDED, "VB: 6 of 30 inferences not converged")


def figure_7(ep: int | None = 8, iep: int | None = 20, gap: float = 0.1, converged: bool = True) -> dict[str, Any]:
    key = "updates_until_within_0.1"
    runs = {f"{name}, {column}": {key: n} for name, n in (("EP", ep), ("IEP", iep)) for column in COLUMNS}
    points = {name: {"log_z": -100.0, "mlpd": -0.1, "converged": converged} for name in ("EP", "IEP", "QIEP")}
    near = {column: {"largest": gap, "last": gap} for column in COLUMNS}
    return {"summary": runs, "fixed_points": points, "iep_against_quadrature": near, "updates": 40}


@pytest.mark.parametrize(
    ("ep", "iep", "expected"), [(8, 20, REPRODUCED), (8, None, REPRODUCED), (None, None, UNDECIDED), (9, 9, NOT_REPRODUCED)]
)
def test_ep_converges_faster(ep: int | None, iep: int | None, expected: str) -> None:
    assert verdict(claims.ep_converges_faster, figure_7(ep, iep)).verdict == expected


def test_convergence_of_inner_loops_and_quadrature() -> None:
    assert verdict(claims.one_sweep_is_enough, figure_7()).verdict == REPRODUCED
    stuck = figure_7()
    stuck["summary"][f"EP, {list(COLUMNS)[2]}"]["updates_until_within_0.1"] = None
    found = verdict(claims.one_sweep_is_enough, stuck)
    assert found.verdict == NOT_REPRODUCED
    assert "more than 40" in found.sentence
    assert verdict(claims.iep_is_quadrature, figure_7(gap=0.99)).verdict == REPRODUCED
    assert verdict(claims.iep_is_quadrature, figure_7(gap=1.01)).verdict == NOT_REPRODUCED
    assert verdict(claims.iep_is_quadrature, figure_7(converged=False)).verdict == UNDECIDED


def table_1(fewer: int = 9, ratio: float = 4.0, exponent: float = 3.0) -> dict[str, Any]:
    def settle(i: int) -> dict[str, Any]:
        steps = {"EP": 10, "IEP": 20 if i < fewer else 5}
        slow = {"LA": {"seconds": 1.0}, "LA-TKP": {"seconds": ratio * (1.1 if i % 2 else 0.9)}}
        return slow | {name: {"n_iter": n, "status": "converged"} for name, n in steps.items()}

    row = {"n": {"measured": exponent, "theory_posterior": 3.0}, "c": {"measured": 1.0, "theory_posterior": 1.0}}
    exponents = dict.fromkeys(("EP", "IEP", "QIEP", "VB", "LA", "Gibbs"), row)
    return {"usps": [settle(i) for i in range(9)], "exponents": exponents}


# Sign test: of nine settings, eight have a two-sided probability of 20/512, seven of 92/512.
@pytest.mark.parametrize(("fewer", "expected"), [(9, REPRODUCED), (8, REPRODUCED), (7, UNDECIDED), (1, NOT_REPRODUCED)])
def test_iterations_over_settings(fewer: int, expected: str) -> None:
    assert verdict(claims.ep_converges_faster_over_settings, table_1(fewer)).verdict == expected


@pytest.mark.parametrize(
    ("method", "steps", "expected"), [("IEP", 200, REPRODUCED), ("IEP", 10, UNDECIDED), ("EP", 200, UNDECIDED)]
)
def test_a_run_that_was_cut_short_decides_against_itself_only(method: str, steps: int, expected: str) -> None:
    record = table_1()
    record["usps"][3][method] = {"n_iter": steps, "status": "max_iterations"}
    found = verdict(claims.ep_converges_faster_over_settings, record)
    assert found.verdict == expected
    assert ("runs of IEP cut short: 1" in found.sentence) == (expected == REPRODUCED)


@pytest.mark.parametrize(
    ("ratio", "expected"), [(4.0, REPRODUCED), (2.4, REPRODUCED), (2.0, UNDECIDED), (1.0, NOT_REPRODUCED), (12.0, NOT_REPRODUCED)]
)
def test_cost_of_tkp(ratio: float, expected: str) -> None:
    assert verdict(claims.tkp_cost, table_1(ratio=ratio)).verdict == expected


@pytest.mark.parametrize(("exponent", "expected"), [(2.6, REPRODUCED), (2.4, NOT_REPRODUCED), (3.6, NOT_REPRODUCED)])
def test_scaling(exponent: float, expected: str) -> None:
    assert verdict(claims.scaling_with_n, table_1(exponent=exponent)).verdict == expected
    assert verdict(claims.scaling_with_c, table_1(exponent=exponent)).verdict == REPRODUCED


# --------------------------------------------------------------------------------------------- claims of table 2

ROWS = 60


def data(clean: bool = False, **shift: float) -> dict[str, Any]:
    """A data set whose log densities are those of EP plus a shift by method, give or take 0.1; all predictions right."""
    noise = np.resize([0.1, -0.1], ROWS)
    lpd = {
        method: (-0.5 + shift.get(method.replace("-", "_"), 0.0) + (method != "EP") * noise).tolist() for method in scores.METHODS
    }
    methods = {method: {"lpd": values, "predicted": [0] * ROWS, "reliable": True} for method, values in lpd.items()}
    keep = [not clean or i < ROWS // 2 for i in range(ROWS)]
    return {"methods": methods, "targets": [0] * ROWS, "clean": keep, "summary": {"paper": {}} | ({"clean": {}} if clean else {})}


def table_2(**sets: dict[str, Any]) -> dict[str, Any]:
    usual = {"IEP": -0.1, "VB": -0.2, "LA": -0.2, "LA_TKP": -0.1}
    return {name: data(**usual) for name in scores.TITLES} | sets


def test_ep_beats_iep_where_the_paper_says_so() -> None:
    assert verdict(scores.ep_beats_iep, table_2()).verdict == REPRODUCED
    found = verdict(scores.ep_beats_iep, table_2(wine=data(IEP=-0.01)))
    assert found.verdict == UNDECIDED
    assert re.search(r"Wine \+0\.010 \(−0\.\d+ to \+0\.\d+\), same direction, not significant", found.sentence)
    assert verdict(scores.ep_beats_iep, table_2(wine=data(IEP=0.1))).verdict == NOT_REPRODUCED
    assert verdict(scores.ep_beats_iep, table_2(glass=data(IEP=0.1))).verdict == REPRODUCED  # not one of the four
    incomplete = table_2()
    del incomplete["wine"]["methods"]["IEP"], incomplete["usps_357"]
    assert "Wine: IEP not run; " in verdict(scores.ep_beats_iep, incomplete).sentence
    assert verdict(scores.ep_beats_iep, incomplete).verdict == UNDECIDED


def test_iep_keeps_up_unless_it_is_significantly_worse() -> None:
    level = table_2(teaching=data(), glass=data(IEP=0.2))
    assert verdict(scores.iep_keeps_up, level).verdict == REPRODUCED
    assert verdict(scores.iep_keeps_up, table_2()).verdict == NOT_REPRODUCED


def test_overall_is_most_and_none_against() -> None:
    def with_worse(count: int, other: float) -> dict[str, Any]:
        return {name: data(VB=-0.2 if i < count else other) for i, name in enumerate(scores.TITLES)}

    assert verdict(scores.ep_beats_vb, with_worse(4, 0.0)).verdict == REPRODUCED
    assert verdict(scores.ep_beats_vb, with_worse(3, 0.0)).verdict == UNDECIDED
    assert verdict(scores.ep_beats_vb, with_worse(5, 0.2)).verdict == UNDECIDED
    assert verdict(scores.ep_beats_vb, with_worse(3, 0.2)).verdict == NOT_REPRODUCED


def test_mcmc_beats_ep_on_two_only() -> None:
    two = {"teaching": data(MCMC=0.2), "image_segmentation": data(MCMC=0.2)}
    assert verdict(scores.mcmc_beats_ep, table_2(**two)).verdict == REPRODUCED
    assert verdict(scores.mcmc_beats_ep, table_2(**two, wine=data(MCMC=0.2))).verdict == NOT_REPRODUCED
    assert verdict(scores.mcmc_beats_ep, table_2(**two, wine=data(MCMC=-0.2))).verdict == REPRODUCED
    assert verdict(scores.mcmc_beats_ep, table_2(teaching=data(MCMC=0.2))).verdict == UNDECIDED
    unmixed = table_2(**two)
    unmixed["glass"]["methods"]["MCMC"]["reliable"] = False
    found = verdict(scores.mcmc_beats_ep, unmixed)
    assert found.verdict == UNDECIDED
    assert "Glass: MCMC not mixed" in found.sentence


def test_clean_protocol_takes_only_rows_that_training_has_not() -> None:
    """LA-TKP improves segmentation on the repeated rows alone."""
    segmentation = data(clean=True, LA=-0.2)
    segmentation["methods"]["LA-TKP"]["lpd"][: ROWS // 2] = segmentation["methods"]["LA"]["lpd"][: ROWS // 2]
    results = table_2(image_segmentation=segmentation, teaching=data())
    assert verdict(scores.tkp_improves_la, results).verdict == REPRODUCED
    found = verdict(scores.tkp_improves_la, results, protocol="clean")
    assert found.verdict == UNDECIDED
    assert "Segmentation (clean) +0.00000 (+0.00000 to +0.00000)" in found.sentence
    with pytest.raises(ValueError, match="no protocol clean"):
        claims.order_at_x_i.decide({"fig1": record(toy())}, "clean")


def wrong(results: dict[str, Any], method: str, count: int) -> dict[str, Any]:
    results["methods"][method]["predicted"] = [1] * count + [0] * (ROWS - count)
    return results


def test_accuracies() -> None:
    assert verdict(scores.accuracies_are_close, table_2()).verdict == REPRODUCED
    # 5 of 60 wrong: −0.08, interval from −0.18 to −0.01; 20 of 60: all of the interval is below −0.05
    assert verdict(scores.accuracies_are_close, table_2(wine=wrong(data(), "LA", 5))).verdict == UNDECIDED
    found = verdict(scores.accuracies_are_close, table_2(wine=wrong(data(), "LA", 20)))
    assert found.verdict == NOT_REPRODUCED
    assert "29 of 30 differences within 0.05; LA on Wine −0.3" in found.sentence
    better = wrong(data(), "EP", 20)
    assert verdict(scores.la_is_more_accurate, table_2(image_segmentation=better)).verdict == REPRODUCED
    assert verdict(scores.la_is_more_accurate, table_2()).verdict == UNDECIDED
    worse = {name: wrong(data(), "VB", 20) for name in ("image_segmentation", "usps_357")}
    assert verdict(scores.vb_is_less_accurate, table_2(**worse)).verdict == REPRODUCED
    worse["usps_357"] = wrong(worse["usps_357"], "IEP", 40)
    assert verdict(scores.vb_is_less_accurate, table_2(**worse)).verdict == NOT_REPRODUCED


def figure_10(iep: float = 0.0, at_bound: bool = False) -> dict[str, Any]:
    every = data(IEP=iep, VB=-0.5, LA=-0.5)
    for method in ("VB", "LA"):
        wrong(every, method, 20)
    rows = {method: {"at_bound": False, "rows": 4649} for method in ("EP", "LA")}
    return every | {"searches": rows | {"VB": {"at_bound": at_bound, "rows": 4649}, "IEP": {"at_bound": False, "rows": 1554}}}


def test_usps_with_ten_classes() -> None:
    assert verdict(scores.both_ep_beat_the_others, figure_10()).verdict == REPRODUCED
    assert verdict(scores.both_ep_beat_the_others, figure_10(iep=-1.0)).verdict == NOT_REPRODUCED
    assert "VB's hyperparameters ended at a bound" in verdict(scores.both_ep_beat_the_others, figure_10(at_bound=True)).sentence
    assert verdict(scores.ep_and_iep_agree, figure_10()).verdict == REPRODUCED
    for each in (scores.ep_and_iep_agree, scores.both_ep_beat_the_others):
        assert verdict(each, figure_10()).sentence.startswith("(IEP's hyperparameters from 1554 of 4649 rows) ")
    assert verdict(scores.ep_and_iep_agree, figure_10(iep=-0.1)).verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("low", "high", "asked"),
    [
        (0.01, 0.3, {"above_zero": "yes", "not_above_zero": "no", "no_difference": "no"}),
        (-0.01, 0.3, {"above_zero": "open", "not_above_zero": "yes", "no_difference": "yes"}),
        (-0.3, -0.01, {"above_zero": "no", "not_above_zero": "yes", "no_difference": "no"}),
    ],
)
def test_what_an_interval_says(low: float, high: float, asked: dict[str, str]) -> None:
    interval = Interval((low + high) / 2, low, high, 0.95)
    for name, outcome in asked.items():
        assert getattr(verdicts, name)(interval, "a").outcome == outcome
