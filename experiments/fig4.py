"""Figure 4: class probabilities of the approximations against MCMC on USPS 3 vs 5 vs 7, training and test rows.

Laplace's method (LA, LA-TKP) is shown twice: against MCMC with the probit, as in the paper, and against MCMC with the
softmax, which is its own likelihood. EP-TKP is not in the paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.common import Experiment
from experiments.toy import MARKERS
from experiments.usps_marginals import PROBIT, SOFTMAX, SPLITS, Ground, ground
from nestgp.arrays import FloatArray
from nestgp.diagnostics import accuracy, mean_log_predictive_density
from nestgp.plotting import MUTED, STYLE, class_colours

PANELS = (
    *((method, PROBIT) for method in ("EP", "IEP", "VB", "LA", "LA-TKP", "EP-TKP")),
    *((method, SOFTMAX) for method in ("LA", "LA-TKP")),
)


def run(experiment: Experiment) -> None:
    """Probabilities of the true class, a method up and MCMC across."""
    here = ground(experiment)
    errors = {f"{method} against {chain}": _errors(here, method, chain) for method, chain in PANELS}
    payload = here.record | {
        "difference_from_mcmc": errors,
        "claims_of_the_paper": _claims(errors),
        "test_scores": {name: _scores(here, name) for name in here.methods},
        "probability_of_true_class": {
            name: {split: np.round(method.of_truth(here.digits, split), 5) for split in SPLITS}
            for name, method in here.methods.items()
        },
        "true_class": here.digits.y,
        "class_names": here.digits.names,
    }
    experiment.save(payload, here.caveats)
    _draw(experiment, here, errors)


def _pair(here: Ground, method: str, chain: str, split: str) -> tuple[FloatArray, FloatArray]:
    """Probabilities of the true class by MCMC and by the method, at the rows that the method has."""
    approximation = here.methods[method]
    return here.methods[chain].of_truth(here.digits, split)[approximation.rows[split]], approximation.of_truth(here.digits, split)


def _errors(here: Ground, method: str, chain: str) -> dict[str, Any]:
    """By split: mean, root mean square and largest difference, method − MCMC."""
    out = {}
    for split in SPLITS:
        exact, approximate = _pair(here, method, chain, split)
        gap = approximate - exact
        values = {"mean": gap.mean(), "rms": np.sqrt(np.mean(gap**2)), "largest": np.abs(gap).max()}
        out[split] = {name: float(value) for name, value in values.items()} | {"rows": gap.size}
    return out


def _claims(errors: dict[str, Any]) -> dict[str, bool]:
    """What the text of section 5.2 says of this figure, in the numbers above."""

    def value(method: str, split: str, name: str, chain: str = PROBIT) -> float:
        return errors[f"{method} against {chain}"][split][name]

    def ep_is_closest(split: str) -> bool:
        return all(value("EP", split, "rms") < value(other, split, "rms") for other in ("IEP", "VB", "LA", "LA-TKP"))

    return {
        "EP is closest on training rows": ep_is_closest("train"),
        "EP is closest on test rows": ep_is_closest("test"),
        "IEP underestimates training rows": value("IEP", "train", "mean") < 0,
        "IEP is closer on test rows than on training rows": value("IEP", "test", "rms") < value("IEP", "train", "rms"),
        "VB underestimates test rows": value("VB", "test", "mean") < 0,
        "LA underestimates test rows": value("LA", "test", "mean") < 0,
        "LA-TKP is closer than LA on test rows": value("LA-TKP", "test", "rms") < value("LA", "test", "rms"),
        "LA-TKP is closer than LA on test rows, softmax MCMC": value("LA-TKP", "test", "rms", SOFTMAX)
        < value("LA", "test", "rms", SOFTMAX),
    }


def _scores(here: Ground, name: str) -> dict[str, float]:
    method = here.methods[name]
    proba, y = method.probability["test"], here.digits.y["test"][method.rows["test"]]
    return {"mlpd": mean_log_predictive_density(proba, y), "accuracy": accuracy(proba, y), "rows": len(y)}


def _draw(experiment: Experiment, here: Ground, errors: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    colours = class_colours(len(here.digits.names))
    with plt.rc_context(STYLE):
        shape = {"figsize": (2.1 * len(PANELS), 4.8), "layout": "constrained"}
        figure, axes = plt.subplots(2, len(PANELS), sharex=True, sharey=True, **shape)
        for column, (method, chain) in enumerate(PANELS):
            for ax, split in zip(axes[:, column], SPLITS, strict=True):
                x, p = _pair(here, method, chain, split)
                y = here.digits.y[split][here.methods[method].rows[split]]
                ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8)
                for k, digit in enumerate(here.digits.names):
                    mine = y == k
                    look = {"color": colours[k], "markersize": 4, "fillstyle": "none", "alpha": 0.6, "rasterized": True}
                    ax.plot(x[mine], p[mine], MARKERS[k], label=digit, **look)
                ax.set_aspect("equal")
                rms = errors[f"{method} against {chain}"][split]["rms"]
                ax.annotate(f"rms {rms:.3f}", (0.97, 0.04), xycoords="axes fraction", ha="right", fontsize=8, color=MUTED)
            axes[0, column].set_title(method, fontsize=10)
            axes[1, column].set_xlabel(chain, fontsize=9)
        for ax, split in zip(axes[:, 0], SPLITS, strict=True):
            ax.set_ylabel(f"method, {split} rows")
        axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left", handletextpad=0.1)
        experiment.save_figure(figure, caveats=["probabilities of the true class", *here.caveats])
        plt.close(figure)


def main() -> None:
    """Run from the command line."""
    run(Experiment.from_command_line("fig4", __doc__ or ""))


if __name__ == "__main__":
    main()
