"""Figure 3: a close-to-Gaussian marginal posterior of the latents at x_j of figure 1, by MCMC, EP and IEP."""

from __future__ import annotations

from experiments.common import Experiment
from experiments.toy import run_marginals


def run(experiment: Experiment) -> None:
    """Latents of classes 2 and 3, and the tilted distribution whose integral is the class probability."""
    run_marginals(experiment, "x_j", (1, 2))


def main() -> None:
    """Run from the command line."""
    run(Experiment.from_command_line("fig3", __doc__ or ""))


if __name__ == "__main__":
    main()
