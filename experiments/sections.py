"""The sections of the report: what the paper says of each figure and table, in our words, and a small table of our numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.fig8 import TITLES
from experiments.table2 import METHODS
from experiments.verdicts import number

Results = Mapping[str, Any]
#: Rows of words, the first of them the heads of the columns.
Table = list[list[str]]


class Section(NamedTuple):
    """Name of an experiment, its heading, what the paper says, and the tables that its results give, by caption."""

    name: str
    heading: str
    paper: str
    tables: Callable[[Results], dict[str, Table]]


def value(x: Any, digits: int = 3) -> str:
    """A number, which JSON may hold as a word; a dash for none.

    >>> value(0.12345), value("-inf", 1), value(None)
    ('0.123', '−inf', '–')
    """
    return "–" if x is None else number(float(x), digits)


def interval(found: Mapping[str, Any], digits: int = 3) -> str:
    """Mean and interval, which a line may end between but not within."""
    mean, low, high = (value(found[name], digits) for name in ("mean", "low", "high"))
    return f"{mean} ({low}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{high})"


def _nothing(_: Results) -> dict[str, Table]:
    return {}


# --------------------------------------------------------------------------------------------------- figures 1 to 3


def _probabilities(points: Mapping[str, Any]) -> Table:
    rows = [["", "class", "MCMC", "EP", "IEP"]]
    for name, point in points.items():
        for whose in ("here", "paper"):
            label = f"{name} = {value(point['x'], 2)}, here" if whose == "here" else f"{name}, paper"
            digits = 3 if whose == "here" else 2
            cells = [value(point[whose][method], digits) for method in ("MCMC", "EP", "IEP")]
            rows.append([label, str(point["class"]), *cells])
    return rows


def _figure_1(results: Results) -> dict[str, Table]:
    return {"Probability of the class": _probabilities(results["probabilities"])}


def _figures_2_and_3(results: Results) -> dict[str, Table]:
    rows = [["", "f1", "f2", "f3"]]
    for method, cov in results["latent_cov"].items():
        rows.append([method, *(value(np.sqrt(cov[k][k]), 2) for k in range(3))])
    point = {name: values for name, values in results["probabilities"].items() if values["x"] == results["point"]["x"]}
    return {
        "Probability of the class": _probabilities(point),
        "Standard deviations of the latents": rows,
    }


# --------------------------------------------------------------------------------------------------- figures 4 to 7


def _figure_4(results: Results) -> dict[str, Table]:
    rows = [["", "training rows: mean", "root mean square", "test rows: mean", "root mean square"]]
    for pair, errors in results["difference_from_mcmc"].items():
        cells = [value(errors[split][name]) for split in ("train", "test") for name in ("mean", "rms")]
        rows.append([pair, *cells])
    return {"Probability of the true class, method − MCMC": rows}


def _figure_5(results: Results) -> dict[str, Table]:
    rows = [["", "f2 − f1", "f2 − f3", "mean of f1", "mean of f2", "mean of f3"]]
    for method, ratio in results["sd_of_contrasts_over_mcmc"].items():
        shift = results["distance_of_mean_in_mcmc_sd"][method]
        rows.append([method, *(value(x, 2) for x in ratio), *(value(x, 2) for x in shift)])
    caption = "Standard deviations of differences over those of MCMC; means − those of MCMC, in its standard deviations"
    return {caption: rows}


def _figure_6(results: Results) -> dict[str, Table]:
    rows = [["", "largest log evidence", "at log σ², log l", "test log density there", "accuracy there", "largest density", "at"]]
    for method, found in results["summary"].items():
        best, lpd = found["maxima"]["log_evidence"], found["maxima"]["lpd"]
        there = [value(found["lpd_at_evidence_maximum"], 1), value(found["accuracy_at_evidence_maximum"], 4)]
        rows.append([method, value(best["value"], 1), _place(best), *there, value(lpd["value"], 1), _place(lpd)])
    return {"Maxima over the grid": rows}


def _place(maximum: Mapping[str, float]) -> str:
    return f"{maximum['log_variance']:g}, {maximum['log_lengthscale']:g}"


def _figure_7(results: Results) -> dict[str, Table]:
    (key,) = {key for run in results["summary"].values() for key in run if key.startswith("updates_until_within")}
    rows = [["", "updates", "changes of direction", "distance at the end"]]
    for run, found in results["summary"].items():
        cells = [value(found[key], 0), str(found["turns"]), value(found["distance_from_fixed_point"], 4)]
        rows.append([run, *cells])
    limit = key.rpartition("_")[2]
    ends = [["", "−log Z", "test MLPD", "iterations"]]
    for method, point in results["fixed_points"].items():
        ends.append([method, value(-point["log_z"], 2), value(point["mlpd"], 4), str(point["iterations"])])
    return {f"Updates until log Z stays within {limit} of the fixed point": rows, "Fixed points": ends}


# --------------------------------------------------------------------------------------------------- table 1


def _table_1(results: Results) -> dict[str, Table]:
    rows = [["", "n: measured", "n: table 1", "c: measured", "c: table 1"]]
    for method, row in results["exponents"].items():
        cells = [value(row[axis][name], 2) for axis in "nc" for name in ("measured", "theory_posterior")]
        rows.append([method, *cells])
    ratios = results["usps_ratios"]
    said = ratios["paper"] | {"Gibbs": ratios["paper"]["MCMC"]}
    times = [["", "here", "paper"], *([m, value(r, 2), said.get(m, "–")] for m, r in ratios["ratio_to_LA"].items())]
    caption = f"CPU time over that of LA, USPS 3-5-7 (LA-TKP: one test input; Gibbs: {ratios['sweeps']} sweeps)"
    return {"Exponents of the time of one iteration": rows, caption: times}


# ------------------------------------------------------------------------------------- table 2, figures 8 to 10


def _scores(results: Results, name: str, methods: Iterable[str]) -> Table:
    """A row for each data set and protocol, a column for each method."""
    rows = [["", "test rows", *methods]]
    for dataset, data in results.items():
        for protocol, summary in data["summary"].items():
            label = TITLES.get(dataset, dataset) + (", clean" if protocol == "clean" else "")
            cells = []
            for method in rows[0][2:]:
                found = summary["methods"].get(method)
                doubt = "" if found is None or data["methods"][method]["reliable"] else ", not to be trusted"
                cells.append("not run" if found is None else interval(found[name]) + doubt)
            rows.append([label, str(summary["n"]), *cells])
    return rows


def _table_2(results: Results) -> dict[str, Table]:
    """The paper's methods, and the peers beside EP."""
    every = dict.fromkeys(method for data in results.values() for method in data["methods"])
    peers = ["EP", *(method for method in every if method not in METHODS)]
    kinds = {"mlpd": "Mean log predictive density", "accuracy": "Accuracy"}
    tables = {f"{words}, 95 % intervals": _scores(results, name, METHODS) for name, words in kinds.items()}
    if len(peers) > 1:
        tables |= {f"{words} of others": _scores(results, name, peers) for name, words in kinds.items()}
    return tables


