"""The claims of section 5.4: predictive performance, from every test row that table 2 and figure 10 store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from experiments.fig8 import TITLES
from experiments.table2 import METHODS
from experiments.verdicts import (
    MISSING,
    NO,
    OPEN,
    YES,
    Part,
    Undecided,
    Verdict,
    above_zero,
    all_of,
    claim,
    no_difference,
    not_above_zero,
    overall,
    words,
)
from nestgp.diagnostics import Interval, compare_accuracy, compare_log_density

Record = Mapping[str, Any]
Ask = Callable[[Interval, str], Part]
Rule = Callable[[Sequence[Part], str], Verdict]

#: After the name of a data set whose test rows do not repeat training rows.
CLEAN = " (clean)"

#: A difference of accuracies up to this is small.
SMALL = 0.05


def compare(data: Record, kind: str, a: str, b: str, protocol: str = "paper") -> Interval:
    """Score of a − score of b on the same test rows, with the paper's 95 % interval; `kind`: "lpd" or "accuracy".

    Raises `Undecided` if a method is missing, has not converged or mixed, or gave the truth probability zero.
    """
    for method in (a, b):
        if method not in data["methods"]:
            raise Undecided(f"{method} not run")
        if not data["methods"][method]["reliable"]:
            raise Undecided(f"{method} not {'mixed' if method == 'MCMC' else 'converged'}")
    keep = np.array(data["clean"]) if protocol == "clean" else np.ones(len(data["targets"]), dtype=bool)
    rows = [data["methods"][method] for method in (a, b)]
    if kind == "accuracy":
        hits = [(np.array(row["predicted"]) == np.array(data["targets"]))[keep] for row in rows]
        better, worse = (int(np.sum(x & ~y)) for x, y in (hits, hits[::-1]))
        return _accuracy(better, worse, int(keep.sum()) - better - worse)
    lpd = [np.array(row["lpd"], dtype=float)[keep] for row in rows]
    if not np.all(np.isfinite(lpd)):
        raise Undecided("a log density is not finite")
    return compare_log_density(*lpd)


@cache
def _accuracy(better: int, worse: int, same: int) -> Interval:
    """`compare_accuracy`, which depends on these counts only and is slow: many pairs of methods have the same."""
    counts = (better, worse, same)
    return compare_accuracy(np.repeat([True, False, True], counts), np.repeat([False, True, True], counts))


def on(record: Record, name: str, kind: str, pair: tuple[str, str], protocol: str, ask: Ask, before: str = "") -> Part:
    """What one data set says: `ask` of the difference of the pair."""
    data = record["results"].get(name)
    clean = protocol == "clean" and data is not None and "clean" in data["summary"]
    label = before + TITLES[name] + CLEAN * clean
    if data is None:
        return Part(MISSING, f"{label}: not run")
    try:
        return ask(compare(data, kind, *pair, protocol), label)
    except Undecided as reason:
        return Part(MISSING, f"{label}: {reason}")


def on_each(record: Record, names: Iterable[str], pair: tuple[str, str], protocol: str, ask: Ask) -> list[Part]:
    """What every data set says of the log predictive densities."""
    return [on(record, name, "lpd", pair, protocol, ask) for name in names]


def together(rule: Rule, parts: Sequence[Part], before: str, protocol: str) -> Verdict:
    """The rule's verdict; that of the clean protocol names only the data sets that the protocol changes."""
    verdict = rule(parts, before)
    changed = [part.words for part in parts if CLEAN in part.words]
    if protocol == "paper" or not changed:
        return verdict
    return verdict._replace(sentence=before + "; ".join(changed) + " (the others as they are)" * (len(changed) < len(parts)))


# -------------------------------------------------------------------------------------------------- figure 8, MLPD


@claim("EP has a better MLPD than IEP on New-thyroid, Wine, Segmentation and USPS 3-5-7.", "table2", clean=True)
def ep_beats_iep(record: Record, protocol: str) -> Verdict:
    names = ("new_thyroid", "wine", "image_segmentation", "usps_357")
    parts = on_each(record, names, ("EP", "IEP"), protocol, above_zero)
    return together(all_of, parts, "EP − IEP: ", protocol)


@claim("IEP is not worse than EP in MLPD on Teaching and Glass.", "table2", clean=True)
def iep_keeps_up(record: Record, protocol: str) -> Verdict:
    parts = on_each(record, ("teaching", "glass"), ("EP", "IEP"), protocol, not_above_zero)
    return together(all_of, parts, "EP − IEP: ", protocol)


def _ep_beats(other: str, record: Record, protocol: str) -> Verdict:
    parts = on_each(record, TITLES, ("EP", other), protocol, above_zero)
    return together(overall, parts, f"EP − {other}: ", protocol)


