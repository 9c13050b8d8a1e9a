"""Memory of this process and of those it starts, now and at its peak."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.processes import available_memory, give_back, peak_memory, resident_memory, tree_memory, watch_memory

LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").is_file(), reason="only Linux keeps these numbers")


def test_a_peak_is_at_least_what_is_taken_now() -> None:
    assert peak_memory() >= resident_memory() > 10e6
    assert resident_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_what_is_available_is_no_more_than_there_is() -> None:
    assert 0 < available_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_peak_memory_is_that_of_the_process_itself() -> None:
    ballast = b"1" * 100_000_000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        child = pool.apply(peak_memory)
    before = peak_memory()
    assert child < before - 50_000_000
    more = b"1" * (before - resident_memory() + 200_000_000)
    assert peak_memory() > before + 50_000_000
    assert len(ballast) < len(more)


@LINUX
def test_a_watch_sees_the_peak_of_its_block_alone() -> None:
    before = b"1" * 300_000_000
    assert len(before) == 300_000_000
    del before
    give_back()
    with watch_memory() as peak:
        assert peak() - resident_memory() < 50e6  # what was taken before does not count
        held = b"1" * 100_000_000
        assert len(held) == 100_000_000
        del held
        give_back()
        assert peak() - resident_memory() > 50e6


@LINUX
def test_the_memory_of_a_tree_counts_what_its_processes_started() -> None:
    grandchild = "held = b'1' * 100_000_000; print('held', flush=True); input()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert 100e6 < tree_memory(process.pid) < 200e6
        process.communicate(b"\n")
    assert tree_memory(process.pid) == 0
