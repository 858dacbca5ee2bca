"""How a claim of the paper is decided: by numbers in the results and their intervals, never by hand.

A claim is a pure function of the results, made of parts: one for each data set or method, which says yes, no, open or missing.

    @claim("EP is closest to MCMC.", "fig4")
    def ep_is_closest(record):
        return all_of([above_zero(interval, "IEP"), …])

    ep_is_closest.decide(read_results(directory))    # Verdict("reproduced", "IEP +0.012 (+0.010 to +0.014)")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.common import NAMES
from nestgp.diagnostics import Interval

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "not decidable"
YES, NO, OPEN, MISSING = "yes", "no", "open", "missing"

#: Name of an experiment → its file as read.
Records = Mapping[str, Mapping[str, Any]]


class Verdict(NamedTuple):
    """A verdict, and in one sentence the numbers that decide it or why none do."""

    verdict: str
    sentence: str


class Part(NamedTuple):
    """What one data set or method says of a claim: yes, no, open, or missing; and its numbers in words."""

    outcome: str
    words: str


class Undecided(Exception):
    """The results cannot decide the claim; the message says why."""


@dataclass(frozen=True)
class Claim:
    """A claim in our words, the results it needs, and the function of their records that decides it.

    `protocols`: "paper", and "clean" where test rows that repeat training rows can be left out; with two of them the
    function takes the protocol too.
    """

    text: str
    needs: tuple[str, ...]
    judge: Callable[..., Verdict]
    protocols: tuple[str, ...] = ("paper",)

    def decide(self, records: Records, protocol: str = "paper") -> Verdict:
        """The verdict; "not decidable" where a result is missing or only a quick one."""
        if protocol not in self.protocols:
            raise ValueError(f"no protocol {protocol}: choose from {', '.join(self.protocols)}")
        if reasons := [reason for name in self.needs if (reason := unusable(name, records))]:
            return Verdict(UNDECIDED, "; ".join(reasons))
        how = {"protocol": protocol} if len(self.protocols) > 1 else {}
        try:
            return self.judge(*(records[name] for name in self.needs), **how)
        except Undecided as reason:
            return Verdict(UNDECIDED, str(reason))


def claim(text: str, *needs: str, clean: bool = False) -> Callable[[Callable[..., Verdict]], Claim]:
    """Make a `Claim` of the function below."""
    return lambda judge: Claim(text, needs, judge, ("paper", "clean") if clean else ("paper",))


# -------------------------------------------------------------------------------------------------------- results


def read_results(directory: Path) -> dict[str, Any]:
    """The record of every experiment that has one; where there is only a quick one, that, which nothing uses."""
    found = {}
    for name in NAMES:
        for path in (directory / f"{name}.json", directory / f"{name}-quick.json"):
            if path.exists():
                found[name] = json.loads(path.read_text(encoding="utf-8"))
                break
    return found


def unusable(name: str, records: Records) -> str:
    """Why the result of this name is not used, empty if it is."""
    if name not in records:
        return f"{title(name)}: not run"
    return f"{title(name)}: only a quick run, not used" if records[name]["quick"] else ""


def title(name: str) -> str:
    """
    >>> title("fig10"), title("table1")
    ('figure 10', 'table 1')
    """
    return name.replace("fig", "figure ").replace("table", "table ")


def trust(record: Mapping[str, Any], *methods: str) -> None:
    """Stop here if a caveat says that one of these methods has not mixed or not converged."""
    for caveat in record["caveats"]:
        if any(caveat.startswith(f"{method} has not") for method in methods):
            raise Undecided(caveat)


# ---------------------------------------------------------------------------------------------------------- parts


def number(value: float, digits: int = 3, sign: str = "") -> str:
    """With a true minus sign.

    >>> number(-0.25, 2), number(0.25, 2, "+")
    ('−0.25', '+0.25')
    """
    return f"{value:{sign}.{digits}f}".replace("-", "−")


def words(interval: Interval) -> str:
    """Mean and interval of a difference; small ones have more digits."""
    digits = 3 if max(abs(interval.low), abs(interval.high)) >= 0.01 else 5
    mean, low, high = (number(value, digits, "+") for value in interval[:3])
    return f"{mean} ({low} to {high})"


def above_zero(interval: Interval, name: str) -> Part:
    """Is the difference positive? Open where its interval holds zero."""
    text = f"{name} {words(interval)}"
    if interval.low > 0:
        return Part(YES, text)
    if interval.high < 0:
        return Part(NO, f"{text}, significant the other way")
    return Part(OPEN, f"{text}, {'same' if interval.mean > 0 else 'other'} direction, not significant")


def not_above_zero(interval: Interval, name: str) -> Part:
    """Is there no significant difference upwards?"""
    return Part(NO if interval.low > 0 else YES, f"{name} {words(interval)}")


def no_difference(interval: Interval, name: str) -> Part:
    """Does the interval of the difference hold zero?"""
    return Part(YES if interval.low <= 0 <= interval.high else NO, f"{name} {words(interval)}")


def all_of(parts: Sequence[Part], before: str = "") -> Verdict:
    """Reproduced if every part says yes, not reproduced if one says no."""
    outcomes = {part.outcome for part in parts}
    verdict = NOT_REPRODUCED if NO in outcomes else REPRODUCED if outcomes == {YES} else UNDECIDED
    return Verdict(verdict, before + "; ".join(part.words for part in parts))


def overall(parts: Sequence[Part], before: str = "") -> Verdict:
    """What the paper says "overall": reproduced if most parts say yes and none no, not reproduced if as many say no as yes."""
    yes, no = (sum(part.outcome == outcome for part in parts) for outcome in (YES, NO))
    if 2 * yes > len(parts) and not no:
        verdict = REPRODUCED
    else:
        verdict = NOT_REPRODUCED if no and no >= yes else UNDECIDED
    count = f"significant on {yes} of {len(parts)}, the other way on {no}: "
    return Verdict(verdict, before + count + "; ".join(part.words for part in parts))
