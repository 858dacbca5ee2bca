"""Block algebra of K + sites, in 2c n³ flops: factor, solve, log determinant, marginal blocks.

Everything that an approximation with sites Π_i = diag(π_i) − π_i π_iᵀ/1ᵀπ_i needs of the posterior goes through
:class:`DenseBlocks`; the sites never meet a cn×cn matrix. With D = diag(π) (c, n):

    A_k = I + D_k½ K_k D_k½        B_k = D_k½ A_k⁻¹ D_k½        P = Σ_k B_k        M = B − B R P⁻¹ Rᵀ B
"""

from __future__ import annotations

from itertools import pairwise

import numba
import numpy as np

from nestgp.arrays import FloatArray, IntArray
from nestgp.halves import Routines, add_gram_in_bands, for_each_matrix, routines_for
from nestgp.lapack import NotPositiveDefiniteError, lower_times_in_place, multiply
from nestgp.symmetric import SymmetricStack, form_scaled, mirror, products_by_row, scale, times_vectors, transpose
from nestgp.threads import for_each, workers_for, workers_for_vectors

#: Where π is below this, diag(K − KBK) = (1 − diag A⁻¹)/π has lost too many digits and is summed directly.
SMALL_PI = 1e-4
#: Prior variance above which predictive covariances take a step of iterative refinement, and no class follows from the others;
#: below it they have 9 digits.
LARGE_VARIANCE = 1e3
#: Points of a class whose marginal covariances are made together, at least and at most; in between, so many that all threads
#: together hold no more than 2 n² numbers for them, or a million.
MARGINAL_POINTS, MARGINAL_ROOM = (64, 256), (2.0, 1e6)
#: New inputs that are predicted together, at most: enough for the matrix products (measured), and bounded memory.
PREDICT_ROWS = 400
#: Relative size of a negative eigenvalue of K that is rounding and not an error.
PSD_SLACK = 1e-6


@numba.njit(cache=True, nogil=True)
def _take_both(a, order, out):  # type: ignore[no-untyped-def]
    """Rows and columns of ``a`` in this order into ``out``."""
    for i in range(order.size):
        row = a[order[i]]
        for j in range(order.size):
            out[i, j] = row[order[j]]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _add_marginals(W, own, factor, first, inv_pi, gram):  # type: ignore[no-untyped-def]
    """gram[kl, i] += Σ_r U_k[r, i] U_l[r, i], U_k = L_P⁻¹ − W_k D_k⁻¹, for m points i from ``first`` on; kl runs over k >= l.

    W (c − 1, m, n) holds W_kᵀ of all classes but ``own``, whose W_k is made here, as L_Pᵀ = Σ_k W_k without the others; or
    (c, m, n) with all of them, own = −1. factor (m, n) holds the points' columns of what :class:`DenseBlocks` keeps of P. By
    tiles that stay in cache.
    """
    made, m, n = W.shape
    c = made if own < 0 else made + 1
    tile = 256
    U = np.empty((c, tile), W.dtype)
    for p in range(m):
        i = first + p
        for r0 in range(0, n, tile):
            width = min(tile, n - r0)
            column = factor[p, r0 : r0 + width]
            above = min(max(i - r0, 0), width)  # rows of this tile above the diagonal: L_Pᵀ there, L_P⁻¹ in the others
            for j in range(made):
                U[j if own < 0 or j < own else j + 1, :width] = W[j, p, r0 : r0 + width]
            if own >= 0:
                U[own, :above] = column[:above]
                U[own, above:width] = 0.0
                if 0 <= i - r0 < width:
                    U[own, above] = 1.0 / column[above]
                for k in range(c):
                    if k != own:
                        for r in range(width):
                            U[own, r] -= U[k, r]
            kl = 0
            for k in range(c):
                mine, scale = U[k], -inv_pi[k, i]
                for r in range(width):
                    mine[r] *= scale
                for r in range(above, width):
                    mine[r] += column[r]
                for other in range(k + 1):
                    total = W.dtype.type(0)
                    for r in range(width):
                        total += mine[r] * U[other, r]
                    gram[kl, i] += total
                    kl += 1