ep_beats_vb = claim("VB is overall worse than EP in MLPD.", "table2", clean=True)(partial(_ep_beats, "VB"))
ep_beats_la = claim("LA is overall worse than EP in MLPD.", "table2", clean=True)(partial(_ep_beats, "LA"))


@claim("MCMC has a significantly better MLPD than EP on Teaching and Segmentation, and nowhere else.", "table2", clean=True)
def mcmc_beats_ep(record: Record, protocol: str) -> Verdict:
    better = ("teaching", "image_segmentation")
    asks = {name: above_zero if name in better else not_above_zero for name in TITLES}
    parts = [on(record, name, "lpd", ("MCMC", "EP"), protocol, ask) for name, ask in asks.items()]
    return together(all_of, parts, "MCMC − EP: ", protocol)


@claim("LA-TKP improves the MLPD of LA on all data sets except Teaching.", "table2", clean=True)
def tkp_improves_la(record: Record, protocol: str) -> Verdict:
    asks = {name: not_above_zero if name == "teaching" else above_zero for name in TITLES}
    parts = [on(record, name, "lpd", ("LA-TKP", "LA"), protocol, ask) for name, ask in asks.items()]
    return together(all_of, parts, "LA-TKP − LA: ", protocol)


# ---------------------------------------------------------------------------------------------- figure 9, accuracy


def small(interval: Interval, name: str) -> Part:
    """Is the mean within ±SMALL? No if the whole interval is beyond, open in between."""
    beyond = interval.low > SMALL or interval.high < -SMALL
    return Part(YES if abs(interval.mean) <= SMALL else NO if beyond else OPEN, f"{name} {words(interval)}")


@claim(f"Accuracies differ little: by at most {SMALL} from that of EP.", "table2", clean=True)
def accuracies_are_close(record: Record, protocol: str) -> Verdict:
    """The sentence names the differences that are not small."""
    pairs = [(name, method) for name in TITLES for method in METHODS if method != "EP"]
    parts = [on(record, name, "accuracy", (method, "EP"), protocol, small, f"{method} on ") for name, method in pairs]
    outcomes = [part.outcome for part in parts]
    others = [part.words for part in parts if part.outcome in (NO, OPEN)]
    sentence = f"{outcomes.count(YES)} of {len(parts)} differences within {SMALL}"
    sentence += f", {outcomes.count(MISSING)} missing or not to be trusted" if MISSING in outcomes else ""
    return Verdict(all_of(parts).verdict, "; ".join([sentence, *others]))


@claim("LA is more accurate than EP on Segmentation.", "table2", clean=True)
def la_is_more_accurate(record: Record, protocol: str) -> Verdict:
    return all_of([on(record, "image_segmentation", "accuracy", ("LA", "EP"), protocol, above_zero)], "LA − EP: ")


@claim("VB is significantly less accurate than the others on Segmentation and USPS 3-5-7.", "table2", clean=True)
def vb_is_less_accurate(record: Record, protocol: str) -> Verdict:
    parts = [
        on(record, name, "accuracy", (other, "VB"), protocol, above_zero, f"{other} − VB on ")
        for name in ("image_segmentation", "usps_357")
        for other in METHODS
        if other != "VB"
    ]
    return together(all_of, parts, "", protocol)


# ------------------------------------------------------------------------------------------------------- figure 10

KINDS = {"lpd": "MLPD", "accuracy": "accuracy"}


@claim("On USPS with ten classes EP and IEP are both significantly better than VB and LA, in MLPD and accuracy.", "fig10")
def both_ep_beat_the_others(record: Record) -> Verdict:
    for method, search in record["results"]["searches"].items():
        if search["at_bound"]:
            raise Undecided(f"the search for {method}'s hyperparameters ended at a bound")
    parts = [
        above_zero(compare(record["results"], kind, a, b), f"{word}, {a} − {b}")
        for kind, word in KINDS.items()
        for a in ("EP", "IEP")
        for b in ("VB", "LA")
    ]
    return all_of(parts, _fewer_rows(record))


@claim("On USPS with ten classes EP and IEP do not differ significantly, in MLPD or accuracy.", "fig10")
def ep_and_iep_agree(record: Record) -> Verdict:
    parts = [no_difference(compare(record["results"], kind, "EP", "IEP"), word) for kind, word in KINDS.items()]
    return all_of(parts, f"{_fewer_rows(record)}EP − IEP: ")


def _fewer_rows(record: Record) -> str:
    """Says of whom the hyperparameters were found with some rows only."""
    rows = {method: search["rows"] for method, search in record["results"]["searches"].items()}
    most = max(rows.values())
    return "".join(f"({method}'s hyperparameters from {few} of {most} rows) " for method, few in rows.items() if few < most)
