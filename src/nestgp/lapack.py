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
from nestgp.threads import for_each, single_threaded_blas

#: Below this many multiplications a call through ctypes takes longer than the product, and no BLAS would start a thread.
SMALL_PRODUCT = 200_000
#: From so many on, products of tall matrices are worth a thread for every part.
SHARED_PRODUCT = 10_000_000


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
    """Run a LAPACK routine of signature (flags…, n, a, lda, info) in place on the triangle of ``a`` that the first flag names.

    ``name`` is without its first letter, which follows from the precision of ``a``.
    """
    n, (lda,) = ctypes.c_int(a.shape[0]), _row_lengths(a)
    info = ctypes.c_int(0)
    pointers = [ctypes.c_char_p] * len(flags) + [ctypes.c_void_p] * 4
    by_reference = (ctypes.byref(n), a.ctypes.data, ctypes.byref(lda), ctypes.byref(info))
    _lapack(_letter(a) + name, *pointers)(*flags, *by_reference)
    return int(info.value)


def _uplo(lower: bool) -> bytes:
    return b"U" if lower else b"L"


def _letter(a: FloatArray) -> str:
    return "s" if a.dtype == np.float32 else "d"


def _scalar(value: float, a: FloatArray) -> ctypes.c_float | ctypes.c_double:
    """A number in the precision of ``a``."""
    return ctypes.c_float(value) if a.dtype == np.float32 else ctypes.c_double(value)


