"""Work spread over the cores of a CPU: order, failures, interrupts."""

import signal
import threading
import time

import pytest
import torch

from otdd_flash_kernels.workers import StoppedError, go_on, spread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def long_work(ended: list[str]) -> None:
    """Work for a minute unless nobody wants it any more."""
    for _ in range(6000):
        try:
            go_on()
        except StoppedError:
            ended.append("stopped")
            raise
        time.sleep(0.01)
    ended.append("worked to the end")


def test_values_come_in_the_order_of_the_items():
    assert spread(lambda k: k * k, range(9)) == [k * k for k in range(9)]
    go_on()  # outside of a worker it says nothing


def test_an_interrupt_ends_workers_where_they_ask():
    ended: list[str] = []
    both = threading.Barrier(2)

    def work(k: int) -> None:
        both.wait(60)
        if k == 0:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        long_work(ended)

    with pytest.raises(KeyboardInterrupt):
        spread(work, range(2))
    assert ended == ["stopped"] * 2


def test_the_error_of_one_worker_ends_the_others():
    ended: list[str] = []
    both = threading.Barrier(2)

    def work(k: int) -> None:
        both.wait(60)
        if k == 0:
            raise ValueError("no such piece")
        long_work(ended)

    with pytest.raises(ValueError, match="no such piece"):
        spread(work, range(2))
    assert ended == ["stopped"]
