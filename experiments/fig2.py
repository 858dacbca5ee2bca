"""Figure 2: a non-Gaussian marginal posterior of the latents at x_i of figure 1, by MCMC, EP and IEP."""

from __future__ import annotations

from experiments.common import Experiment
from experiments.toy import run_marginals


def run(experiment: Experiment) -> None:
    """Latents of classes 1 and 2, and the tilted distribution whose integral is the class probability."""
    run_marginals(experiment, "x_i", (0, 1))


def main() -> None:
    """Run from the command line."""
    run(Experiment.from_command_line("fig2", __doc__ or ""))


if __name__ == "__main__":
    main()
