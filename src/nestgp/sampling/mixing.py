"""Has it mixed: rank-normalised split R-hat and effective sample sizes (Vehtari, Gelman, Simpson, Carpenter, Bürkner 2021)."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from nestgp.arrays import FloatArray

#: A quantity counts as a reference only below this R-hat and above this many effective draws.
RHAT_LIMIT, ESS_LIMIT = 1.01, 400.0


def split_chains(draws: FloatArray) -> FloatArray:
    """(chains, draws) → (2·chains, draws // 2)."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def _rank_normal(draws: FloatArray) -> FloatArray:
    ranks = rankdata(draws, method="average").reshape(draws.shape)
    return ndtri((ranks - 0.375) / (draws.size + 0.25))


def _rhat(chains: FloatArray) -> float:
    n = chains.shape[1]
    within = float(chains.var(axis=1, ddof=1).mean())
    between = n * float(chains.mean(axis=1).var(ddof=1))
    if within <= 0.0:
        return 1.0 if between <= 0.0 else np.inf
    return float(np.sqrt((between / within + n - 1) / n))


def rhat(draws: FloatArray) -> float:
    """Larger of the bulk and the folded rank-normalised split R-hat; draws (chains, draws), nan for fewer than four."""
    if draws.shape[1] < 4:
        return np.nan
    split = split_chains(draws)
    folded = np.abs(split - np.median(split))
    return max(_rhat(_rank_normal(split)), _rhat(_rank_normal(folded)))


def _ess(chains: FloatArray) -> float:
    """Effective sample size by Geyer's initial monotone sequence over all chains; chains (m, n)."""
    m, n = chains.shape
    if n < 4:
        return np.nan
    centred = chains - chains.mean(axis=1, keepdims=True)
    size = 2 ** int(np.ceil(np.log2(2 * n)))
    spectrum = np.fft.rfft(centred, size, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n] / n
    within = float((covariance[:, 0] * n / (n - 1)).mean())
    total = within * (n - 1) / n + (float(chains.mean(axis=1).var(ddof=1)) if m > 1 else 0.0)
    if total <= 0.0:
        return float(m * n)
    rho = 1.0 - (within - covariance.mean(axis=0)) / total
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
    positive = int(np.argmax(pairs < 0.0)) if (pairs < 0.0).any() else pairs.size
    tau = -1.0 + 2.0 * float(np.minimum.accumulate(pairs[: max(positive, 1)]).sum())
    return float(m * n / max(tau, 1.0 / np.log10(m * n)))


def ess_bulk(draws: FloatArray) -> float:
    """Effective sample size of the rank-normalised draws, (chains, draws)."""
    return _ess(_rank_normal(split_chains(draws)))


def ess_tail(draws: FloatArray) -> float:
    """Smaller effective sample size of the 5 % and 95 % quantiles, (chains, draws)."""
    split = split_chains(draws)
    return min(_ess((split <= np.quantile(draws, q)).astype(float)) for q in (0.05, 0.95))


def summarise(draws: FloatArray) -> dict[str, FloatArray]:
    """R-hat, bulk and tail ESS of every quantity; draws (chains, draws, quantities)."""
    columns = [draws[:, :, j] for j in range(draws.shape[2])]
    return {
        "rhat": np.array([rhat(c) for c in columns]),
        "ess_bulk": np.array([ess_bulk(c) for c in columns]),
        "ess_tail": np.array([ess_tail(c) for c in columns]),
    }


def mixed(summary: dict[str, FloatArray]) -> bool:
    """True if every quantity meets both limits."""
    ess = np.minimum(summary["ess_bulk"], summary["ess_tail"])
    return bool(np.all(summary["rhat"] < RHAT_LIMIT) and np.all(ess >= ESS_LIMIT))