def _figure_10(results: Results) -> dict[str, Table]:
    rows = [["", "MLPD", "MLPD − EP", "accuracy", "accuracy − EP"]]
    for method, found in results["summary"]["paper"]["methods"].items():
        differences = ["–", "–"]
        if "lpd_minus_ep" in found:
            differences = [interval(found["lpd_minus_ep"]), interval(found["accuracy_minus_ep"]["difference"])]
        rows.append([method, interval(found["mlpd"]), differences[0], interval(found["accuracy"]), differences[1]])
    return {"Scores and differences to EP, 95 % intervals": rows}


SECTIONS = (
    Section("fig1", "Figure 1: a problem with scalar inputs",
            "Near class boundaries the methods agree; elsewhere MCMC is the surest, IEP the most cautious, and EP lies between. "
            "Latent means are alike everywhere.", _figure_1),
    Section("fig2", "Figure 2: latents at x_i",
            "The marginal posterior is skewed. EP follows its shape better than IEP, which leaves more "
            "mass where class 1 is not the answer. Probability of class 1: 0.95 (MCMC), 0.88 (EP), 0.82 "
            "(IEP).", _figures_2_and_3),
    Section("fig3", "Figure 3: latents at x_j",
            "The marginal posterior is nearly Gaussian but stretched along the diagonal. EP follows it, "
            "IEP is far too narrow; yet all three give class 2 a probability of 0.47, because the mass on"
            " both sides of the diagonal is the same.", _figures_2_and_3),
    Section("fig4", "Figure 4: class probabilities against MCMC, USPS 3-5-7",
            "EP is the most accurate overall. IEP is a little low on training rows and good on test rows;"
            " VB and LA are too low on test rows, and LA-TKP is clearly better than LA. Fixed log σ² = 4,"
            " log l = 2.", _figure_4),
    Section("fig5", "Figure 5: latents of one training point, USPS 3-5-7",
            "EP agrees reasonably with MCMC; IEP is too narrow and VB much too narrow, and isotropic. LA "
            "keeps some of the dependence between classes, but the mode is a poor estimate of the mean.", _figure_5),
    Section("fig6", "Figure 6: evidence and predictions over the hyperparameters, USPS 3-5-7",
            "EP's evidence and test density peak together and its densities are the highest overall; "
            "IEP's highest contours (−166 and −76.5) lie apart. VB and LA do badly where σ² is large and "
            "their evidence prefers small σ²; VB's best accuracies are not where its evidence is highest.", _figure_6),
    Section("table1", "Table 1: cost of one iteration",
            "Posterior: (c + 1)n³ for EP and LA, cn³ for IEP, quadrature IEP and MCMC, n³ for VB; "
            "likelihood: n(c − 1)³ for each inner sweep of EP and IEP, and linear in c for the others. EP"
            " and VB took about three times the time of LA, MCMC more than a hundred times, LA-TKP about "
            "c + 1 times for each test input.", _table_1),
    Section("fig7", "Figure 7: convergence, USPS 3-5-7",
            "With inner EP run to convergence nested IEP is nearly the same as quadrature IEP; with one "
            "inner sweep they differ at first and end alike. EP oscillates less and needs fewer "
            "iterations, while IEP still drifts after 20. Fixed log σ² = 8, log l = 2.5, damping 0.8 and "
            "0.5.", _figure_7),
    Section("table2", "Table 2: data sets, and the scores on them",
            "Training and test rows: New-thyroid 215, Teaching 151, Glass 214, Wine 178 (ten-fold each), "
            "Segmentation 210 and 2100, USPS 3-5-7 1157 and 1175, USPS 4649 and 4649. The paper shows the"
            " scores as figures 8 to 10 and prints no numbers.", _table_2),
    Section("fig8", "Figure 8: mean log predictive densities",
            "MCMC is significantly better than EP on Teaching and Segmentation only. IEP is worse than EP"
            " except on Teaching and Glass; VB and LA are worse overall; LA-TKP improves LA except on "
            "Teaching.", _nothing),
    Section("fig9", "Figure 9: accuracies",
            "All differences are small. MCMC is significantly better on Teaching; EP and IEP do not "
            "differ significantly; LA is better than EP on Segmentation; VB is significantly worse on "
            "Segmentation and USPS 3-5-7.", _nothing),
    Section("fig10", "Figure 10: USPS with ten classes",
            "EP and IEP are both significantly better than VB and LA in density and accuracy. EP has the "
            "slightly better density, IEP the slightly better accuracy, neither significantly.", _figure_10),
)  # fmt: skip
