"""Markov chain Monte Carlo: what the approximations are measured against."""

from nestgp.sampling.gibbs import Gibbs
from nestgp.sampling.ladder import Ladder
from nestgp.sampling.metropolis import EllipticalSlice, Hamiltonian, ScaledMetropolis

__all__ = ["EllipticalSlice", "Gibbs", "Hamiltonian", "Ladder", "ScaledMetropolis"]
