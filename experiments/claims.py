"""Every claim of the paper's section 5 that the results can decide, in the order of the text (see `verdicts` for how).

Where the paper speaks of a picture ("almost identical", "agree"), the number that stands for it is a constant here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, t

from experiments import claims_scores as scores
from experiments.fig6 import PAPER_IEP, TOP, jaccard
from experiments.fig7 import COLUMNS, SETTLED
from experiments.usps_marginals import PROBIT, SOFTMAX, SPLITS
from experiments.verdicts import (
    NO,
    NOT_REPRODUCED,
    OPEN,
    REPRODUCED,
    UNDECIDED,
    YES,
    Part,
    Undecided,
    Verdict,
    above_zero,
    all_of,
    claim,
    number,
    trust,
    words,
)
from nestgp.arrays import FloatArray
from nestgp.diagnostics import Interval, bayesian_bootstrap_interval

Record = Mapping[str, Any]

#: The draw of figures 1 to 3 was searched for, so that its probabilities are no evidence of their own.
CHOSEN = "on a draw chosen for being like the paper's: such draws exist, no more"
#: "About equal" probabilities: one unit of the last digit that the paper prints.
LAST_DIGIT = 0.01
#: Spreads of MCMC draws are known to 7 % with 400 effective draws: a difference of less than a tenth is none.
SPREAD = 0.1
#: "Almost identical": within one per cent.
SAME = 0.01
#: An exponent agrees with that of the operation counts within this; a cost is "about" another within this factor.
EXPONENT, FACTOR = 0.5, 2.0
#: Share of a figure's grid that may be left out because inference has not converged there.
LEFT_OUT = 0.1


# ------------------------------------------------------------------------------------- section 5.1, figures 1 and 3


@claim("At x_i, away from the boundaries, MCMC gives class 1 a larger probability than EP, and EP a larger one than IEP.", "fig1")
def order_at_x_i(record: Record) -> Verdict:
    """A probability estimated by draws in [0, 1] with mean p has a variance of at most p(1 − p) over the effective draws."""
    trust(record, "MCMC")
    p, draws = record["results"]["probabilities"]["x_i"]["here"], record["results"]["mixing"]["ess_bulk"]
    error = 1.96 * math.sqrt(p["MCMC"] * (1 - p["MCMC"]) / draws)
    gap, exact = p["MCMC"] - p["EP"], p["EP"] - p["IEP"]
    parts = [
        above_zero(Interval(gap, gap - error, gap + error, 0.95), "MCMC − EP"),
        Part(YES if exact > 0 else NO, f"EP − IEP {number(exact, sign='+')}"),
    ]
    shown = ", ".join(f"{method} {number(value)}" for method, value in p.items())
    return all_of(parts, f"{shown} ({CHOSEN}): ")


@claim(f"At x_j, on a boundary, all three give class 2 about the same probability (within {LAST_DIGIT}).", "fig1")
def equal_at_x_j(record: Record) -> Verdict:
    trust(record, "MCMC")
    p = record["results"]["probabilities"]["x_j"]["here"]
    spread = max(p.values()) - min(p.values())
    shown = ", ".join(f"{method} {number(value)}" for method, value in p.items())
    sentence = f"{shown}, largest difference {number(spread, 4)} ({CHOSEN})"
    return Verdict(REPRODUCED if spread <= LAST_DIGIT else NOT_REPRODUCED, sentence)


def _spreads(record: Record, chain: str, latents: list[int]) -> Verdict:
    """Standard deviations of these latents by IEP over those of MCMC."""
    trust(record, chain, "IEP")
    cov = {name: np.array(record["results"]["latent_cov"][name], dtype=float) for name in ("IEP", chain)}
    parts = []
    for k in latents:
        ratio = math.sqrt(cov["IEP"][k, k] / cov[chain][k, k])
        outcome = YES if ratio < 1 - SPREAD else NO if ratio > 1 + SPREAD else OPEN
        parts.append(Part(outcome, f"f{k + 1} {number(ratio, 2)}"))
    return all_of(parts, "standard deviations over those of MCMC: ")


@claim("IEP underestimates the uncertainty of the latents of classes 2 and 3 at x_j.", "fig3")
def iep_is_too_sure_at_x_j(record: Record) -> Verdict:
    return _spreads(record, "MCMC", [1, 2])


# --------------------------------------------------------------------------------- section 5.2, figures 4, 5 and 6


@claim("IEP underestimates the uncertainty of the latents of a training point of USPS 3-5-7.", "fig5")
def iep_is_too_sure_on_usps(record: Record) -> Verdict:
    verdict = _spreads(record, PROBIT, [0, 1, 2])
    contrasts = ", ".join(number(ratio, 2) for ratio in record["results"]["sd_of_contrasts_over_mcmc"]["IEP"])
    return verdict._replace(sentence=f"{verdict.sentence} (of f2 − f1, f2 − f3: {contrasts})")


def _gap(record: Record, method: str, chain: str, splits: tuple[str, ...] = SPLITS) -> FloatArray:
    """Probability of the true class, method − MCMC, of all rows of these splits."""
    p = record["results"]["probability_of_true_class"]
    return np.concatenate([np.array(p[method][split]) - np.array(p[chain][split]) for split in splits])


def _closer(record: Record, near: tuple[str, str], far: tuple[str, str], splits: tuple[str, ...] = SPLITS) -> Interval:
    """Distance of the second method from its chain − distance of the first from its own, mean over rows."""
    return bayesian_bootstrap_interval(abs(_gap(record, *far, splits)) - abs(_gap(record, *near, splits)))


@claim("EP is closest to MCMC in class probabilities, over training and test rows.", "fig4")
def ep_is_closest(record: Record) -> Verdict:
    trust(record, PROBIT, "EP", "IEP", "VB", "LA")
    others = ("IEP", "VB", "LA", "LA-TKP")
    parts = [above_zero(_closer(record, ("EP", PROBIT), (other, PROBIT)), other) for other in others]
    verdict = all_of(parts, "mean distance − that of EP: ")
    return verdict._replace(sentence=verdict.sentence + _by_softmax(record, others[2:]))


def _by_softmax(record: Record, methods: tuple[str, ...]) -> str:
    """LA has another likelihood: how far it is from MCMC with its own, in words."""
    try:
        trust(record, SOFTMAX)
    except Undecided:
        return "; MCMC with LA's own likelihood has not mixed"
    shown = [f"{m} {words(_closer(record, ('EP', PROBIT), (m, SOFTMAX)))}" for m in methods]
    return f"; against MCMC with LA's own likelihood: {', '.join(shown)}"


@claim("VB and LA underestimate the probabilities of test rows.", "fig4")
def vb_and_la_underestimate(record: Record) -> Verdict:
    trust(record, PROBIT, "VB", "LA")
    gaps = {method: -_gap(record, method, PROBIT, ("test",)) for method in ("VB", "LA")}
    parts = [above_zero(bayesian_bootstrap_interval(gap), method) for method, gap in gaps.items()]
    return all_of(parts, "mean probability of the true class, MCMC − method: ")


@claim("LA-TKP improves the probabilities of LA on test rows.", "fig4")
def tkp_is_closer(record: Record) -> Verdict:
    trust(record, PROBIT, "LA")
    interval = _closer(record, ("LA-TKP", PROBIT), ("LA", PROBIT), ("test",))
    verdict = all_of([above_zero(interval, "LA − LA-TKP")], "mean distance from MCMC: ")
    if any(caveat.startswith(f"{SOFTMAX} has not") for caveat in record["caveats"]):
        return verdict
    own = _closer(record, ("LA-TKP", SOFTMAX), ("LA", SOFTMAX), ("test",))
    return verdict._replace(sentence=f"{verdict.sentence}; from MCMC with LA's own likelihood {words(own)}")


def _surface(record: Record, method: str, name: str) -> FloatArray:
    """A surface of figure 6 with −∞ where inference has not converged."""
    grid = record["results"]["grids"][method]
    failed = np.array(grid["status"]) != "converged"
    if failed.mean() > LEFT_OUT:
        raise Undecided(f"{method}: {failed.sum()} of {failed.size} inferences not converged")
    return np.where(failed, -np.inf, np.array(grid[name], dtype=float))


def _top(values: FloatArray) -> NDArray[np.bool_]:
    """The highest tenth of a surface."""
    return values >= np.sort(values, axis=None)[-max(1, round(TOP * values.size))]


@claim("IEP's highest contours of the evidence (−166) and the test log predictive density (−76.5) do not coincide.", "fig6")
def iep_tops_differ(record: Record) -> Verdict:
    inside = {name: _surface(record, "IEP", name) >= level for name, level in PAPER_IEP.items()}
    counts = [int(region.sum()) for region in inside.values()]
    if not all(counts):
        best = {name: number(_surface(record, "IEP", name).max(), 1) for name in PAPER_IEP}
        raise Undecided(f"no grid point is inside: the largest are {best['log_evidence']} and {best['lpd']}")
    share = jaccard(*inside.values())
    sentence = f"{counts[0]} and {counts[1]} grid points inside, {share:.0%} of either in both (coincide: at least 50%)"
    return Verdict(REPRODUCED if share < 0.5 else NOT_REPRODUCED, sentence)


@claim("EP's evidence and test log predictive density are highest at the same place, more so than IEP's.", "fig6")
def ep_tops_agree(record: Record) -> Verdict:
    top = {m: {name: _top(_surface(record, m, name)) for name in PAPER_IEP} for m in ("EP", "IEP")}
    best = np.argmax(_surface(record, "EP", "log_evidence"))
    lpd = _surface(record, "EP", "lpd")
    lost = number(lpd.max() - lpd.flat[best], 2)
    ep, iep = (jaccard(*top[method].values()) for method in ("EP", "IEP"))
    inside = bool(top["EP"]["lpd"].flat[best])
    where = f"EP's largest evidence is {'inside' if inside else 'outside'} the highest tenth of its density ({lost} lost)"
    overlap = f"the highest tenths overlap by {ep:.0%} with EP, {iep:.0%} with IEP"
    return all_of([Part(YES if inside else NO, where), Part(YES if ep > iep else NO if ep < iep else OPEN, overlap)])


@claim("The evidence of VB and LA favours smaller σ² than that of EP.", "fig6")
def vb_and_la_favour_small_variances(record: Record) -> Verdict:
    at = {}
    for method in ("EP", "VB", "LA"):
        surface = _surface(record, method, "log_evidence")
        at[method] = record["results"]["log_variance"][int(np.argmax(surface)) // surface.shape[1]]
    parts = [Part(YES if at[m] < at["EP"] else NO, f"{m} {number(at[m], 1)}") for m in ("VB", "LA")]
    return all_of(parts, f"log σ² of the largest evidence: EP {number(at['EP'], 1)}; ")


@claim("VB is most accurate away from where its evidence is highest.", "fig6")
def vb_peaks_differ(record: Record) -> Verdict:
    accuracy = _surface(record, "VB", "accuracy")
    best = np.argmax(_surface(record, "VB", "log_evidence"))
    inside = bool(_top(accuracy).flat[best])
    sentence = f"accuracy {number(accuracy.flat[best], 4)} at the largest evidence, {number(accuracy.max(), 4)} at best; "
    sentence += f"{'inside' if inside else 'outside'} the most accurate tenth of the grid"
    return Verdict(NOT_REPRODUCED if inside else REPRODUCED, sentence)


# ------------------------------------------------------------------------------- section 5.3, figure 7 and table 1


def _fixed(record: Record, *methods: str) -> dict[str, Any]:
    """Fixed points of figure 7, if they have been found."""
    points = record["results"]["fixed_points"]
    for method in methods:
        if not points[method]["converged"]:
            raise Undecided(f"{method} has not converged, so its fixed point is unknown")
    return points


def _updates(record: Record, run: str) -> float:
    """Updates until log Z stays near the fixed point, infinite if it does not."""
    count = record["results"]["summary"][run][f"updates_until_within_{SETTLED}"]
    return math.inf if count is None else count


def _shown(updates: float, record: Record) -> str:
    return f"more than {record['results']['updates']}" if math.isinf(updates) else f"{updates:.0f}"


@claim("EP converges in fewer iterations than IEP with the same damping.", "fig7")
def ep_converges_faster(record: Record) -> Verdict:
    _fixed(record, "EP", "IEP")
    parts = []
    for column in COLUMNS:
        ep, iep = (_updates(record, f"{method}, {column}") for method in ("EP", "IEP"))
        outcome = YES if ep < iep else OPEN if math.isinf(ep) and math.isinf(iep) else NO
        parts.append(Part(outcome, f"{column}: {_shown(ep, record)} against {_shown(iep, record)}"))
    return all_of(parts, f"updates until log Z stays within {SETTLED} of the fixed point: ")


@claim("Over nine settings of the hyperparameters EP converges in fewer iterations than IEP.", "table1")
def ep_converges_faster_over_settings(record: Record) -> Verdict:
    """Sign test at 5 %. A run that was cut short would have needed more iterations, not fewer: of IEP that decides as well."""
    settings = record["results"]["usps"]
    cut = {m: [setting[m]["status"] != "converged" for setting in settings] for m in ("EP", "IEP")}
    if any(cut["EP"]):
        raise Undecided("EP not converged at every setting")
    counts = [(setting["EP"]["n_iter"], setting["IEP"]["n_iter"]) for setting in settings]
    if any(late and iep <= ep for late, (ep, iep) in zip(cut["IEP"], counts, strict=True)):
        raise Undecided("IEP not converged at every setting")
    fewer, more = sum(ep < iep for ep, iep in counts), sum(ep > iep for ep, iep in counts)
    significant = fewer + more > 0 and binomtest(fewer, fewer + more).pvalue < 0.05
    verdict = UNDECIDED if not significant else REPRODUCED if fewer > more else NOT_REPRODUCED
    total = [sum(column) for column in zip(*counts, strict=True)]
    at_least = f", at least: runs of IEP cut short: {sum(cut['IEP'])}" if any(cut["IEP"]) else ""
    sums = f"{total[0]} against {total[1]} in all{at_least}"
    return Verdict(verdict, f"fewer at {fewer} of {len(counts)} settings, more at {more}; {sums}")


@claim("Nested IEP with converged inner EP and IEP by quadrature are almost identical (within 1 %).", "fig7")
def iep_is_quadrature(record: Record) -> Verdict:
    points = _fixed(record, "IEP", "QIEP")
    gap = record["results"]["iep_against_quadrature"][next(iter(COLUMNS))]["largest"]
    values = {"log Z on the way": gap / abs(points["QIEP"]["log_z"])}
    for name, label in (("log_z", "log Z at the fixed point"), ("mlpd", "MLPD there")):
        values[label] = abs(points["IEP"][name] - points["QIEP"][name]) / abs(points["QIEP"][name])
    return all_of([Part(YES if v <= SAME else NO, f"{label} {v:.2%}") for label, v in values.items()], "largest difference: ")


@claim("One inner sweep per iteration is enough for EP to reach the same solution.", "fig7")
def one_sweep_is_enough(record: Record) -> Verdict:
    _fixed(record, "EP")
    columns = list(COLUMNS)
    converged = _updates(record, f"EP, {columns[0]}")
    if math.isinf(converged):
        raise Undecided("not even with a converged inner EP has log Z settled")
    counts = {column: _updates(record, f"EP, {column}") for column in columns[1:]}
    parts = [Part(NO if math.isinf(n) else YES, f"{column}: {_shown(n, record)}") for column, n in counts.items()]
    return all_of(parts, f"updates until log Z stays within {SETTLED} of the fixed point: {columns[0]}: {converged:.0f}; ")


def _exponents(record: Record, axis: str) -> Verdict:
    parts = []
    for method in ("EP", "IEP", "QIEP", "VB", "LA", "Gibbs"):
        row = record["results"]["exponents"][method][axis]
        close = abs(row["measured"] - row["theory_posterior"]) <= EXPONENT
        parts.append(Part(YES if close else NO, f"{method} {number(row['measured'], 2)} ({number(row['theory_posterior'], 2)})"))
    return all_of(parts, f"exponent of {axis}, in brackets the table's: ")


@claim(f"The time of an iteration grows with n as table 1 says (exponents within {EXPONENT}).", "table1")
def scaling_with_n(record: Record) -> Verdict:
    return _exponents(record, "n")


@claim(f"The time of an iteration grows with c as table 1 says (exponents within {EXPONENT}).", "table1")
def scaling_with_c(record: Record) -> Verdict:
    return _exponents(record, "c")


@claim("LA-TKP takes about c + 1 times the time of LA for each test input (within a factor of 2).", "table1")
def tkp_cost(record: Record) -> Verdict:
    """A t interval of the log ratio over the settings."""
    logs = np.log([setting["LA-TKP"]["seconds"] / setting["LA"]["seconds"] for setting in record["results"]["usps"]])
    if logs.size < 2:
        raise Undecided("a single setting has no interval")
    error = t.ppf(0.975, logs.size - 1) * logs.std(ddof=1) / math.sqrt(logs.size)
    mean, low, high = np.exp([logs.mean(), logs.mean() - error, logs.mean() + error])
    expected = 3 + 1
    within = expected / FACTOR <= low and high <= expected * FACTOR
    beyond = high < expected / FACTOR or low > expected * FACTOR
    verdict = REPRODUCED if within else NOT_REPRODUCED if beyond else UNDECIDED
    return Verdict(verdict, f"{mean:.2f} times ({low:.2f} to {high:.2f}) with c = 3, over {logs.size} settings")


CLAIMS = (
    order_at_x_i,
    equal_at_x_j,
    iep_is_too_sure_at_x_j,
    ep_is_closest,
    vb_and_la_underestimate,
    tkp_is_closer,
    iep_is_too_sure_on_usps,
    iep_tops_differ,
    ep_tops_agree,
    vb_and_la_favour_small_variances,
    vb_peaks_differ,
    ep_converges_faster,
    ep_converges_faster_over_settings,
    iep_is_quadrature,
    one_sweep_is_enough,
    scaling_with_n,
    scaling_with_c,
    tkp_cost,
    scores.ep_beats_iep,
    scores.iep_keeps_up,
    scores.ep_beats_vb,
    scores.ep_beats_la,
    scores.mcmc_beats_ep,
    scores.tkp_improves_la,
    scores.accuracies_are_close,
    scores.la_is_more_accurate,
    scores.vb_is_less_accurate,
    scores.both_ep_beat_the_others,
    scores.ep_and_iep_agree,
)
