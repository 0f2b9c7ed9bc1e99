"""Memory that a process takes from the driver outside PyTorch: calls that other libraries make themselves.

PyTorch's caching allocator calls the driver through the CUDA runtime or from its own libraries. A library with its own
copy of the runtime, such as cuBLAS, calls the driver from its own code: the return address is in its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from gpucheck.calls import Call

# Calls that allocate device memory, with the index of their size argument, and their free functions, with that of the address.
WATCHED: dict[str, int | None] = {
    "cuMemAlloc_v2": 1,
    "cuMemAllocAsync": 1,
    "cuMemAllocAsync_ptsz": 1,
    "cuMemAllocFromPoolAsync": 1,
    "cuMemAllocFromPoolAsync_ptsz": 1,
    "cuMemCreate": 1,
    "cuMemFree_v2": 0,
}
_FREE = "cuMemFree_v2"
# PyTorch's libraries and the runtime that they share.
_PYTORCH = ("libcudart", "libc10", "libtorch")
_UNKNOWN = "code of no file"


@dataclass(frozen=True)
class Code:
    """A range of addresses and the file mapped there."""

    begin: int
    end: int
    file: str


def code_of(maps: str) -> list[Code]:
    """Returns the files in the text of `/proc/PID/maps`."""
    found = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            begin, end = (int(text, 16) for text in fields[0].split("-"))
            found.append(Code(begin, end, PurePath(fields[5]).name))
    return found


def taken(calls: Iterable[Call], code: Iterable[Code]) -> tuple[list[dict], int]:
    """Returns what was taken outside PyTorch, by library and size, and the number of frees there.

    The size of freed memory is unknown here: the address that the allocation returned is not recorded.
    """
    code = list(code)
    sizes: Counter[tuple[str, str, int]] = Counter()
    frees = 0
    for call in calls:
        library = _library(call.caller, code)
        if library.startswith(_PYTORCH) or call.status != 0 or not call.requested_bytes:
            continue
        if call.symbol == _FREE:
            frees += 1
        else:
            sizes[library, call.symbol, call.requested_bytes] += 1
    rows = [
        {"library": library, "symbol": symbol, "size_bytes": size_bytes, "times": times}
        for (library, symbol, size_bytes), times in sizes.items()
    ]
    return rows, frees


def total_bytes(rows: Iterable[dict]) -> int:
    """Returns the sum over all rows."""
    return sum(row["size_bytes"] * row["times"] for row in rows)


def _library(address: int | None, code: list[Code]) -> str:
    if address is None:
        return _UNKNOWN
    return next((part.file for part in code if part.begin <= address < part.end), _UNKNOWN)
