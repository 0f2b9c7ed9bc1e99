"""Questions to the driver and NVML that are answered without probes."""

from __future__ import annotations

import os
import subprocess
import sys

from gpucheck.bench import Answer, Bench, answered, mib, not_answered
from gpucheck.cuda import CudaError, Driver, Pool
from gpucheck.job import Job
from gpucheck.nvml import LISTS, Nvml, NvmlError

_MIB = 1 << 20
_KIB = 1 << 10


class _Meters:
    """All counters of used memory, read together."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.nvml = Nvml(driver.uuid())

    def read(self, tgid: int | None = None) -> dict[str, int | None]:
        """Reads used bytes of this process (or another) and of the whole device."""
        return {
            "nvml_process_bytes": self.nvml.used_by(tgid or os.getpid()),
            "nvml_device_bytes": self.nvml.memory()["used_bytes"],
            "cuda_device_bytes": self.driver.device_used_bytes(),
        }


def _growth(before: dict, after: dict) -> dict[str, int | None]:
    known = {name for name in before if before[name] is not None and after[name] is not None}
    return {name: after[name] - before[name] if name in known else None for name in before}


def _by_process_or_device(growth: dict[str, int | None]) -> int:
    """Returns the growth of the process, or that of the device if NVML does not list the process (in another pid namespace, for example)."""
    process_bytes = growth["nvml_process_bytes"]
    return growth["nvml_device_bytes"] if process_bytes is None else process_bytes


def nvml_versions(_: Bench) -> Answer:
    """Reads both versions in succession."""
    nvml = Nvml()
    first, second = nvml.memory(), nvml.memory_v2()
    difference = first["used_bytes"] - second["used_bytes"]
    lists = {}
    for kind in LISTS:
        try:
            lists[kind] = len(nvml.processes(kind))
        except NvmlError as error:
            lists[kind] = str(error)
    text = (
        f"version 1 says {mib(first['used_bytes'])} used, version 2 {mib(second['used_bytes'])} used and "
        f"{mib(second['reserved_bytes'])} reserved: they differ by {mib(difference)}, "
        + ("exactly what is reserved" if difference == second["reserved_bytes"] else "not what is reserved")
    )
    return answered(text, v1=first, v2=second, listed_processes=lists)


def context(bench: Bench) -> Answer:
    """Creates a context step by step, then does the same in PyTorch."""
    driver = Driver()
    nvml = Nvml(driver.uuid())
    rows = []

    def note(label: str) -> None:
        process_bytes, device_bytes = nvml.used_by(os.getpid()), nvml.memory()["used_bytes"]
        rows.append({"after": label, "nvml_process_bytes": process_bytes, "nvml_device_bytes": device_bytes})

    note("cuInit")
    driver.retain_context()
    note("cuDevicePrimaryCtxRetain")
    driver.enter()
    note("cuCtxSetCurrent")
    driver.alloc(2 * _MIB)
    note("cuMemAlloc of 2 MiB")
    bare_bytes, device_bytes = rows[2]["nvml_process_bytes"], rows[2]["nvml_device_bytes"] - rows[0]["nvml_device_bytes"]
    text = f"a bare context takes {mib(bare_bytes)} of the process's value and {mib(device_bytes)} of the device's"
    answer = answered(text, bare=rows)
    bench.save(answer)
    torch_rows = []
    with Job(bench, bench.script("context_growth.py"), "--wait") as job:
        for point in job.checkpoints():
            used = nvml.used_by(job.tgid)
            reserved = point["devices"][0]["memory_reserved"]
            rest = None if used is None else used - reserved
            torch_rows.append(
                {"after": point["label"], "nvml_process_bytes": used, "memory_reserved": reserved, "rest_bytes": rest}
            )
    rests = ", ".join(f"{mib(row['rest_bytes'])} after the {row['after']}" for row in torch_rows)
    return answered(f"{answer.text}; a PyTorch process beside its reserved memory: {rests}", bare=rows, torch=torch_rows)


def small_blocks(_: Bench) -> Answer:
    """Allocates 1000 blocks of 4 KiB, then sizes around 1 and 2 MiB."""
    driver = Driver()
    driver.enter()
    meters = _Meters(driver)
    driver.alloc(2 * _MIB)
    rows = []
    for count, size_bytes in ((1000, 4 * _KIB), (100, 100 * _KIB), (16, _MIB), (16, _MIB + 1), (16, 2 * _MIB), (16, 2 * _MIB + 1)):
        before = meters.read()
        pointers = [driver.alloc(size_bytes) for _ in range(count)]
        growth = _growth(before, meters.read())
        spacing = min((abs(b - a) for a, b in zip(pointers, pointers[1:])), default=None)
        rows.append({"blocks": count, "size_bytes": size_bytes, "requested_bytes": count * size_bytes, **growth, "closest_bytes": spacing})
        for pointer in pointers:
            driver.free(pointer)
    grown = _by_process_or_device(rows[0])
    shared = "they share blocks" if grown < 1000 * 64 * _KIB else "each has a block of its own"
    text = f"1000 blocks of 4 KiB ({mib(rows[0]['requested_bytes'])}) take {mib(grown)}: {shared}"
    return answered(text, growth=rows)


def pool_growth(_: Bench) -> Answer:
    """Makes one allocation per size from an empty pool, then many small ones in a row."""
    driver = Driver()
    driver.enter()
    meters, pool = _Meters(driver), Pool(driver)
    pool.empty([pool.alloc(_MIB)])
    rows = []
    for size_mib in (1, 2, 16, 32, 33, 64):
        before, kept = meters.read(), pool.reserved_bytes()
        pointer = pool.alloc(size_mib * _MIB)
        driver.synchronize()
        growth = _growth(before, meters.read())
        rows.append({"size_mib": size_mib, "reserved_bytes": pool.reserved_bytes() - kept, "used_bytes": pool.used_bytes(), **growth})
        pool.empty([pointer])
    left_bytes = pool.reserved_bytes()
    steps, pointers = [], []
    for _ in range(80):
        pointers.append(pool.alloc(_MIB))
        if not steps or steps[-1]["reserved_bytes"] != pool.reserved_bytes():
            steps.append({"blocks_of_1_mib": len(pointers), "reserved_bytes": pool.reserved_bytes()})
    pool.empty(pointers)
    grown = ", ".join(f"{row['size_mib']} MiB takes {mib(row['reserved_bytes'])}" for row in rows)
    trimmed = f"; after cuMemPoolTrimTo(0) of the empty pool {mib(left_bytes)} are left"
    return answered(f"from an empty pool, {grown}{trimmed}", single=rows, many_of_1_mib=steps, left_after_trim_bytes=left_bytes)


_IMPORTER = """
import sys
from gpucheck.cuda import Driver
driver = Driver()
driver.enter()
driver.alloc(2 << 20)
print("context", flush=True)
handle = bytes.fromhex(sys.stdin.readline())
driver.ipc_open(handle)
print("open", flush=True)
sys.stdin.readline()
"""


def ipc_importer(bench: Bench) -> Answer:
    """Opens 256 MiB of this process in a second process."""
    driver = Driver()
    driver.enter()
    meters = _Meters(driver)
    pointer = driver.alloc(256 * _MIB)
    environment = {**os.environ, "PYTHONPATH": str(bench.root)}
    importer = subprocess.Popen(
        [sys.executable, "-c", _IMPORTER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with importer:
        importer.stdout.readline()
        before, exporter_before = meters.read(importer.pid), meters.read()
        try:
            importer.stdin.write(driver.ipc_handle(pointer).hex() + "\n")
        except CudaError as error:
            return not_answered(f"this driver exports no memory: {error}")
        importer.stdin.flush()
        if importer.stdout.readline().strip() != "open":
            return not_answered("the importer could not open the memory")
        after, exporter_after = meters.read(importer.pid), meters.read()
        importer.stdin.write("\n")
    grown = _growth(before, after)
    text = (
        f"opening 256 MiB of another process adds {mib(grown['nvml_process_bytes'])} to the importer's value and "
        f"{mib(grown['nvml_device_bytes'])} to the device's"
    )
    exporter = _growth(exporter_before, exporter_after)
    return answered(text, importer_growth=grown, exporter_growth=exporter, importer=after, exporter=exporter_after)
