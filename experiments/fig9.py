"""Figure 9: classification accuracies on six data sets and pairwise differences to EP, from the numbers of table 2.

A circle is around the difference where all predictions are those of EP, as in the paper. `fig9-peers`: other packages.
"""

from __future__ import annotations

from experiments.common import Experiment
from experiments.fig8 import save


def run(experiment: Experiment) -> None:
    save(experiment, "accuracy")


def main(argv: list[str] | None = None) -> None:
    run(Experiment.from_command_line("fig9", "Classification accuracies and differences to EP, from table 2.", argv))


if __name__ == "__main__":
    main()
