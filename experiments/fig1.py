"""Figure 1: predicted class probabilities and latent means of EP, IEP and MCMC on a problem with scalar inputs."""

from __future__ import annotations

from experiments.common import Experiment
from experiments.toy import CLASSES, MARKERS, METHODS, Ground, ground
from nestgp.plotting import INK, MUTED, STYLE, class_colours

LINES = {"MCMC": "-", "EP": "--", "IEP": ":"}


def run(experiment: Experiment) -> None:
    """Probabilities (a) and latent means (b) over the inputs, with the positions of figures 2 and 3."""
    import matplotlib.pyplot as plt

    here = ground(experiment)
    curves = {"x": here.x, "probabilities": here.probability, "latent_means": here.latent}
    differences = {
        method: float(abs(here.probability[method] - here.probability["MCMC"]).max()) for method in METHODS if method != "MCMC"
    }
    experiment.save(here.record | {"largest_difference_from_mcmc": differences, "curves": curves}, here.caveats)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        for ax, values in zip(axes, (here.probability, here.latent), strict=True):
            _curves(ax, here, values)
        axes[0].set(ylabel="class probability", ylim=(-0.1, 1.02), title="(a) predicted class probabilities")
        axes[1].set(ylabel="latent mean", title="(b) predicted latent means")
        axes[1].legend(frameon=False, fontsize=8, ncols=2)
        experiment.save_figure(figure, caveats=here.caveats)
        plt.close(figure)


def _curves(ax, here: Ground, values) -> None:  # type: ignore[no-untyped-def]
    colours = class_colours(len(CLASSES))
    for method, style in LINES.items():
        for k, colour in enumerate(colours):
            ax.plot(here.x, values[method][:, k], style, color=colour, linewidth=1.4)
        ax.plot([], [], style, color=INK, label=method)
    for k, marker in enumerate(MARKERS):
        x = here.X[here.y == k, 0]
        bottom = ax.get_xaxis_transform()
        ax.plot(x, [0.04] * len(x), marker, color=colours[k], fillstyle="none", transform=bottom, label=f"class {k + 1}")
    for point in here.points.values():
        ax.axvline(point.x, color=MUTED, linewidth=0.7, zorder=0)
        ax.annotate(f"${point.name}$", (point.x, 1.0), (3, -10), xycoords=ax.get_xaxis_transform(), textcoords="offset points")
    ax.set(xlabel="$x$", xlim=(here.x[0], here.x[-1]))


def main() -> None:
    """Run from the command line."""
    run(Experiment.from_command_line("fig1", __doc__ or ""))


if __name__ == "__main__":
    main()
