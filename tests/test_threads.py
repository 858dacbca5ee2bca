"""Threads are given back, and what goes wrong in one is seen."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from nestgp import threads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """However many the environment allows, each BLAS has two: with one there is nothing to limit."""
    threads._controller()
    with threadpool_limits(2, user_api="blas"):
        assert set(threads._pools()) == {2}
        yield


def test_threads_are_given_back_after_single_threaded_blas() -> None:
    with threads.single_threaded_blas() as workers:
        assert workers >= 1
        assert set(threads._pools()) == {1}
    assert set(threads._pools()) == {2}


def test_a_limit_on_one_of_two_blas_does_not_leave_the_other_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `threadpool_limits(1)` between the imports of NumPy and SciPy."""
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_pools", lambda: [1, 2])
        block = threads.single_threaded_blas()
        assert block.__enter__() == 1
    assert set(threads._pools()) == {1}
    block.__exit__(None, None, None)
    assert set(threads._pools()) == {2}


@pytest.mark.parametrize("first", ["this thread", "another thread"])
def test_threads_are_given_back_by_the_last_of_several_blocks(first: str) -> None:
    """Two threads that overlap: the second must not take the limit of the first for what it has to restore."""
    inside, leave = threading.Event(), threading.Event()
    found = []

    def other() -> None:
        with threads.single_threaded_blas() as workers:
            found.append(workers)
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    if first == "another thread":
        thread.start()
        assert inside.wait(10)
    with threads.single_threaded_blas() as workers:
        if first == "this thread":
            thread.start()
            assert inside.wait(10)
        else:
            leave.set()
            thread.join(10)
        assert set(threads._pools()) == {1}
    assert 1 in (workers, *found)  # one of them has all threads, the other none to share out
    assert set(threads._pools()) == ({1} if first == "this thread" else {2})  # the other is still inside, or gone
    leave.set()
    thread.join(10)
    assert set(threads._pools()) == {2}


def test_an_error_in_a_worker_thread_is_not_lost() -> None:
    def task(k: int) -> None:
        if k == 2:
            raise ArithmeticError("from a thread")

    with pytest.raises(ArithmeticError, match="from a thread"):
        threads.for_each(task, 4, workers=2)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_every_task_is_done_once_and_none_is_still_running(workers: int) -> None:
    done = []

    def task(k: int) -> None:
        time.sleep(0.001 * (k % 3))
        done.append(k)

    threads.for_each(task, 20, workers)
    assert sorted(done) == list(range(20))


def test_after_an_error_those_running_end_and_no_other_begins() -> None:
    begun, ended = [], []

    def task(k: int) -> None:
        begun.append(k)
        if k == 1:
            raise IndexError("a task's own")
        time.sleep(0.05)
        ended.append(k)

    with pytest.raises(IndexError, match="a task's own"):
        threads.for_each(task, 10, workers=2)
    assert set(begun) - set(ended) == {1}
    assert len(begun) < 5


def interrupted_at_random(task: Callable[[int], None], seconds: float) -> bool:
    """Run six tasks, with an interrupt at most so many seconds after the beginning, if they take as long; whether it came."""
    armed = [True]

    def interrupt(*_: object) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            threads.for_each(task, 6, workers=2)
        finally:
            armed[0] = False
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return False


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timer")
@pytest.mark.parametrize("longest", [3e-4, 3e-3])
def test_an_interrupt_leaves_nothing_running_and_no_lock_held(longest: float) -> None:
    rng, came = np.random.default_rng(0), 0
    for _ in range(200):
        done: list[int] = []

        def task(k: int, done: list[int] = done) -> None:
            time.sleep(5e-4)
            done.append(k)

        if interrupted_at_random(task, rng.uniform(1e-5, longest)):
            came += 1
            count = len(done)
            time.sleep(2e-3)
            assert len(done) == count
    assert came > 50
    threads.for_each(lambda k: None, 4, workers=2)


def test_an_error_does_not_keep_alive_what_the_task_worked_on() -> None:
    class Large:
        """Stands for a factor."""

    def fail_on(helper: bool) -> weakref.ref[Large]:
        large = Large()

        def task(k: int, large: Large = large) -> None:
            if (threading.current_thread() is threading.main_thread()) is not helper:
                raise ArithmeticError("no factor")
            time.sleep(0.02)

        with pytest.raises(ArithmeticError):
            threads.for_each(task, 4, workers=2)
        return weakref.ref(large)

    gc.disable()
    try:
        left = [fail_on(helper) for helper in (False, True)]
        time.sleep(0.1)  # a helper may wake late
        assert [each() for each in left] == [None, None]
    finally:
        gc.enable()


def test_work_goes_on_after_the_main_thread_has_ended() -> None:
    code = """if True:
    import threading, time
    from nestgp import threads
    def late():
        threading.main_thread().join()
        done = []
        threads.for_each(done.append, 4, workers=2)
        print(sorted(done))
    threading.Thread(target=late).start()
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[0, 1, 2, 3]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True])
def test_a_forked_process_has_threads_of_its_own(inside: bool) -> None:
    threads.for_each(lambda k: None, 4, workers=2)
    with threads.single_threaded_blas() if inside else nullcontext():
        child = os.fork()
        if child == 0:
            os._exit(1 if _fails_after_fork() else 0)
        give_up = time.monotonic() + 30.0
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > give_up:
                os.kill(child, 9)
            time.sleep(0.01)
    assert ended[1] == 0


def _fails_after_fork() -> bool:
    try:
        threads.for_each(lambda k: time.sleep(0.001), 4, workers=2)
        for _ in range(2):
            with threads.single_threaded_blas() as workers:
                if set(threads._pools()) != {1} or workers != min(2, os.cpu_count() or 1):
                    return True
        return set(threads._pools()) != {2}
    except BaseException:
        return True


@pytest.mark.parametrize("count", [1, 2, 5])
def test_bands_of_a_triangle_are_alike_in_size(count: int) -> None:
    bands = threads.bands(1000, count)
    assert [first for first, _ in bands] == [0, *(last for _, last in bands[:-1])]
    assert bands[-1][1] == 1000
    sizes = [last**2 - first**2 for first, last in bands]
    assert max(sizes) - min(sizes) < 0.01 * 1000**2
