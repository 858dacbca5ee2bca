"""One page with everything: `report.html`, which needs no other file, and the claims as a page of the documentation.

Both follow from the results alone: the same results give the same files.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from experiments import verdicts
from experiments.claims import CLAIMS
from experiments.sections import SECTIONS, Section, Table
from experiments.verdicts import NOT_REPRODUCED, REPRODUCED, UNDECIDED, Claim, Records, Verdict, title

CLASSES = {REPRODUCED: "yes", NOT_REPRODUCED: "no", UNDECIDED: "open"}
PAPER = (
    "J. Riihimäki, P. Jylänki and A. Vehtari (2013), Nested Expectation Propagation for Gaussian Process Classification with a "
    "Multinomial Probit Likelihood, Journal of Machine Learning Research 14, 75–109"
)
RULES = (
    "Verdicts are computed from the stored results by `experiments/claims.py`, none is written by hand.",
    "Scores are compared on the same test rows. One is better if the 95 % interval of the paired difference "
    "(Bayesian bootstrap for log densities, Dirichlet posterior for accuracies) excludes zero. A difference whose "
    "interval holds zero decides nothing, whatever its direction; where the paper says that two do not differ, or "
    "one is not worse, it agrees.",
    "A claim about several data sets is reproduced if all of them agree, and not reproduced if one significantly "
    "contradicts it. Where the paper says “overall”: reproduced if more than half agree and none contradicts. "
    "Intervals are not corrected for the number of comparisons, as in the paper.",
    "Where the paper speaks of a picture (“almost identical”, “about equal”), the limit that stands for it is in "
    "the claim or the sentence.",
    "Not decidable: results that are missing, incomplete or of a quick run, methods that have not converged, chains"
    " that have not mixed.",
    "Clean: on Teaching, Glass and Segmentation some test rows repeat training rows. The paper keeps them; the clean "
    "protocol leaves them out.",
)
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --soft: #59636e; --line: #d5dae0; --shade: #f4f6f8;
  --yes: #14692f; --no: #a11d1d; --open: #7a5300; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e3e7eb; --soft: #9aa5b0; --line: #353d46;
  --shade: #1d2329; --yes: #6fce8c; --no: #ff8f85; --open: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1, h2 { line-height: 1.25; } h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); }
.numbers { min-width: 20rem; } .numbers th { white-space: nowrap; }
.claims td:first-child { min-width: 20rem; }
.verdict { font-weight: 600; white-space: nowrap; }
.yes { color: var(--yes); } .no { color: var(--no); } .open { color: var(--open); }
.said { border-left: 3px solid var(--line); padding-left: 1rem; color: var(--soft); }
.about { color: var(--soft); font-size: .875rem; }
.mark { background: var(--shade); border: 1px solid var(--line); padding: .5rem 1rem; display: inline-block; }
figure { margin: 1rem 0; overflow-x: auto; background: #fff; border: 1px solid var(--line); padding: .5rem; }
figure img { display: block; width: 100%; max-width: 64rem; min-width: 40rem; height: auto; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
@media (max-width: 45rem) {
  .claims thead { display: none; }
  .claims tr { display: block; border-bottom: 1px solid var(--line); padding: .6rem 0; }
  .claims td, .claims td:first-child { display: block; border: 0; padding: .1rem 0; min-width: 0; }
}
"""


# ------------------------------------------------------------------------------------------------------------ HTML


