"""memwatch against PyTorch's own numbers and NVML's, at every point where a script reports."""

from __future__ import annotations

from gpucheck.bench import Answer, Bench, answered, differs
from gpucheck.job import ALLOCATORS, Job
from gpucheck.watcher import Watcher

RUNS = (("transformer", ("--steps", "3")), ("grow_free", ()), ("oom", ()))
# With cudaMallocAsync the pool lives in the driver: memwatch sees what is used of it, not what it keeps.
_TRUTH = {
    "native": ("memory_reserved", "max_memory_reserved"),
    "expandable_segments": ("memory_reserved", "max_memory_reserved"),
    "cudaMallocAsync": ("memory_allocated", "max_memory_allocated"),
}


def against_torch(bench: Bench) -> Answer:
    """Three scripts under three allocators, watched from before their first call."""
    rows: list[dict] = []
    for name, arguments in RUNS:
        for allocator in ALLOCATORS:
            rows += _watched(bench, name, arguments, allocator)
            bench.save(_judge(rows))
    return _judge(rows)


def _watched(bench: Bench, name: str, arguments: tuple[str, ...], allocator: str) -> list[dict]:
    rows = []
    with Job(bench, bench.workload(f"{name}.py"), *arguments, "--wait", allocator=allocator) as job:
        with Watcher(bench, job.tgid) as watcher:
            for point in job.checkpoints():
                report, process = watcher.settled()
                rows.append(_row(name, allocator, point, report, process))
    return rows


def _row(name: str, allocator: str, point: dict, report: dict, process: dict | None) -> dict:
    torch = point["devices"][0]
    live_name, peak_name = _TRUTH[allocator]
    gpu = process["gpus"][0] if process and process["gpus"] else {}
    live, used = gpu.get("live_bytes", 0), gpu.get("used_bytes")
    failures = process["failures"] if process else []
    return {
        "script": name,
        "allocator": allocator,
        "checkpoint": point["label"],
        "torch_live_bytes": torch[live_name],
        "memwatch_live_bytes": live,
        "torch_peak_bytes": torch[peak_name],
        "memwatch_peak_bytes": gpu.get("peak_bytes", 0),
        "nvml_used_bytes": used,
        "used_minus_live_bytes": None if used is None else used - live,
        "torch_reserved_bytes": torch["memory_reserved"],
        "failures": len(failures),
        "largest_failure_bytes": max((failure["requested_bytes"] for failure in failures), default=None),
        "lost": sum(report["losses"].values()),
        "from_start": bool(process and process["from_start"]),
    }


def _judge(rows: list[dict]) -> Answer:
    wrong = [row for row in rows if not _agrees(row)]
    rests = [row["used_minus_live_bytes"] for row in rows if row["used_minus_live_bytes"] is not None]
    text = f"{len(rows) - len(wrong)} of {len(rows)} checkpoints agree in live bytes and peak, without a lost record"
    if rests:
        text += f"; NVML's used minus live is {min(rests)} to {max(rests)} bytes"
    return differs(text, checkpoints=rows, disagreeing=wrong) if wrong else answered(text, checkpoints=rows)


def _agrees(row: dict) -> bool:
    return row["memwatch_live_bytes"] == row["torch_live_bytes"] and _peak_agrees(row) and row["lost"] == 0


def _peak_agrees(row: dict) -> bool:
    # An expandable segment grows block by block: before the driver refuses one it has really given the others, which
    # PyTorch takes back without counting them in its own peak.
    if row["allocator"] == "expandable_segments" and row["failures"]:
        return row["memwatch_peak_bytes"] >= row["torch_peak_bytes"]
    return row["memwatch_peak_bytes"] == row["torch_peak_bytes"]
