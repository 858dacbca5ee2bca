"""Figures of class probabilities, calibration and convergence.

Needs matplotlib (`pip install 'nestgp[plot]'`). Each function draws on the axes it is given, or makes its
own, and returns them. Classes differ in colour and in marker, so that no figure relies on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nestgp.arrays import FloatArray
from nestgp.diagnostics import reliability_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Okabe and Ito's palette, told apart under every common form of colour blindness; black is left for text.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
INK = "#22252a"
MUTED = "#6b7178"

# For `matplotlib.rc_context`: the look of the figures that the command line saves.
STYLE: Any = {
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.linewidth": 0.8,
}


class ProbabilisticClassifier(Protocol):
    """What a map needs of a fitted classifier."""

    classes_: Any

    def predict_proba(self, X: Any) -> Any: ...


class IterationRecord(Protocol):
    """What a convergence plot needs of one iteration."""

    @property
    def iteration(self) -> int: ...
    @property
    def log_evidence(self) -> float: ...
    @property
    def residual(self) -> float: ...
    @property
    def damping(self) -> float: ...


def class_colours(n_classes: int) -> FloatArray:
    """RGB of each class, (n_classes, 3): Okabe and Ito's palette, evenly spaced colours beyond eight."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    if n_classes <= len(PALETTE):
        return np.array([to_rgb(c) for c in PALETTE[:n_classes]])
    return colormaps["cividis"](np.linspace(0, 1, n_classes))[:, :3]


def plot_probability_map(
    clf: ProbabilisticClassifier,
    X: ArrayLike,
    y: ArrayLike,
    ax: Axes | None = None,
    *,
    grid: int = 150,
    labels: Sequence[str] | None = None,
    certainty: Sequence[float] = (0.9,),
) -> Axes:
    """Class probabilities over a plane: hue is the class, white is doubt, a line is a change of decision.

    Parameters
    ----------
    clf : fitted on two columns.
    X, y : (n, 2) points and their labels, drawn on top.
    grid : points along each side.
    labels : names of `clf.classes_` for the legend.
    certainty : levels of the largest probability that get a dashed contour.
    """
    points = np.asarray(X, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"a probability map needs exactly two columns, X has shape {points.shape}")
    ax = _axes(ax)
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.12 * (high - low)
    xs, ys = (np.linspace(a, b, grid) for a, b in zip(low - margin, high + margin, strict=True))
    plane = np.stack(np.meshgrid(xs, ys), axis=-1)
    proba = np.asarray(clf.predict_proba(plane.reshape(-1, 2))).reshape(grid, grid, -1)

    ax.imshow(
        _shade(proba),
        origin="lower",
        extent=(xs[0], xs[-1], ys[0], ys[-1]),
        aspect="auto",
        interpolation="bilinear",
    )
    _draw_boundaries(ax, xs, ys, proba, certainty)
    _draw_points(ax, points, np.asarray(y), np.asarray(clf.classes_), labels)
    ax.set_xlim(xs[0], xs[-1])
    ax.set_ylim(ys[0], ys[-1])
    return ax


def plot_reliability(
    proba: ArrayLike, y: ArrayLike, ax: Axes | None = None, *, n_bins: int = 10, label: str | None = None
) -> Axes:
    """Accuracy against confidence in bins, with 95% intervals: calibrated means on the diagonal."""
    ax = _axes(ax)
    curve = reliability_curve(proba, y, n_bins)
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--", zorder=1)
    errors = np.clip([curve.accuracy - curve.low, curve.high - curve.accuracy], 0, None)
    drawn = ax.errorbar(
        curve.confidence,
        curve.accuracy,
        yerr=errors,
        fmt="o-",
        linewidth=1.4,
        capsize=0,
        label=label,
        zorder=2,
    )
    # Area in proportion to the points in the bin: a far-off dot that stands for two points should look small.
    area = 160 * curve.size / curve.size.max()
    ax.scatter(
        curve.confidence, curve.accuracy, s=area, color=drawn.lines[0].get_color(), alpha=0.35, zorder=2
    )
    ax.set(
        xlim=(0, 1), ylim=(0, 1), xlabel="probability of the predicted class", ylabel="share that was right"
    )
    ax.set_aspect("equal")
    if label is not None:
        ax.legend(frameon=False, loc="upper left")
    return ax


def plot_history(
    history: Sequence[IterationRecord], axes: tuple[Axes, Axes] | None = None, *, label: str | None = None
) -> tuple[Axes, Axes]:
    """Convergence per iteration: log evidence above, undamped residual (log scale) with the damping below."""
    if len(history) == 0:
        raise ValueError("the history is empty: nothing to draw")
    if axes is None:
        import matplotlib.pyplot as plt

        _, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(5.5, 5), layout="constrained")
    else:
        top, bottom = axes
    step = np.array([record.iteration for record in history])
    residual = np.array([record.residual for record in history], dtype=np.float64)
    (line,) = top.plot(
        step, [record.log_evidence for record in history], marker=".", linewidth=1.4, label=label
    )
    # A residual of exactly zero has no logarithm: leave a gap rather than invent a value.
    bottom.semilogy(step, np.where(residual > 0, residual, np.nan), marker=".", color=line.get_color())
    bottom.step(
        step, [record.damping for record in history], where="mid", color=MUTED, linewidth=1, linestyle=":"
    )
    top.set_ylabel("log evidence")
    bottom.set(xlabel="iteration", ylabel="residual (dotted: damping)")
    if label is not None:
        top.legend(frameon=False)
    for ax in (top, bottom):
        _open_frame(ax)
    return top, bottom


