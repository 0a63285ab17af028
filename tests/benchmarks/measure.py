"""Paired measurements: ours and the limit in one process, alternately."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable

import attrs


@attrs.frozen
class Sample:
    """One timed call: seconds of wall clock and of CPU (this process and its threads)."""

    wall: float
    cpu: float


@attrs.frozen
class Ratio:
    """The median of paired ratios, and the range of the middle half of them."""

    median: float
    low: float
    high: float


def sample(job: Callable[[], object]) -> Sample:
    """Time one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    job()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def pairs(ours: Callable[[], object], limit: Callable[[], object], count: int) -> list[tuple[Sample, Sample]]:
    """`count` pairs (ours, limit); who goes first alternates."""
    result = []
    for index in range(count):
        if index % 2:
            second = sample(limit)
            result.append((sample(ours), second))
        else:
            first = sample(ours)
            result.append((first, sample(limit)))
    return result


def ratio(values: list[float]) -> Ratio:
    """Median and quartiles."""
    if len(values) < 2:
        return Ratio(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(median, low, high)


def memory_bytes() -> int:
    """Resident memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """CPU time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
