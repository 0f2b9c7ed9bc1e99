"""Questions that are answered by probes on the driver's functions."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpucheck import calls
from gpucheck.bench import Answer, Bench, answered, differs
from gpucheck.cuda import driver_version
from gpucheck.job import ALLOCATORS, Job
from gpucheck.tracefs import Probes
from gpucheck.watcher import sources

# The traced programs, small enough that their traces can be read.
RUNS = (
    ("transformer", ("--layers", "2", "--dim", "512", "--steps", "2")),
    ("grow_free", ("--tensors", "40")),
    ("oom", ()),
)
_WARM_STEPS, _STEPS = 3, 10


def sites(bench: Bench) -> Answer:
    """Runs `memwatch doctor --json` on this driver's file."""
    doctor = subprocess.run(
        [bench.memwatch, "doctor", "--json", *sources(bench)], capture_output=True, text=True, check=False
    )
    report = json.loads(doctor.stdout)
    library = next(row for row in report["data"]["libraries"] if row["path"] == str(bench.libcuda))
    functions = library["functions"]
    shapes = Counter((row["offset_bytes"], row["instruction"], row["reason"], row["single_stepped"]) for row in functions)
    rows = [
        {"functions": count, "offset_bytes": offset, "instruction": instruction, "reason": reason, "single_stepped": stepped}
        for (offset, instruction, reason, stepped), count in shapes.most_common()
    ]
    stepped = [row["symbol"] for row in functions if row["single_stepped"]]
    test_call = next((check["fact"] for check in report["data"]["checks"] if check["id"] == "test_call"), "no test call")
    missing, newer = absent(library["missing"], driver_version())
    lacking = f", {len(missing)} missing though the driver has newer ones" if missing else ""
    text = (
        f"{len(functions)} functions found{lacking}; {len(functions) - len(stepped)} probes need no single step, "
        f"{len(stepped)} do; {test_call}"
    )
    return (differs if missing else answered)(
        text,
        shapes=rows,
        single_stepped=stepped,
        missing=missing,
        newer_than_this_driver=newer,
        build_id=library["build_id"],
        functions=functions,
    )


def absent(rows: list[dict], version: tuple[int, int]) -> tuple[list[str], list[str]]:
    """Returns functions that a driver of this CUDA version should have but lacks, and those that only newer versions have."""
    missing, newer = [], []
    for row in rows:
        since = tuple(int(part) for part in row["since"].split("."))
        (newer if since > version else missing).append(row["symbol"])
    return missing, newer


def runtime_calls(bench: Bench) -> Answer:
    """Calls the functions of PyTorch's own runtime library with sizes that occur nowhere else."""
    with Probes(bench.libcuda, calls.TRACED) as probes, Job(bench, bench.script("runtime_calls.py")) as job:
        probes.follow(job.tgid)
        probes.start()
        job.say()
        reported = job.hear()
        job.end()
        probes.stop()
        seen = calls.pair(probes.hits())
    rows = []
    for made in reported["calls"]:
        reached = sorted({call.symbol for call in seen if call.requested_bytes == made["size_bytes"]})
        rows.append({**made, "reached": ", ".join(reached) or "nothing that is traced"})
    text = "; ".join(f"{row['call']} reaches {row['reached']}" for row in rows if row["status"] == 0)
    make = answered if any(row["call"] == "cudaMalloc" and row["reached"] == "cuMemAlloc_v2" for row in rows) else differs
    return make(text, runtime=reported["runtime"], calls=rows)


def traces(bench: Bench) -> Answer:
    """Traces every run with every allocator from before its first call to its end."""
    rows, files, symbols = [], [], {}
    for name, arguments in RUNS:
        for allocator in ALLOCATORS:
            script = f"{name}.py"
            seen, lost = trace(bench, script, arguments, allocator)
            file = bench.traces / f"{name}-{allocator}.tsv"
            head = {fact: bench.facts.get(fact) for fact in ("gpu", "driver", "torch", "gpu_total_bytes")}
            head |= {"script": " ".join((script, *arguments)), "allocator": allocator, "lost": lost}
            calls.write(file, head | ({"simulated": "yes"} if bench.is_simulated else {}), seen)
            files.append(file.name)
            counts = calls.tally(seen)
            symbols.setdefault(allocator, set()).update(counts)
            for symbol, count in counts.items():
                rows.append({"script": name, "allocator": allocator, "symbol": symbol, "calls": count, "lost": lost})
            bench.save(answered(_by_allocator(symbols), counts=rows, traces=files))
    return answered(_by_allocator(symbols), counts=rows, traces=files)


def _by_allocator(symbols: dict[str, set[str]]) -> str:
    taking = ("Alloc", "Create", "AddressReserve")
    reported = {
        allocator: sorted(name for name in names if any(part in name for part in taking) and "Ctx" not in name)
        for allocator, names in symbols.items()
    }
    return "; ".join(f"{allocator} takes memory with {', '.join(names)}" for allocator, names in reported.items())


def trace(bench: Bench, script: str, arguments: Sequence[str], allocator: str) -> tuple[list[calls.Call], int]:
    """Returns a workload's calls from before the first to the end, and the number of lines that the kernel lost."""
    file = bench.workload(script)
    with Probes(bench.libcuda, calls.TRACED) as probes, Job(bench, file, *arguments, allocator=allocator) as job:
        probes.follow(job.tgid)
        probes.start()
        for _ in job.checkpoints():
            pass
        probes.stop()
        return calls.pair(probes.hits()), probes.lost()


def compare_with_trace(bench: Bench, path: Path) -> list[str]:
    """Repeats the run of a recorded trace here, and returns the differences between the two sequences of calls."""
    facts, wanted = calls.read(path)
    script, *arguments = facts["script"].split()
    found, lost = trace(bench, script, arguments, facts["allocator"])
    if lost:
        raise RuntimeError(f"the kernel lost {lost} calls of this run")
    return calls.differences(wanted, found)


def hot_calls(bench: Bench) -> Answer:
    """Counts calls in a training loop; the rate is that of steps timed without probes."""
    with Job(bench, bench.script("train_steps.py")) as job:
        job.say()
        job.hear()
        job.say(str(_WARM_STEPS))
        job.hear()
        job.say(str(_STEPS))
        seconds_per_step = sum(job.hear()["step_ns"]) / 1e9 / _STEPS
        with Probes(bench.libcuda, calls.HOT, returns=False) as probes:
            probes.follow(job.tgid)
            probes.start()
            job.say(str(_STEPS))
            probed_seconds_per_step = sum(job.hear()["step_ns"]) / 1e9 / _STEPS
            probes.stop()
            counts = probes.counts()
        job.end()
    rows = [
        {"symbol": symbol, "calls_per_step": round(count / _STEPS, 1), "calls_per_second": round(count / _STEPS / seconds_per_step)}
        for symbol, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    text = ", ".join(f"{row['symbol']} {row['calls_per_second']}/s" for row in rows if row["calls_per_step"])
    return answered(
        f"at {1 / seconds_per_step:.1f} steps/s: {text}",
        rates=rows,
        step_ms=round(seconds_per_step * 1e3, 3),
        step_ms_with_these_probes=round(probed_seconds_per_step * 1e3, 3),
    )
