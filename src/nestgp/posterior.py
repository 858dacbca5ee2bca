"""What every method returns: Gaussian latents at the training points, and at new inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from nestgp import kernels
from nestgp.arrays import FloatArray
from nestgp.threads import single_threaded_blas


class PredictiveBlocks(Protocol):
    """What prediction needs of the block algebra."""

    def predict(self, k_star: FloatArray, prior_variance: FloatArray) -> FloatArray: ...


class Released:
    """In place of a factor that was let go to save memory."""

    def predict(self, k_star: FloatArray, prior_variance: FloatArray) -> FloatArray:
        """Nothing is left to predict with."""
        raise ValueError("the factor of this posterior was released: infer again to predict")


@dataclass(frozen=True)
class GaussianPosterior:
    """q(f) = N(μ, Σ) given by K⁻¹μ and a factor of K + sites.

    Attributes
    ----------
    mean : (n, c) marginal means at the training points.
    covariance : (n, c, c) marginal covariances at the training points.
    b : (c, n), K⁻¹μ.
    blocks : the factor that turns prior into posterior covariances.
    """

    mean: FloatArray
    covariance: FloatArray
    b: FloatArray
    blocks: PredictiveBlocks

    def at(self, k_star: FloatArray, prior_variance: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean K_*ᵀb (m, c) and covariance K_** − K_*ᵀMK_* (m, c, c) at new inputs (eqs. 39-40).

        Parameters
        ----------
        k_star : (n, m) or (c, n, m) covariance of training and new inputs; prior_variance : (m,) or (c, m).
        """
        with single_threaded_blas():
            mean = (self.b @ k_star).T if k_star.ndim == 2 else np.einsum("kn,knm->mk", self.b, k_star)
        return mean, self.blocks.predict(k_star, prior_variance)


class LatentPosterior(Protocol):
    """Seam 5: latents at new inputs, a mixture of Gaussians with a leading axis over its components."""

    def latent(self, X: FloatArray) -> tuple[FloatArray, FloatArray]: ...


@dataclass(frozen=True)
class ProcessPosterior:
    """A Gaussian posterior together with the kernel and inputs it belongs to: a mixture of one."""

    kernel: Kernel | Sequence[Kernel]
    X: FloatArray
    gaussian: GaussianPosterior

    def latent(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Latent mean (1, m, c) and covariance (1, m, c, c) at the rows of ``X`` (m, d)."""
        k_star = kernels.cross(self.kernel, self.X, X)
        mean, cov = self.gaussian.at(k_star, kernels.diagonal(self.kernel, X))
        return mean[None], cov[None]


def diagonal_matrices(diagonals: FloatArray) -> FloatArray:
    """(n, c) → (n, c, c) with these diagonals."""
    out = np.zeros((*diagonals.shape, diagonals.shape[1]))
    each = np.arange(diagonals.shape[1])
    out[:, each, each] = diagonals
    return out
