"""LAPACK and BLAS on row-major arrays, in place, in double or single precision, without the interpreter's lock.

Row-major storage: the lower triangle of a C-ordered array is the upper one in LAPACK's eyes, hence ``uplo = b"U"``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from nestgp.arrays import FloatArray

#: Below this many multiplications a call through ctypes takes longer than the product, and no BLAS would start a thread.
SMALL_PRODUCT = 50_000


class NotPositiveDefiniteError(ArithmeticError):
    """A matrix that theory says is positive definite has no Cholesky factor."""


@cache
def _lapack(name: str, *pointers: type) -> Callable[..., None]:
    """LAPACK routine by its address in SciPy: called through ctypes it releases the GIL, SciPy's wrappers do not."""
    capsule = (vars(cython_lapack)["__pyx_capi__"] | vars(cython_blas)["__pyx_capi__"])[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = get_pointer(capsule, get_name(capsule))
    return ctypes.CFUNCTYPE(None, *pointers)(address)


def _call(name: str, a: FloatArray, *, flags: tuple[bytes, ...] = (b"U",)) -> int:
    """Run a LAPACK routine of signature (flags…, n, a, lda, info) in place on the lower triangle of ``a``.

    ``name`` is without its first letter, which follows from the precision of ``a``.
    """
    n, (lda,) = ctypes.c_int(a.shape[0]), _row_lengths(a)
    info = ctypes.c_int(0)
    pointers = [ctypes.c_char_p] * len(flags) + [ctypes.c_void_p] * 4
    by_reference = (ctypes.byref(n), a.ctypes.data, ctypes.byref(lda), ctypes.byref(info))
    _lapack(_letter(a) + name, *pointers)(*flags, *by_reference)
    return int(info.value)


def _letter(a: FloatArray) -> str:
    return "s" if a.dtype == np.float32 else "d"


def _row_lengths(*arrays: FloatArray) -> list[ctypes.c_int]:
    """How many numbers lie between the rows of each; ValueError unless all are row-major and of one precision."""
    for a in arrays:
        if a.dtype != arrays[0].dtype or (a.shape[1] > 1 and a.strides[1] != a.itemsize):
            raise ValueError(f"BLAS needs row-major arrays of one precision, not {a.dtype} with strides {a.strides}")
    return [ctypes.c_int(max(a.strides[0] // a.itemsize, a.shape[1])) for a in arrays]


def cholesky_in_place(a: FloatArray) -> float:
    """Overwrite the lower triangle of ``a`` with its Cholesky factor and return log|a|."""
    if _call("potrf", a) != 0:
        raise NotPositiveDefiniteError("a matrix that must be positive definite has no Cholesky factor")
    return 2.0 * float(np.log(np.diagonal(a), dtype=np.float64).sum())


def inverse_from_cholesky_in_place(a: FloatArray) -> None:
    """Overwrite a Cholesky factor L (lower triangle of ``a``) with the lower triangle of (L Lᵀ)⁻¹."""
    if _call("potri", a) != 0:
        raise NotPositiveDefiniteError("a Cholesky factor is singular")


def triangular_inverse_in_place(a: FloatArray) -> None:
    """Overwrite a lower triangular matrix by its inverse; what is above the diagonal stays as it is."""
    if _call("trtri", a, flags=(b"U", b"N")) != 0:
        raise NotPositiveDefiniteError("a triangular factor is singular")


def multiply(A: FloatArray, B: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """A B for row-major A (m, k), B (k, n) of one precision, by the BLAS that belongs to the LAPACK above.

    NumPy has a BLAS of its own, whose threads would meet those of the last LAPACK call still spinning, and the other way round;
    it has the small products, which need no threads.
    """
    if A.size * B.shape[1] < SMALL_PRODUCT:
        return np.matmul(A, B, out=out)
    if out is None:
        out = np.empty((A.shape[0], B.shape[1]), A.dtype)
    m, n, k = (ctypes.c_int(size) for size in (A.shape[0], B.shape[1], A.shape[1]))
    strides = _row_lengths(B, A, out)
    scalar = ctypes.c_float if A.dtype == np.float32 else ctypes.c_double
    one, zero = scalar(1.0), scalar(0.0)
    R = ctypes.byref
    gemm = _lapack(_letter(A) + "gemm", *[ctypes.c_char_p] * 2, *[ctypes.c_void_p] * 11)
    operands = (B.ctypes.data, R(strides[0]), A.ctypes.data, R(strides[1]))  # column-major: outᵀ = Bᵀ Aᵀ
    gemm(b"N", b"N", R(n), R(m), R(k), R(one), *operands, R(zero), out.ctypes.data, R(strides[2]))
    return out


def symmetric_times(A: FloatArray, X: FloatArray) -> FloatArray:
    """A X for symmetric row-major A (n, n), X (n, m); for one column half of A is read; gemm takes seven times as long."""
    if X.shape[1] != 1 or A.size < SMALL_PRODUCT:
        return multiply(A, X)
    x, out = np.ascontiguousarray(X, A.dtype), np.empty((len(A), 1), A.dtype)
    scalar = ctypes.c_float if A.dtype == np.float32 else ctypes.c_double
    one, zero, n, unit, (lda,) = scalar(1.0), scalar(0.0), ctypes.c_int(len(A)), ctypes.c_int(1), _row_lengths(A)
    R = ctypes.byref
    symv = _lapack(_letter(A) + "symv", ctypes.c_char_p, *[ctypes.c_void_p] * 9)
    symv(b"U", R(n), R(one), A.ctypes.data, R(lda), x.ctypes.data, R(unit), R(zero), out.ctypes.data, R(unit))
    return out


def lower_times_in_place(L: FloatArray, X: FloatArray, side: str = "L", transposed: bool = False) -> None:
    """Overwrite X (n, m) by L X or Lᵀ X, or with ``side="R"`` X (m, n) by X L or X Lᵀ, in half the flops of a full product.

    Both row-major; nothing above the diagonal of L is looked at.
    """
    lda, ldb = _row_lengths(L, X)
    if side == "L" and X.shape[1] == 1:  # trmm would copy L first
        trmv = _lapack(_letter(X) + "trmv", *[ctypes.c_char_p] * 3, *[ctypes.c_void_p] * 5)
        n = ctypes.c_int(len(X))
        operands = (ctypes.byref(n), L.ctypes.data, ctypes.byref(lda), X.ctypes.data, ctypes.byref(ldb))
        trmv(b"U", b"N" if transposed else b"T", b"N", *operands)
        return
    rows, columns = (ctypes.c_int(size) for size in X.shape)
    one = (ctypes.c_float if X.dtype == np.float32 else ctypes.c_double)(1.0)
    R = ctypes.byref
    trmm = _lapack(_letter(X) + "trmm", *[ctypes.c_char_p] * 4, *[ctypes.c_void_p] * 7)
    # column-major sees Xᵀ and Lᵀ: L X becomes Xᵀ Lᵀ
    how = (b"R" if side == "L" else b"L", b"U", b"T" if transposed else b"N", b"N")
    trmm(*how, R(columns), R(rows), R(one), L.ctypes.data, R(lda), X.ctypes.data, R(ldb))


def gram_of_lower_in_place(a: FloatArray) -> None:
    """Overwrite a lower triangular matrix E by the lower triangle of EᵀE."""
    _call("lauum", a)