def _row_lengths(*arrays: FloatArray) -> list[ctypes.c_int]:
    """How many numbers lie between the rows of each; ValueError unless all are row-major and of one precision."""
    for a in arrays:
        overlap = a.shape[0] > 1 and a.strides[0] < a.shape[1] * a.itemsize  # rows one in another, or backwards
        if a.dtype != arrays[0].dtype or (a.shape[1] > 1 and a.strides[1] != a.itemsize) or overlap:
            raise ValueError(f"BLAS needs row-major arrays of one precision, not {a.dtype} with strides {a.strides}")
    return [ctypes.c_int(max(a.strides[0] // a.itemsize, a.shape[1])) for a in arrays]


def _layout(*arrays: FloatArray) -> tuple[bool, list[ctypes.c_int]]:
    """Whether all are row-major (and not all column-major), and how many numbers lie between their rows, or columns."""
    by_rows = all(a.shape[1] == 1 or a.strides[1] == a.itemsize for a in arrays)
    return by_rows, _row_lengths(*(arrays if by_rows else [a.T for a in arrays]))


def cholesky_in_place(a: FloatArray, lower: bool = True) -> float:
    """Overwrite the lower triangle of ``a`` with its Cholesky factor L, or the upper one with Lᵀ, and return log|a|."""
    if _call("potrf", a, flags=(_uplo(lower),)) != 0:
        raise NotPositiveDefiniteError("a matrix that must be positive definite has no Cholesky factor")
    return 2.0 * float(np.log(np.diagonal(a), dtype=np.float64).sum())


def inverse_from_cholesky_in_place(a: FloatArray, lower: bool = True) -> None:
    """Overwrite a Cholesky factor, L or Lᵀ in a triangle of ``a``, with that triangle of (L Lᵀ)⁻¹."""
    if _call("potri", a, flags=(_uplo(lower),)) != 0:
        raise NotPositiveDefiniteError("a Cholesky factor is singular")


def triangular_inverse_in_place(a: FloatArray, lower: bool = True) -> None:
    """Overwrite a triangular matrix by its inverse; the other triangle stays as it is."""
    if _call("trtri", a, flags=(_uplo(lower), b"N")) != 0:
        raise NotPositiveDefiniteError("a triangular factor is singular")


def multiply(A: FloatArray, B: FloatArray, out: FloatArray | None = None, transposed: bool = False) -> FloatArray:
    """A B for row-major A (m, k), B (k, n) of one precision, or A Bᵀ with B (n, k), by the BLAS that belongs to the LAPACK above.

    NumPy has a BLAS of its own, whose threads would meet those of the last LAPACK call still spinning, and the other way round;
    it has the small products, which need no threads.
    """
    columns = len(B) if transposed else B.shape[1]
    if A.size * columns < SMALL_PRODUCT:
        return np.matmul(A, B.T if transposed else B, out=out)
    if out is None:
        out = np.empty((len(A), columns), A.dtype)
    m, n, k = (ctypes.c_int(size) for size in (A.shape[0], columns, A.shape[1]))
    strides = _row_lengths(B, A, out)
    one, zero = _scalar(1.0, A), _scalar(0.0, A)
    R = ctypes.byref
    gemm = _lapack(_letter(A) + "gemm", *[ctypes.c_char_p] * 2, *[ctypes.c_void_p] * 11)
    operands = (B.ctypes.data, R(strides[0]), A.ctypes.data, R(strides[1]))  # column-major: outᵀ = Bᵀ Aᵀ
    gemm(b"T" if transposed else b"N", b"N", R(n), R(m), R(k), R(one), *operands, R(zero), out.ctypes.data, R(strides[2]))
    return out


def multiply_by_rows(A: FloatArray, B: FloatArray) -> FloatArray:
    """A B as :func:`multiply` has it, rows of A shared out among threads of ours, after which none of BLAS goes on spinning."""
    out = np.empty((len(A), B.shape[1]), A.dtype)
    with single_threaded_blas() as workers:
        workers = workers if out.size * A.shape[1] >= SHARED_PRODUCT else 1
        edges = [len(A) * i // workers for i in range(workers + 1)]

        def work(part: int) -> None:
            rows = slice(edges[part], edges[part + 1])
            multiply(A[rows], B, out[rows])

        for_each(work, workers, workers)
    return out


def symmetric_times(
    A: FloatArray, X: FloatArray, side: str = "L", lower: bool = True, out: FloatArray | None = None
) -> FloatArray:
    """A X for symmetric row-major A (n, n) and X (n, m), or with ``side="R"`` X A for X (m, n); one triangle of A is read."""
    X = np.ascontiguousarray(X, A.dtype)
    if out is None:
        out = np.empty_like(X)
    if not out.size:
        return out
    one, zero = _scalar(1.0, A), _scalar(0.0, A)
    lda, ldx, ldo = _row_lengths(A, X, out)
    R = ctypes.byref
    if side == "L" and X.shape[1] == 1 and out.flags.c_contiguous:  # symm and gemm take seven times as long for one column
        symv = _lapack(_letter(A) + "symv", ctypes.c_char_p, *[ctypes.c_void_p] * 9)
        n, unit = ctypes.c_int(len(A)), ctypes.c_int(1)
        out[:] = 0.0  # what is there is multiplied by zero, which some versions make NaN of NaN
        vectors = (X.ctypes.data, R(unit), R(zero), out.ctypes.data, R(unit))
        symv(_uplo(lower), R(n), R(one), A.ctypes.data, R(lda), *vectors)
        return out
    symm = _lapack(_letter(A) + "symm", *[ctypes.c_char_p] * 2, *[ctypes.c_void_p] * 10)
    rows, columns = (ctypes.c_int(size) for size in X.shape)
    operands = (A.ctypes.data, R(lda), X.ctypes.data, R(ldx), R(zero), out.ctypes.data, R(ldo))
    symm(b"R" if side == "L" else b"L", _uplo(lower), R(columns), R(rows), R(one), *operands)  # column-major: outᵀ = Xᵀ A
    return out


def lower_times_in_place(
    L: FloatArray, X: FloatArray, side: str = "L", transposed: bool = False, factor: float = 1.0
) -> None:
    """Overwrite X (n, m) by L X or Lᵀ X, or with ``side="R"`` X (m, n) by X L or X Lᵀ, in half the flops of a full product.

    Both row-major, or both column-major; nothing above the diagonal of L is looked at. The result is multiplied by ``factor``.
    """
    if side == "L" and X.shape[1] == 1 and factor == 1.0 and L.flags.c_contiguous:  # trmm would copy L first
        lda, ldb = _row_lengths(L, X)
        trmv = _lapack(_letter(X) + "trmv", *[ctypes.c_char_p] * 3, *[ctypes.c_void_p] * 5)
        n = ctypes.c_int(len(X))
        operands = (ctypes.byref(n), L.ctypes.data, ctypes.byref(lda), X.ctypes.data, ctypes.byref(ldb))
        trmv(b"U", b"N" if transposed else b"T", b"N", *operands)
        return
    _with_lower("trmm", L, X, side, transposed, factor)


def solve_lower_in_place(L: FloatArray, X: FloatArray, side: str = "L", transposed: bool = False) -> None:
    """As :func:`lower_times_in_place` with L⁻¹ in place of L."""
    _with_lower("trsm", L, X, side, transposed, 1.0)


def _with_lower(name: str, L: FloatArray, X: FloatArray, side: str, transposed: bool, factor: float) -> None:
    by_rows, (lda, ldb) = _layout(L, X)
    rows, columns = X.shape
    if by_rows:  # column-major sees Xᵀ and Lᵀ: L X becomes Xᵀ Lᵀ
        rows, columns, side = columns, rows, "R" if side == "L" else "L"
    R = ctypes.byref
    call = _lapack(_letter(X) + name, *[ctypes.c_char_p] * 4, *[ctypes.c_void_p] * 7)
    how = (side.encode(), _uplo(by_rows), b"T" if transposed else b"N", b"N")
    sizes = (R(ctypes.c_int(rows)), R(ctypes.c_int(columns)), R(_scalar(factor, X)))
    call(*how, *sizes, L.ctypes.data, R(lda), X.ctypes.data, R(ldb))


def add_gram(C: FloatArray, X: FloatArray, factor: float, transposed: bool = False) -> None:
    """Lower triangle of C += factor · X Xᵀ, or XᵀX; both row-major, or both column-major."""
    by_rows, (ldc, ldx) = _layout(C, X)
    R = ctypes.byref
    syrk = _lapack(_letter(C) + "syrk", *[ctypes.c_char_p] * 2, *[ctypes.c_void_p] * 8)
    sizes = (R(ctypes.c_int(len(C))), R(ctypes.c_int(X.shape[0 if transposed else 1])))
    operands = (R(_scalar(factor, C)), X.ctypes.data, R(ldx), R(_scalar(1.0, C)), C.ctypes.data, R(ldc))
    syrk(_uplo(by_rows), b"T" if transposed != by_rows else b"N", *sizes, *operands)


def add_product(C: FloatArray, X: FloatArray, Y: FloatArray, factor: float, transposed: bool = False) -> None:
    """C += factor · X Yᵀ, or XᵀY; all row-major, or all column-major."""
    by_rows, (ldc, ldx, ldy) = _layout(C, X, Y)
    inner, (rows, columns) = X.shape[0 if transposed else 1], C.shape
    first, second = (X, ldx), (Y, ldy)
    if by_rows:  # column-major sees Cᵀ = Y Xᵀ, of transposed factors
        first, second, rows, columns = second, first, columns, rows
    R = ctypes.byref
    gemm = _lapack(_letter(C) + "gemm", *[ctypes.c_char_p] * 2, *[ctypes.c_void_p] * 11)
    how = (b"T", b"N") if transposed != by_rows else (b"N", b"T")
    sizes = [R(ctypes.c_int(size)) for size in (rows, columns, inner)]
    operands = [part for A, lda in (first, second) for part in (A.ctypes.data, R(lda))]
    gemm(*how, *sizes, R(_scalar(factor, C)), *operands, R(_scalar(1.0, C)), C.ctypes.data, R(ldc))


def gram_of_lower_in_place(a: FloatArray, lower: bool = True) -> None:
    """Overwrite a lower triangular matrix E by the lower triangle of EᵀE, or Eᵀ in an upper triangle by that one of EᵀE."""
    _call("lauum", a, flags=(_uplo(lower),))
