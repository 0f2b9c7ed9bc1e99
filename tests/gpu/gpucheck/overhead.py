"""Overhead of memwatch per training step."""

from __future__ import annotations

import statistics

from gpucheck.bench import Answer, Bench, answered
from gpucheck.job import Job
from gpucheck.watcher import Watcher

ROUNDS = 5
STEPS = 20
_WARM_STEPS = 10
_ALLOCATORS = ("native", "cudaMallocAsync")


def per_step(bench: Bench) -> Answer:
    """Measures one process per allocator; traced and untraced intervals alternate, and so does the order within a round."""
    rows = []
    for allocator in _ALLOCATORS:
        rows.append(_measured(bench, allocator))
        bench.save(_sentence(rows))
    return _sentence(rows)


def _sentence(rows: list[dict]) -> Answer:
    text = "; ".join(
        f"{row['allocator']}: {row['unwatched_median_us']} us without, {row['watched_median_us']} us with memwatch "
        f"({row['added_percent']:+.1f} %, spread of the rounds {row['lowest_percent']:+.1f} to {row['highest_percent']:+.1f} %)"
        for row in rows
    )
    return answered(text, steps=rows)


def _measured(bench: Bench, allocator: str) -> dict:
    unwatched: list[list[int]] = []
    watched: list[list[int]] = []
    with Job(bench, bench.script("train_steps.py"), allocator=allocator) as job:
        job.say()
        job.hear()
        _steps(job, _WARM_STEPS)
        for number in range(ROUNDS):
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                if is_watched:
                    with Watcher(bench, job.tgid, interval="1s"):
                        watched.append(_steps(job, STEPS))
                else:
                    unwatched.append(_steps(job, STEPS))
        job.end()
    return {"allocator": allocator, "rounds": ROUNDS, "steps_per_round": STEPS, **summary(unwatched, watched)}


def _steps(job: Job, count: int) -> list[int]:
    job.say(str(count))
    return job.hear()["step_ns"]


def summary(unwatched: list[list[int]], watched: list[list[int]]) -> dict:
    """Returns medians over all steps, and the spread of the differences per round; the input times are nanoseconds."""
    medians = [(statistics.median(one), statistics.median(other)) for one, other in zip(unwatched, watched)]
    added = [100 * (other / one - 1) for one, other in medians]
    before = statistics.median(time for stretch in unwatched for time in stretch)
    after = statistics.median(time for stretch in watched for time in stretch)
    return {
        "unwatched_median_us": round(before / 1e3, 1),
        "watched_median_us": round(after / 1e3, 1),
        "added_percent": round(100 * (after / before - 1), 2),
        "lowest_percent": round(min(added), 2),
        "highest_percent": round(max(added), 2),
    }