def write_html(results: Path) -> Path:
    """RESULTS/report.html from what is in RESULTS; nothing is computed but the claims."""
    records = verdicts.read_results(results)
    parts = [_summary(records), *(_section(section, records, results) for section in SECTIONS)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>nestgp: the paper's experiments</title><style>{STYLE}</style>"
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"
    path = results / "report.html"
    results.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _summary(records: Records) -> str:
    decided = [(claim, _decide(claim, records)) for claim in CLAIMS]
    rows = "\n".join(_claim_row(claim, found) for claim, found in decided)
    rules = "".join(f"<li>{_marked(rule)}</li>" for rule in RULES)
    return (
        f"<h1>The paper's experiments, made again with nestgp</h1>\n<p>{escape(PAPER)}.</p>\n"
        f"<p>{_counts([found['paper'] for _, found in decided])}</p>\n"
        f'<table class="claims"><thead><tr><th>Claim of the paper</th><th>Verdict</th><th>What decides it</th></tr></thead>\n'
        f"<tbody>{rows}</tbody></table>\n<details><summary>How verdicts are decided</summary><ul>{rules}</ul></details>"
    )


def _decide(claim: Claim, records: Records) -> dict[str, Verdict]:
    """Verdict by protocol; the clean one only where it can say something else."""
    found = {protocol: claim.decide(records, protocol) for protocol in claim.protocols}
    return {protocol: verdict for protocol, verdict in found.items() if protocol == "paper" or verdict != found["paper"]}


def _claim_row(claim: Claim, found: Mapping[str, Verdict]) -> str:
    links = ", ".join(f'<a href="#{name}">{title(name)}</a>' for name in claim.needs)
    named = {protocol: "" if protocol == "paper" else "clean: " for protocol in found}
    marks = "<br>".join(
        f'<span class="verdict {CLASSES[verdict.verdict]}">{named[protocol]}{verdict.verdict}</span>'
        for protocol, verdict in found.items()
    )
    sentences = "<br>".join(f"{named[protocol].capitalize()}{escape(verdict.sentence)}" for protocol, verdict in found.items())
    return f"<tr><td>{escape(claim.text)} ({links})</td><td>{marks}</td><td>{sentences}</td></tr>"


def _counts(found: Sequence[Verdict]) -> str:
    words = [verdict.verdict for verdict in found]
    return f"{len(words)} claims: " + ", ".join(f"{words.count(word)} {word}" for word in CLASSES) + "."


def _section(section: Section, records: Records, results: Path) -> str:
    head = f'<h2 id="{section.name}">{escape(section.heading)}</h2>\n<p class="said">The paper: {escape(section.paper)}</p>'
    if reason := verdicts.unusable(section.name, records):
        return f'{head}\n<p class="mark">{escape(reason.partition(": ")[2])}</p>'
    record = records[section.name]
    figures = [_figure(path, section.heading) for path in _pictures(section.name, results)]
    tables = [_table(caption, rows) for caption, rows in section.tables(record["results"]).items()]
    caveats = "".join(f"<li>{escape(caveat)}</li>" for caveat in record["caveats"])
    return "\n".join([head, *figures, *tables, f"<ul>{caveats}</ul>" if caveats else "", _about(record)])


def _pictures(name: str, results: Path) -> list[Path]:
    """NAME.png, and its further parts NAME-PART.png."""
    parts = (path for path in results.glob(f"{name}-*.png") if not path.stem.startswith(f"{name}-quick"))
    return [path for path in (results / f"{name}.png", *sorted(parts)) if path.exists()]


def _figure(path: Path, heading: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escape(heading)} ({path.stem})" src="data:image/png;base64,{data}"></figure>'


def _table(caption: str, rows: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<div class="wide"><table class="numbers"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _about(record: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    made = f"<code>{escape(record['command'])}</code>, seed {record['seed']}"
    return f'<p class="about">Made by {made}, with Python {escape(record["python"])}, {escape(versions)}.</p>'


def _marked(text: str) -> str:
    """Escaped, with `code` marked."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


# --------------------------------------------------------------------------------------------------- documentation


def write_page(results: Path, path: Path) -> Path:
    """The claims as Markdown."""
    records = verdicts.read_results(results)
    decided = [(claim, _decide(claim, records)) for claim in CLAIMS]
    counts = _counts([found["paper"] for _, found in decided])
    lines = [
        "# Claims of the paper",
        "",
        f"What {PAPER} says in section 5, and whether the results of this library say so too. {counts}",
        "",
        "This page is made by `nestgp reproduce report` from the files in `experiments/results`, where "
        "`report.html` shows the figures and numbers too; what is written into it by hand is lost. `nestgp "
        "reproduce --list` names the experiments.",
        "",
        "| claim | from | verdict | what decides it |",
        "| --- | --- | --- | --- |",
        *(_page_row(claim, found) for claim, found in decided),
        "",
        "## How verdicts are decided",
        "",
        *(f"- {rule}" for rule in RULES),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _page_row(claim: Claim, found: Mapping[str, Verdict]) -> str:
    named = {protocol: "" if protocol == "paper" else "clean: " for protocol in found}
    marks = "<br>".join(f"{named[protocol]}**{verdict.verdict}**" for protocol, verdict in found.items())
    sentences = "<br>".join(f"{named[protocol]}{verdict.sentence}" for protocol, verdict in found.items())
    source = ", ".join(title(name) for name in claim.needs).replace(" ", "&nbsp;")
    cells = (claim.text, source, marks, sentences)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
