"""How the cores are shared: threads of our own with single-threaded BLAS, or one of them and threaded BLAS."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from queue import Empty, SimpleQueue

import scipy.linalg  # noqa: F401  its BLAS and NumPy's are there when the controller counts them
import threadpoolctl
from threadpoolctl import ThreadpoolController

#: Below this many points a class is too small to be worth a thread of its own, and threaded BLAS slows it down.
THREADS_FROM = 256
#: Threaded BLAS is worth having from this many points on, over the idle threads per busy one that it would set to work.
BLAS_THREADS_FROM = 150
#: From this many points on two threads of ours share a matrix that would leave the others idle.
SHARED_FROM = 400


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def blas_threads() -> int:
    """Threads that BLAS may use now: what the user or the environment has set, at most the number of cores."""
    return max(1, min([*_pools(), os.cpu_count() or 1]))


def _pools() -> list[int]:
    """Threads of each BLAS of the process: NumPy and SciPy bring one each, and a limit set by the user may hold for only one."""
    return [pool["num_threads"] for pool in _controller().info() if pool["user_api"] == "blas"]


@contextmanager
def _in_control() -> Iterator[None]:
    """In recent threadpoolctl only the thread that first set OpenBLAS's threads can do so again: others are ignored.

    Which of our threads is the first and which the last is chance, so each takes the control and leaves it free.
    """
    free = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", lambda force: None)
    free(force=True)
    yield
    free(force=True)


class _Limit:
    """BLAS threads are the process's: the first of our threads that wants only one sets their number, the last gives it back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self.give_back: Callable[[], None] | None = None


_limit = _Limit()


@contextmanager
def single_threaded_blas() -> Iterator[int]:
    """One BLAS thread inside the block; yields how many workers the caller may use instead (1 if another block has them)."""
    limit = _limit
    with limit.lock:
        workers = blas_threads() if limit.holders == 0 else 1
        if limit.holders == 0 and max(_pools(), default=1) > 1:
            with _in_control():
                limit.give_back = _controller().limit(limits=1, user_api="blas").restore_original_limits
        limit.holders += 1
    try:
        yield workers
    finally:
        with limit.lock:
            limit.holders -= 1
            if limit.holders == 0 and limit.give_back is not None:
                with _in_control():
                    limit.give_back()
                limit.give_back = None


@contextmanager
def single_threaded_if_small(n: int) -> Iterator[None]:
    """One BLAS thread for matrices too small to share: two threads on n = 200 wait for each other more than they work."""
    if n >= THREADS_FROM:
        yield
    else:
        with single_threaded_blas():
            yield


@cache
def _requests() -> SimpleQueue[Callable[[], None]]:
    """Where threads of ours wait for work: to make them anew for every task would take as long as a product of n = 1,000."""
    requests: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def serve() -> None:
        while True:
            requests.get()()

    for i in range(max(1, (os.cpu_count() or 1) - 1)):
        try:
            threading.Thread(target=serve, name=f"nestgp-{i}", daemon=True).start()
        except RuntimeError:  # no more threads: callers do all of their work themselves
            break
    return requests


def _after_fork() -> None:
    """A forked process has no helpers, and none of the threads that held a limit."""
    global _limit
    before, _limit = _limit, _Limit()
    _requests.cache_clear()
    if before.give_back is not None:
        before.give_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def for_each(task: Callable[[int], None], count: int, workers: int) -> None:
    """Run ``task(0) … task(count − 1)``, with more than one worker in so many threads at most, of which the caller's is one.

    After an error or an interrupt no further task begins. On return none is still running, and the error is raised. A helper that
    wakes too late finds nothing to do, and nobody has waited for it.
    """
    if workers == 1 or count <= 1:
        for only in range(count):
            task(only)
        return
    left, taken = deque(range(count)), deque[None]()
    ended, wake = deque[BaseException | None](), SimpleQueue[None]()

    def take() -> int | None:
        try:
            return left.popleft()
        except IndexError:
            return None

    def help_out() -> None:
        while left:
            taken.append(None)  # before it is, so that a caller who finds nothing left knows of it
            try:
                if (k := take()) is not None:
                    task(k)
            except BaseException as failure:
                left.clear()
                ended.append(failure)
            else:
                ended.append(None)
            wake.put(None)

    error: BaseException | None = None
    try:
        for _ in range(min(workers, count) - 1):
            _requests().put(help_out)
        while (k := take()) is not None:
            task(k)
    except BaseException as failure:
        error = failure
    while True:
        try:
            left.clear()
            while len(ended) < len(taken):
                with suppress(Empty):
                    wake.get(timeout=0.05)
            break
        except KeyboardInterrupt as interrupt:
            error = error or interrupt
    error = error or next((failure for failure in ended if failure is not None), None)
    ended.clear()
    try:
        if error is not None:
            raise error
    finally:
        del error  # its traceback holds this frame: in a cycle, all that the task works on would outlive it


def bands(n: int, count: int) -> list[tuple[int, int]]:
    """From which row to which so many bands of a lower triangle go that are alike in size."""
    return list(pairwise(round(n * math.sqrt(i / count)) for i in range(count + 1)))


def left_over(count: int, n: int, workers: int) -> bool:
    """Whether the last of so many (n, n) matrices is for two workers at once: it would leave them idle if one had it alone."""
    return workers > 1 and count % workers == 1 and n >= SHARED_FROM


@contextmanager
def workers_for(n: int, n_classes: int) -> Iterator[int]:
    """How to use the cores for n_classes tasks on n×n matrices: yields the number of threads of our own, BLAS set to match.

    One class per thread with single-threaded BLAS, and two threads for a last one that is left over; or, where that leaves
    threads idle and n is large, one thread of our own and threaded BLAS.
    """
    threads = 1 if n < THREADS_FROM else blas_threads()
    tasks = max(n_classes, 1)
    rounds = -(-tasks // threads) - 0.5 * left_over(tasks, n, threads)
    idle = rounds * threads / tasks - 1.0
    if n * min(idle, 1.0) >= BLAS_THREADS_FROM:
        yield 1
    else:
        with single_threaded_blas() as workers:
            yield 1 if n < THREADS_FROM else workers


@contextmanager
def workers_for_vectors(n: int) -> Iterator[int]:
    """The same for products of n×n matrices with vectors: always threads of our own, each with a band of rows."""
    with single_threaded_blas() as workers:
        yield 1 if n < THREADS_FROM else workers
