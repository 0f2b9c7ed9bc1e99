"""The traced driver calls, and traces of them as files that other runs can be compared with."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpucheck.tracefs import Hit

# Every call that allocates or frees memory, with the index of its size argument from 0, or None if it has none.
TRACED: dict[str, int | None] = {
    "cuMemAlloc_v2": 1,
    "cuMemAllocPitch_v2": 2,
    "cuMemFree_v2": None,
    "cuMemAllocManaged": 1,
    "cuMemAllocHost_v2": 1,
    "cuMemHostAlloc": 1,
    "cuMemFreeHost": None,
    "cuMemHostRegister_v2": 1,
    "cuMemHostUnregister": None,
    "cuMemAllocAsync": 1,
    "cuMemAllocAsync_ptsz": 1,
    "cuMemAllocFromPoolAsync": 1,
    "cuMemAllocFromPoolAsync_ptsz": 1,
    "cuMemFreeAsync": None,
    "cuMemFreeAsync_ptsz": None,
    "cuMemPoolCreate": None,
    "cuMemPoolDestroy": None,
    "cuMemPoolTrimTo": 1,
    "cuMemAddressReserve": 1,
    "cuMemAddressFree": 1,
    "cuMemCreate": 1,
    "cuMemRelease": None,
    "cuMemRetainAllocationHandle": None,
    "cuMemMap": 1,
    "cuMemUnmap": 1,
    "cuMemSetAccess": 1,
    "cuMemImportFromShareableHandle": None,
    "cuIpcOpenMemHandle_v2": None,
    "cuIpcCloseMemHandle": None,
    "cuArrayCreate_v2": None,
    "cuArray3DCreate_v2": None,
    "cuArrayDestroy": None,
    "cuMipmappedArrayCreate": None,
    "cuMipmappedArrayDestroy": None,
    "cuDevicePrimaryCtxRetain": None,
    "cuDevicePrimaryCtxRelease_v2": None,
    "cuDevicePrimaryCtxReset_v2": None,
    "cuCtxCreate_v2": None,
    "cuCtxCreate_v3": None,
    "cuCtxCreate_v4": None,
    "cuCtxDestroy_v2": None,
}
# Calls that frameworks make very often.
HOT: dict[str, int | None] = dict.fromkeys(
    (
        "cuCtxSetCurrent",
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
        "cuLaunchKernelEx",
        "cuLaunchKernelEx_ptsz",
        "cuStreamIsCapturing",
        "cuStreamGetCaptureInfo_v2",
        "cuMemcpyAsync",
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuPointerGetAttributes",
    )
)
_COLUMNS = "symbol\trequested_bytes\tstatus\tthread\ttimes"
_UNKNOWN = "-"


@dataclass(frozen=True)
class Call:
    """One driver call, with its result."""

    symbol: str
    requested_bytes: int | None
    status: int | None
    thread: int
    # The return address of the call, if the probes record it; not part of a trace.
    caller: int | None = field(default=None, compare=False)


def pair(hits: Iterable[Hit]) -> list[Call]:
    """Pairs entries with returns, in the order of the entries; threads are numbered in the order in which they appear.

    A call that never returned, such as one during the process's exit, has no status.
    """
    entries: list[tuple[Hit, int]] = []
    statuses: dict[int, int] = {}
    open_calls: dict[tuple[int, str], list[int]] = {}
    threads: dict[int, int] = {}
    for hit in hits:
        stack = open_calls.setdefault((hit.tid, hit.symbol), [])
        if not hit.is_return:
            stack.append(len(entries))
            entries.append((hit, threads.setdefault(hit.tid, len(threads))))
        elif stack:
            statuses[stack.pop()] = hit.values.get("status", 0)
    return [
        Call(hit.symbol, hit.values.get("size"), statuses.get(index), thread, hit.values.get("caller"))
        for index, (hit, thread) in enumerate(entries)
    ]


def tally(calls: Iterable[Call]) -> dict[str, int]:
    """Returns the number of calls per function, the most frequent first."""
    return dict(Counter(call.symbol for call in calls).most_common())


def write(path: Path, facts: dict[str, object], calls: Iterable[Call]) -> None:
    """Writes a trace: the facts as comments, a header, and a line per call; successive equal calls share a line."""
    comments = [f"# {name}: {value}" for name, value in facts.items()]
    rows = _repeated((call.symbol, call.requested_bytes, call.status, call.thread) for call in calls)
    path.write_text("\n".join([*comments, _COLUMNS, *rows]) + "\n")


def _repeated(values: Iterable[tuple]) -> list[str]:
    runs = ((*row, len(list(run))) for row, run in itertools.groupby(values))
    return ["\t".join(_UNKNOWN if value is None else str(value) for value in run) for run in runs]


def read(path: Path) -> tuple[dict[str, str], list[Call]]:
    """Returns a trace's facts and calls. Raises ValueError if the file is not a trace."""
    lines = path.read_text().splitlines()
    facts = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    rows = [line for line in lines if not line.startswith("# ")]
    if not rows or rows[0] != _COLUMNS:
        raise ValueError(f"{path} is no trace")
    return facts, [call for row in rows[1:] for call in _calls(row)]


def _calls(row: str) -> list[Call]:
    symbol, *texts = row.split("\t")
    requested_bytes, status, thread, times = (None if text == _UNKNOWN else int(text) for text in texts)
    return [Call(symbol, requested_bytes, status, thread or 0)] * (times or 0)


def differences(wanted: list[Call], found: list[Call]) -> list[str]:
    """Returns the calls to remove from (-) and add to (+) `found` to get `wanted`; threads are not compared."""

    def rows(calls: list[Call]) -> list[str]:
        return _repeated((call.symbol, call.requested_bytes, call.status) for call in calls)

    return list(difflib.unified_diff(rows(found), rows(wanted), "found", "wanted", lineterm="", n=1))
