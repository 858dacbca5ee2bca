"""Threads are given back, and what goes wrong in one is seen."""

from __future__ import annotations

import threading

import pytest

from nestgp import threads


def test_threads_are_given_back_after_single_threaded_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads.blas_threads()
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)
    with threads.single_threaded_blas() as workers:
        assert workers == 2
        monkeypatch.undo()
        assert threads.blas_threads() == 1
    assert threads.blas_threads() == before


def test_threads_are_given_back_by_the_last_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that overlap: the second must not take the limit of the first for what it has to restore."""
    before = threads.blas_threads()
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)
    inside, leave = threading.Event(), threading.Event()
    found = []

    def second() -> None:
        with threads.single_threaded_blas() as workers:
            found.append(workers)
            inside.set()
            leave.wait(10)

    with threads.single_threaded_blas() as workers:
        other = threading.Thread(target=second)
        other.start()
        assert inside.wait(10)
    monkeypatch.undo()
    assert (workers, found) == (2, [1])
    assert threads.blas_threads() == 1  # the second is still inside
    leave.set()
    other.join(10)
    assert threads.blas_threads() == before


def test_an_error_in_a_worker_thread_is_not_lost() -> None:
    def task(k: int) -> None:
        if k == 2:
            raise ArithmeticError("from a thread")

    with pytest.raises(ArithmeticError, match="from a thread"):
        threads.for_each(task, 4, workers=2)
