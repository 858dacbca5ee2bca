"""Figure 5: latent marginals, pair by pair, of one training point of USPS 3 vs 5 vs 7 by MCMC, EP, IEP, VB and LA.

Grey contours are those of MCMC with the same likelihood: softmax for LA, multinomial probit for the others.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import skew

from experiments.common import Experiment
from experiments.toy import MASSES, contours, gaussian, plane, smoothed
from experiments.usps_marginals import PROBIT, SHOWN_CLASS, SOFTMAX, Ground, Method, ground, size
from nestgp.arrays import FloatArray
from nestgp.plotting import MUTED, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Columns with the chain whose contours are grey.
COLUMNS = ((PROBIT, PROBIT), ("EP", PROBIT), ("IEP", PROBIT), ("VB", PROBIT), (SOFTMAX, SOFTMAX), ("LA", SOFTMAX))
PAIRS = tuple(combinations(range(3), 2))


def run(experiment: Experiment) -> None:
    """Three pairs of latents down, methods across."""
    here = ground(experiment)
    digit = here.digits.names[SHOWN_CLASS]
    rule = f"training row {here.row}, of digit {digit}, has the median probability of its class by EP"
    caveats = [*here.caveats, f"the paper does not say which point it shows: {rule}"]
    experiment.save(here.record | _numbers(experiment, here), caveats)
    _draw(experiment, here, caveats)


def _numbers(experiment: Experiment, here: Ground) -> dict[str, Any]:
    """Moments of every method, and the spread of the contrasts f_2 − f_k beside that of MCMC."""
    moments = {name: here.methods[name] for name, _ in COLUMNS}
    chains = {name: moments[name].draws for name in (PROBIT, SOFTMAX)}
    return {
        "row": here.row,
        "class": SHOWN_CLASS + 1,
        "probability_of_true_class": {
            name: float(method.probability["train"][here.row, SHOWN_CLASS]) for name, method in moments.items()
        },
        "latent_mean": {name: method.mean for name, method in moments.items()},
        "latent_cov": {name: method.cov for name, method in moments.items()},
        "sd_of_contrasts_over_mcmc": {
            name: _spread(moments[name]) / _spread(moments[chain]) for name, chain in COLUMNS if name != chain
        },
        "distance_of_mean_in_mcmc_sd": {
            name: (moments[name].mean - moments[chain].mean) / np.sqrt(np.diag(moments[chain].cov))
            for name, chain in COLUMNS
            if name != chain
        },
        "skewness_of_draws": {name: skew(draws) for name, draws in chains.items()},
        "contour_masses": MASSES,
        "draws_shown": {name: np.round(_thinned(experiment, draws), 3) for name, draws in chains.items()},
    }


def _spread(method: Method) -> FloatArray:
    """Standard deviations of f_2 − f_1 and f_2 − f_3, (2,)."""
    difference = np.eye(3)[SHOWN_CLASS] - np.delete(np.eye(3), SHOWN_CLASS, axis=0)
    return np.sqrt(np.einsum("ik,kl,il->i", difference, method.cov, difference))


def _thinned(experiment: Experiment, draws: FloatArray) -> FloatArray:
    return draws[np.linspace(0, len(draws) - 1, min(len(draws), size(experiment).dots)).astype(int)]


def _draw(experiment: Experiment, here: Ground, caveats: list[str]) -> None:
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(3, len(COLUMNS), figsize=(2.4 * len(COLUMNS), 7.2), layout="constrained")
        for ax_row, pair in zip(axes, PAIRS, strict=True):
            for ax, (name, chain) in zip(ax_row, COLUMNS, strict=True):
                _panel(ax, experiment, here, name, chain, list(pair))
        for ax, (name, chain) in zip(axes[0], COLUMNS, strict=True):
            ax.set_title(name if name == chain else f"{name} ({chain.removeprefix('MCMC ')})", fontsize=10)
        note = "contours hold 95, 90, 75, 50, 25 % of the mass; grey: MCMC with the same likelihood"
        experiment.save_figure(figure, caveats=[*caveats, note])
        plt.close(figure)


def _panel(ax: Axes, experiment: Experiment, here: Ground, name: str, chain: str, pair: list[int]) -> None:
    """One pair of latents by one method; all columns of a likelihood have the same frame."""
    low, high = np.array([np.inf, np.inf]), np.array([-np.inf, -np.inf])
    for method in (here.methods[other] for other, its_chain in COLUMNS if its_chain == chain):
        reach = 2.8 * np.sqrt(np.diag(method.cov)[pair])
        low, high = np.minimum(low, method.mean[pair] - reach), np.maximum(high, method.mean[pair] + reach)
    points = plane(low, high, size(experiment).pixels)
    draws = here.methods[chain].draws[:, pair]
    if name == chain:
        ax.scatter(*_thinned(experiment, draws).T, s=3, color="#56B4E9", alpha=0.5, linewidth=0, rasterized=True)
    contours(ax, points, smoothed(draws), bold=name == chain)
    if name != chain:
        method = here.methods[name]
        contours(ax, points, gaussian(method.mean[pair], method.cov[np.ix_(pair, pair)]), bold=True)
    ax.axline((0, 0), slope=1, color=MUTED, linewidth=0.6, linestyle=":")
    names = [f"$f_i^{k + 1}$" for k in pair]
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel=names[0], ylabel=names[1])


def main() -> None:
    """Run from the command line."""
    run(Experiment.from_command_line("fig5", __doc__ or ""))


if __name__ == "__main__":
    main()