@numba.njit(cache=True, nogil=True, fastmath={"contract"})
def _add_inner_products(V, cov):  # type: ignore[no-untyped-def]
    """cov[j, k, l] += Σ_i V_k[i, j] V_l[i, j]; V (c, n, m), cov (m, c, c)."""
    c, n, m = V.shape
    tile = 64
    sums = np.empty((c * (c + 1) // 2, tile))
    for j0 in range(0, m, tile):
        width = min(tile, m - j0)
        sums[:] = 0.0
        for i in range(n):
            kl = 0
            for k in range(c):
                for other in range(k + 1):
                    for j in range(width):
                        sums[kl, j] += V[k, i, j0 + j] * V[other, i, j0 + j]
                    kl += 1
        kl = 0
        for k in range(c):
            for other in range(k + 1):
                for j in range(width):
                    cov[j0 + j, k, other] += sums[kl, j]
                    if other != k:
                        cov[j0 + j, other, k] += sums[kl, j]
                kl += 1


class KernelStack:
    """K for c classes: one (n, n) array that all share, or (c, n, n)."""

    def __init__(self, K: FloatArray, n_classes: int) -> None:
        self.K = K
        self.n_classes = n_classes
        self.n = K.shape[-1]

    def class_kernel(self, k: int) -> FloatArray:
        """K_k (n, n), the shared array if there is only one."""
        return self.K if self.K.ndim == 2 else self.K[k]

    def check_kernel(self) -> None:
        """Raise if a K_k has an eigenvalue below −1e-6 of its mean diagonal: no jitter is needed, only this check."""
        for k in range(1 if self.K.ndim == 2 else self.n_classes):
            scratch = self.class_kernel(k).copy()
            scratch[np.diag_indices(self.n)] += PSD_SLACK * float(np.diagonal(scratch).mean()) + np.finfo(float).tiny
            try:
                with workers_for(self.n, 1) as workers:
                    routines_for(self.n, workers).cholesky(scratch, True)
            except NotPositiveDefiniteError:
                which = "" if self.K.ndim == 2 else f" of class {k}"
                raise NotPositiveDefiniteError(f"the kernel matrix{which} is not positive semi-definite") from None

    def multiply_kernel(self, b: FloatArray) -> FloatArray:
        """K b class by class, for b (c, n) or a batch (c, n, q)."""
        columns = b.reshape(self.n_classes, self.n, -1)
        with workers_for_vectors(self.n) as workers:
            if columns.shape[2] == 1:
                vectors = columns[None, :, :, 0] if self.K.ndim == 2 else columns.transpose(0, 2, 1)
                products = times_vectors([(K, True) for K in self.K.reshape(-1, self.n, self.n)], vectors, workers)
            else:
                columns = np.ascontiguousarray(columns, self.K.dtype)
                products = np.empty(columns.shape, self.K.dtype)

                def work(k: int) -> None:
                    multiply(self.class_kernel(k), columns[k], products[k])

                for_each(work, self.n_classes, workers)
        return products.reshape(b.shape).astype(np.float64, copy=False)


class DenseBlocks(KernelStack):
    """Factor of K + sites for dense K; owns (⌈c/2⌉ + 1) n² doubles, reused by every :meth:`refresh`.

    Inside, points are ordered by the class of their largest π, so that those of a class lie side by side.

    Parameters
    ----------
    K : (n, n) array shared by all classes, or (c, n, n). In single precision, so is everything made of it: for sites that are
        still far from where they will end.
    n_classes : int

    Attributes
    ----------
    order : (n,), the points in the order of B and factor_p.
    B : c times (n, n), B_k = D½ A⁻¹ D½.
    factor_p : (n, n), on and below the diagonal L_P⁻¹, above it L_Pᵀ, with P = Σ_k B_k = L_P L_Pᵀ.
    pi : (c, n), the site weights, in the order of K.
    log_det : log|I + K T̃| = Σ_k log|A_k| + log|P| − Σ_i log 1ᵀπ_i  (eq. 43).
    log_det_error : ε Σ_j A_jj/L_jj² over all factors, what rounding may change log_det by: a pivot L_jj² is what is left of A_jj.
    """

    def __init__(self, K: FloatArray, n_classes: int) -> None:
        super().__init__(K, n_classes)
        self.B = SymmetricStack(n_classes, self.n, K.dtype)
        self.factor_p = np.empty((self.n, self.n), K.dtype)
        self.log_det = self.log_det_error = np.nan
        self.pi: FloatArray = np.empty((n_classes, self.n))
        self.order: IntArray = np.arange(self.n)
        self._own: IntArray = np.full(self.n, -1)

    def borrow(self, other: DenseBlocks) -> None:
        """Work in the memory of blocks of higher precision, which must not be in use at the same time."""
        self.B.squares = _lend(other.B.squares, self.B.squares)
        self.factor_p = _lend(other.factor_p, self.factor_p)

    def refresh(self, pi: FloatArray, total: FloatArray | None = None) -> None:
        """Factor for new site weights π (c, n); ``total`` is 1ᵀπ (n,) where the caller knows it better."""
        self.pi = pi
        self._sort()
        root = np.sqrt(pi[:, self.order]).astype(self.B.dtype, copy=False)
        log_dets, errors = np.empty(self.n_classes), np.empty(self.n_classes + 1)

        def factor(a: FloatArray, k: int, lower: bool, routines: Routines) -> float:
            before = np.diagonal(a).copy()
            log_det = routines.cholesky(a, lower)
            errors[k] = np.sum(before / np.square(np.diagonal(a), dtype=np.float64))
            return log_det

        def invert(k: int, routines: Routines) -> None:
            A, lower = self.B.triangle(k)
            form_scaled(self.class_kernel(k), root[k], self.order, lower, A)
            log_dets[k] = factor(A, k, lower, routines)
            routines.inverse(A, lower)
            scale(A, root[k], lower)

        with workers_for(self.n, self.n_classes) as workers:
            for_each_matrix(invert, self.n_classes, self.n, workers)
            self.B.sum_lower(self.factor_p, workers)
            routines = routines_for(self.n, workers)
            log_det_p = factor(self.factor_p, -1, True, routines)
            mirror(self.factor_p, workers)
            routines.triangular_inverse(self.factor_p, True)
        log_total = float(np.log(pi.sum(axis=0) if total is None else total).sum())
        self.log_det = float(log_dets.sum()) + log_det_p - log_total
        self.log_det_error = float(np.finfo(self.B.dtype).eps * errors.sum())

    def _sort(self) -> None:
        """Points by the class of their largest π, those of classes too small for that to pay (−1) first."""
        own = self.pi.argmax(axis=0)
        own[(np.bincount(own, minlength=self.n_classes) < MARGINAL_POINTS[0])[own]] = -1
        self.order = own.argsort(kind="stable")
        self._own = own[self.order]

    def solve(self, site_means: FloatArray) -> FloatArray:
        """b = K⁻¹μ (c, n) for sites with means w (c, n): b_k = B_k (w_k − P⁻¹ Σ_l B_l w_l).

        Equal to ν̃ − M K ν̃ (eq. 39) without its cancellation; a shift of w common to all classes changes nothing.
        Columns sum to zero. In other words M w; w may be a batch (c, n, q).
        """
        w = site_means.reshape(self.n_classes, self.n, -1).take(self.order, axis=1).astype(self.B.dtype, copy=False)
        with workers_for_vectors(self.n) as workers:
            Bw = self.B.times_each(w, workers)
            q = Bw.sum(axis=0)
            lower_times_in_place(self.factor_p, q)
            lower_times_in_place(self.factor_p, q, transposed=True)
            Bw -= self.B.times_each(np.broadcast_to(q, Bw.shape), workers)
        out = np.empty(Bw.shape)
        out[:, self.order] = Bw
        return out.reshape(site_means.shape)

    def class_precision(self, k: int) -> FloatArray:
        """B_k with both triangles, in the order of K, (n, n)."""
        out = np.empty((self.n, self.n), self.B.dtype)
        _take_both(self.B.full(k), self.order.argsort(), out)
        return out

    def inverse_root_times(self, X: FloatArray) -> FloatArray:
        """L_P⁻¹ X for X (n, m) in the order of K."""
        out = X.take(self.order, axis=0)
        lower_times_in_place(self.factor_p, out)
        return out

    def marginal_blocks(self) -> FloatArray:
        """Posterior covariance of f_i for every point, packed (c(c+1)/2, n) over k >= l.

        Σ_i[k, l] = δ_kl (K_k − K_k B_k K_k)_ii + Σ_r U_k[r, i] U_l[r, i], U_k = L_P⁻¹ B_k K_k = L_P⁻¹ − W_k D_k⁻¹ with
        W_k = L_P⁻¹ B_k. These sum to L_Pᵀ, so that one of them follows from the others: for every point that of the largest π,
        where a difference costs no digits. (c − 1) n³ flops.
        """
        c, n = self.n_classes, self.n
        pi = self.pi[:, self.order]
        inv_pi = (1.0 / pi).astype(self.B.dtype, copy=False)
        gram = np.zeros((c * (c + 1) // 2, n))
        # as refresh() does: a thread of BLAS goes on spinning for a while after its work, in the way of threads of our own
        with workers_for(n, c) as threads:
            room = max(MARGINAL_ROOM[0] * n * n, MARGINAL_ROOM[1])
            workers = max(1, min(threads, n // MARGINAL_POINTS[0], int(room / (c * n * MARGINAL_POINTS[0]))))
            groups = self._groups(workers, int(np.clip(room / (c * n * workers), *MARGINAL_POINTS)))
            most = max(last - first for _, first, last in groups)
            left = iter(groups)

            def work(_: int) -> None:
                W, factor = np.empty((c * most, n), self.B.dtype), np.empty((most, n), self.B.dtype)
                for own, first, last in left:
                    m, others = last - first, [k for k in range(c) if k != own]
                    here, columns = W[: len(others) * m], factor[:m]
                    for j, k in enumerate(others):
                        self.B.rows(k, first, here[j * m : (j + 1) * m])
                    lower_times_in_place(self.factor_p, here, "R", transposed=True)  # one product packs L_P⁻¹ once
                    transpose(self.factor_p[:, first:last], columns)
                    _add_marginals(here.reshape(-1, m, n), own, columns, first, inv_pi, gram)

            for_each(work, workers, workers)
        for k in range(c):
            gram[k * (k + 1) // 2 + k] += self._class_variance(k, pi[k])
        out = np.empty_like(gram)
        out[:, self.order] = gram
        return out

    def _groups(self, workers: int, most: int) -> list[tuple[int, int, int]]:
        """At ``most`` so many points with their largest π in one class, from where to where, and that class or −1; largest first.

        As many groups for one worker as for another.
        """
        starts = [0, *(np.flatnonzero(np.diff(self._own)) + 1), self.n]
        groups = []
        for begin, end in pairwise(starts):
            edges = np.linspace(begin, end, 1 - (begin - end) // most).astype(int)
            groups += [(int(self._own[begin]), int(first), int(last)) for first, last in pairwise(edges)]
        groups.sort(key=_size, reverse=True)
        while len(groups) % workers:
            own, first, last = groups.pop(0)
            middle = (first + last) // 2
            groups += [(own, first, middle), (own, middle, last)]
            groups.sort(key=_size, reverse=True)
        return groups

    def _class_variance(self, k: int, pi: FloatArray) -> FloatArray:
        """diag(K_k − K_k B_k K_k) = (1 − diag A_k⁻¹)/π_k, or D^-½ Σ_r K ∘ A⁻¹ D½ where π is so small that this cancels."""
        variance: FloatArray = (1.0 - self.B.diagonal(k) / pi) / pi
        small = pi < (SMALL_PI if self.B.dtype == np.float64 else np.inf)
        if small.any():
            KB = products_by_row(self.class_kernel(k), self.order, *self.B.triangle(k))
            variance[small] = (KB / pi)[small]
        return variance

    def m_blocks(self, k: int | None = None) -> FloatArray:
        """M_kk = B_k − W_kᵀ W_k, W_k = L_P⁻¹ B_k (n, n); summed over the classes when ``k`` is None, the last as L_Pᵀ − Σ W_k."""
        c, n = self.n_classes, self.n
        made = list(range(c - 1)) if k is None else [k]
        M = np.empty((n, n), self.B.dtype) if k is None else self.B.full(k)
        with workers_for(n, c) as workers:
            if k is None:
                self.B.sum_lower(M, workers)
            most = max(1, min(workers, len(made), n // 128))  # classes at a time: their rows take 2 n² numbers at most
            for first in range(0, n, 256):
                last = min(first + 256, n)
                L = np.tril(self.factor_p[first:last, :last], first)
                if k is None:  # the last class is what the others leave of L_Pᵀ
                    rest = np.triu(self.factor_p[first:last], first + 1)
                    rest[:, first:last][np.diag_indices(last - first)] = 1.0 / np.diagonal(L, first)
                for j in range(0, len(made), most):
                    W = self._w_rows(L, made[j : j + most], workers)
                    add_gram_in_bands(M, W.reshape(-1, n), -1.0, transposed=True, workers=workers)
                    if k is None:
                        rest -= W.sum(axis=0)
                if k is None:
                    add_gram_in_bands(M, rest, -1.0, transposed=True, workers=workers)
            mirror(M, workers)
        out = np.empty_like(M)
        _take_both(M, self.order.argsort(), out)
        return out

    def _w_rows(self, L: FloatArray, classes: list[int], workers: int) -> FloatArray:
        """Rows of W_k = L_P⁻¹ B_k for some classes (len(classes), m, n), from those of L_P⁻¹ up to their last column (m, j)."""
        W = np.empty((len(classes), len(L), self.n), L.dtype)

        def work(i: int) -> None:
            self.B.from_left(L, classes[i], W[i])

        for_each(work, len(classes), workers)
        return W

    def predict(self, k_star: FloatArray, prior_variance: FloatArray) -> FloatArray:
        """Latent covariance at new inputs, K_** − K_*ᵀ M K_* (eq. 40), (m, c, c).

        No likelihood sees what all classes have in common, Σ_k M_kl = 0: where they share K_*, each row of a covariance sums to
        the prior variance, from which the last class follows, unless K is so large that this would cost digits.

        Parameters
        ----------
        k_star : (n, m) covariance of training and new inputs, or (c, n, m).
        prior_variance : (m,) or (c, m).
        """
        c, m = self.n_classes, k_star.shape[-1]
        shared = k_star.ndim == 2 and prior_variance.ndim == 1 and not self._is_large(0)
        made = c - 1 if shared else c
        prior = np.broadcast_to(prior_variance, (c, m))
        cov = np.zeros((m, c, c))
        blocks = -(-m // PREDICT_ROWS)
        if blocks > 1:
            blocks += blocks % 2  # alike, and even in number: two threads end together
        edges = np.linspace(0, m, blocks + 1).astype(int)

        def work(task: int) -> None:
            part = slice(edges[task], edges[task + 1])
            V = np.empty((made, self.n, part.stop - part.start))
            for k in range(made):
                if k == 0 or k_star.ndim == 3:
                    Ks = (k_star if k_star.ndim == 2 else k_star[k])[:, part].take(self.order, axis=0)
                self._smooth(k, Ks, V[k])
                cov[part, k, k] = prior[k, part] - np.einsum("im,im->m", Ks, V[k])
                lower_times_in_place(self.factor_p, V[k])
            _add_inner_products(V, cov[part])

        with workers_for(self.n, edges.size - 1) as workers:
            for_each(work, edges.size - 1, workers)
        if shared:
            cov[:, -1, :-1] = prior_variance[:, None] - cov[:, :-1, :-1].sum(axis=2)
            cov[:, :-1, -1] = cov[:, -1, :-1]
            cov[:, -1, -1] = prior_variance - cov[:, -1, :-1].sum(axis=1)
        return cov

    def _smooth(self, k: int, k_star: FloatArray, out: FloatArray) -> None:
        """B_k K_* (n, m) into ``out``; where K is large, with a step of iterative refinement on (K_k + D_k⁻¹) x = K_*.

        The explicit B_k has an error of ε K², which K_** − K_*ᵀ B_k K_* would pass on in full; one step leaves ε K.
        """
        self.B.times(k, k_star, out)
        if self._is_large(k):
            x = np.empty_like(out)
            x[self.order] = out
            Kx = multiply(self.class_kernel(k), x)[self.order]
            out += self.B.times(k, k_star - Kx - out / self.pi[k][self.order, None])

    def _is_large(self, k: int) -> bool:
        return bool(np.diagonal(self.class_kernel(k)).max() > LARGE_VARIANCE)


def _size(group: tuple[int, int, int]) -> int:
    """How many points a group of marginal covariances has."""
    return group[2] - group[1]


def _lend(theirs: FloatArray, mine: FloatArray) -> FloatArray:
    """An array like ``mine`` in the memory of ``theirs``."""
    return theirs.reshape(-1).view(mine.dtype)[: mine.size].reshape(mine.shape)


def unpack_blocks(packed: FloatArray) -> FloatArray:
    """(c(c+1)/2, n) packed lower triangles → (n, c, c) symmetric matrices."""
    c = int((np.sqrt(8 * packed.shape[0] + 1) - 1) / 2)
    out = np.empty((packed.shape[1], c, c))
    rows, cols = np.tril_indices(c)
    out[:, rows, cols] = packed.T
    out[:, cols, rows] = packed.T
    return out


def pack_blocks(full: FloatArray) -> FloatArray:
    """(n, c, c) symmetric matrices → (c(c+1)/2, n) packed lower triangles."""
    rows, cols = np.tril_indices(full.shape[-1])
    return np.ascontiguousarray(full[:, rows, cols].T)