def plot_paired_probability(
    proba_a: ArrayLike,
    proba_b: ArrayLike,
    y: ArrayLike,
    ax: Axes | None = None,
    *,
    names: tuple[str, str] = ("a", "b"),
    labels: Sequence[str] | None = None,
) -> Axes:
    """Probability that two classifiers gave to what happened, one dot per point, b across and a up.

    Above the diagonal a was the better of the two. Axes are on the logit scale, so 0.9 and 0.99 stay apart;
    y (n,) are integer codes.
    """
    ax = _axes(ax)
    codes = np.asarray(y)
    rows = np.arange(codes.size)
    a, b = (np.asarray(p, dtype=np.float64)[rows, codes] for p in (proba_a, proba_b))
    # A probability of 0 or 1 has no logit: the frame is at least 1e-4 from them, and points beyond sit on it.
    low = float(np.clip(min(a.min(), b.min()) / 2, 1e-4, 0.3))
    limits = (low, 1 - float(np.clip((1 - max(a.max(), b.max())) / 2, 1e-4, 0.3)))
    ax.set(xscale="logit", yscale="logit", xlim=limits, ylim=limits)
    ax.set_aspect("equal")
    ax.fill_between(limits, limits, limits[1], color=INK, alpha=0.035, linewidth=0, zorder=0)
    ax.plot(limits, limits, color=MUTED, linewidth=1, zorder=1)
    pairs = np.clip(np.column_stack([b, a]), *limits)
    n_classes = np.asarray(proba_a).shape[1]
    _draw_points(ax, pairs, codes, np.arange(n_classes), labels, alpha=0.8)
    _probability_ticks(ax, limits)
    ax.annotate(
        f"above the line {names[0]} gave more:\n{np.sum(a > b)} of {codes.size}",
        (0.97, 0.04),
        xycoords="axes fraction",
        ha="right",
        color=MUTED,
    )
    ax.set(
        xlabel=f"{names[1]}: probability of the true class",
        ylabel=f"{names[0]}: probability of the true class",
    )
    return ax


def set_titles(ax: Axes, title: str, subtitle: str) -> None:
    """A bold line and a quiet one above the axes, flush left."""
    ax.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=22)
    ax.annotate(
        subtitle,
        (0, 1),
        (0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        color=MUTED,
        fontsize=10,
    )


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def _shade(proba: FloatArray) -> FloatArray:
    """RGB from class probabilities (..., c): mixed class colours, white where no class is favoured."""
    n_classes = proba.shape[-1]
    certainty = (proba.max(axis=-1, keepdims=True) - 1 / n_classes) / (1 - 1 / n_classes)
    # A little white everywhere keeps the points on top readable.
    strength = 0.72 * np.clip(certainty, 0, 1)
    return strength * (proba @ class_colours(n_classes)) + (1 - strength)


def _draw_boundaries(
    ax: Axes, xs: FloatArray, ys: FloatArray, proba: FloatArray, certainty: Sequence[float]
) -> None:
    for k in range(proba.shape[-1]):
        lead = proba[..., k] - np.delete(proba, k, axis=-1).max(axis=-1)
        if lead.min() < 0 < lead.max():
            ax.contour(xs, ys, lead, levels=[0.0], colors=INK, linewidths=1.3)
    top = proba.max(axis=-1)
    for level in certainty:
        if top.min() < level < top.max():
            ax.contour(
                xs, ys, top, levels=[level], colors=INK, linewidths=0.8, linestyles="dashed", alpha=0.7
            )


def _draw_points(
    ax: Axes,
    points: FloatArray,
    y: NDArray[Any],
    classes: NDArray[Any],
    labels: Sequence[str] | None,
    alpha: float = 1.0,
) -> None:
    colours = class_colours(len(classes))
    for k, value in enumerate(classes):
        mine = y == value
        ax.scatter(
            points[mine, 0],
            points[mine, 1],
            s=26,
            marker=MARKERS[k % len(MARKERS)],
            color=[colours[k]],
            edgecolor="white",
            linewidth=0.7,
            alpha=alpha,
            label=str(value if labels is None else labels[k]),
            zorder=3,
        )


def _probability_ticks(ax: Axes, limits: tuple[float, float]) -> None:
    ticks = [p for p in (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999) if limits[0] <= p <= limits[1]]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ticks, labels=[f"{p:g}" for p in ticks])
        axis.set_ticks([], minor=True)


def _open_frame(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
