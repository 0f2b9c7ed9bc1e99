"""Compares memwatch with PyTorch's own numbers and NVML's at every checkpoint of a script."""

from __future__ import annotations

from pathlib import Path

from gpucheck import calls, outside
from gpucheck.bench import Answer, Bench, answered, differs
from gpucheck.job import ALLOCATORS, Job
from gpucheck.tracefs import NoTracing, Probes
from gpucheck.watcher import Watcher

RUNS = (("transformer", ("--steps", "3")), ("grow_free", ()), ("oom", ()))
# With cudaMallocAsync, the pool belongs to the driver: memwatch counts its used bytes, not its reserved ones.
_TRUTH = {
    "native": ("memory_reserved", "max_memory_reserved"),
    "expandable_segments": ("memory_reserved", "max_memory_reserved"),
    "cudaMallocAsync": ("memory_allocated", "max_memory_allocated"),
}


def against_torch(bench: Bench) -> Answer:
    """Runs three scripts with three allocators, traced from before their first call."""
    rows: list[dict] = []
    taken: list[dict] = []
    for name, arguments in RUNS:
        for allocator in ALLOCATORS:
            found, others = _watched(bench, name, arguments, allocator)
            rows += found
            taken += others
            bench.save(judge(rows, taken))
    return judge(rows, taken)


def _watched(bench: Bench, name: str, arguments: tuple[str, ...], allocator: str) -> tuple[list[dict], list[dict]]:
    """Returns the checkpoints of one script, and the memory it took outside PyTorch by its end."""
    rows: list[dict] = []
    others: list[dict] = []
    with Job(bench, bench.workload(f"{name}.py"), *arguments, "--wait", allocator=allocator) as job:
        with Watcher(bench, job.tgid) as watcher, _Recorder(bench, job.tgid) as recorder:
            for point in job.checkpoints():
                report, process = watcher.settled()
                found = recorder.outside()
                if found is not None:
                    others = [{"script": name, "allocator": allocator, **row} for row in found[0]]
                rows.append(_row((name, allocator), point, report, process, found))
    return rows, others


class _Recorder:
    """Records the callers of the driver's memory functions, if this kernel offers probes through tracefs."""

    def __init__(self, bench: Bench, tgid: int) -> None:
        self._tgid = tgid
        self._probes: Probes | None = Probes(bench.libcuda, outside.WATCHED, callers=True)

    def __enter__(self) -> _Recorder:
        try:
            self._probes.__enter__()
        except NoTracing:
            self._probes = None
        else:
            self._probes.follow(self._tgid)
            self._probes.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._probes:
            self._probes.__exit__()

    def outside(self) -> tuple[list[dict], int] | None:
        """Returns what was taken outside PyTorch so far, and the number of frees there; None if this is unknown."""
        if self._probes is None or self._probes.lost():
            return None
        maps = Path(f"/proc/{self._tgid}/maps").read_text()
        return outside.taken(calls.pair(self._probes.hits()), outside.code_of(maps))


def _row(
    run: tuple[str, str], point: dict, report: dict, process: dict | None, found: tuple[list[dict], int] | None
) -> dict:
    torch = point["devices"][0]
    live_name, peak_name = _TRUTH[run[1]]
    gpu = process["gpus"][0] if process and process["gpus"] else {}
    live, used = gpu.get("driver_allocated_bytes", 0), gpu.get("used_bytes")
    failures = process["failures"] if process else []
    return {
        "script": run[0],
        "allocator": run[1],
        "checkpoint": point["label"],
        "torch_live_bytes": torch[live_name],
        "memwatch_live_bytes": live,
        "torch_peak_bytes": torch[peak_name],
        "memwatch_peak_bytes": gpu.get("peak_bytes", 0),
        "outside_torch_bytes": None if found is None else outside.total_bytes(found[0]),
        "outside_torch_frees": None if found is None else found[1],
        "nvml_used_bytes": used,
        "used_minus_live_bytes": None if used is None else used - live,
        "torch_reserved_bytes": torch["memory_reserved"],
        "failures": len(failures),
        "largest_failure_bytes": max((failure["requested_bytes"] for failure in failures), default=None),
        "lost": sum(report["losses"].values()),
        "from_start": bool(process and process["from_start"]),
    }


def judge(rows: list[dict], taken: list[dict]) -> Answer:
    """Returns the answer from all checkpoints and everything taken outside PyTorch."""
    wrong = [row for row in rows if not agrees(row)]
    rests = [row["used_minus_live_bytes"] for row in rows if row["used_minus_live_bytes"] is not None]
    text = f"{len(rows) - len(wrong)} of {len(rows)} checkpoints agree in live bytes and peak, without a lost record"
    if taken:
        text += f"; outside PyTorch: {_named(taken)}"
    if rests:
        text += f"; NVML's used minus live is {min(rests)} to {max(rests)} bytes"
    if wrong:
        return differs(text, checkpoints=rows, outside_torch=taken, disagreeing=wrong)
    return answered(text, checkpoints=rows, outside_torch=taken)


def _named(taken: list[dict]) -> str:
    libraries = sorted({row["library"] for row in taken})
    sizes = {library: sorted({row["size_bytes"] for row in taken if row["library"] == library}) for library in libraries}
    return "; ".join(f"{library} {' + '.join(map(str, sizes[library]))} bytes" for library in libraries)


def agrees(row: dict) -> bool:
    """Returns whether memwatch counts the memory of PyTorch plus that of other libraries, without lost records."""
    beside = row["outside_torch_bytes"] or 0
    return row["memwatch_live_bytes"] == row["torch_live_bytes"] + beside and _peak_agrees(row, beside) and row["lost"] == 0


def _peak_agrees(row: dict, beside: int) -> bool:
    # An expandable segment grows block by block: before the driver refuses a block, it has granted the earlier ones, which
    # PyTorch frees without counting them in its own peak.
    if row["allocator"] == "expandable_segments" and row["failures"]:
        return row["memwatch_peak_bytes"] >= row["torch_peak_bytes"]
    # Other libraries may have allocated after PyTorch's peak.
    return row["torch_peak_bytes"] <= row["memwatch_peak_bytes"] <= row["torch_peak_bytes"] + beside
