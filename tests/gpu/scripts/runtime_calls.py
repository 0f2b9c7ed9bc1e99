"""Calls CUDA's runtime allocation functions with sizes that occur nowhere else, and prints their results."""

import ctypes
import json
from pathlib import Path

import torch

# Name of the allocation function, size, further arguments such as flags or a stream, and the name of the free function.
CALLS = (
    ("cudaMalloc", 7_654_321, (), "cudaFree"),
    ("cudaMallocManaged", 654_321, (ctypes.c_uint(1),), "cudaFree"),
    ("cudaMallocHost", 543_210, (), "cudaFreeHost"),
    ("cudaHostAlloc", 432_109, (ctypes.c_uint(0),), "cudaFreeHost"),
    ("cudaMallocAsync", 6_543_210, (ctypes.c_void_p(0),), "cudaFree"),
)


def runtime() -> ctypes.CDLL:
    """Loads the runtime library that PyTorch uses."""
    files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line}
    return ctypes.CDLL(sorted(files)[0])


def main() -> None:
    """Calls the functions and prints one line of JSON."""
    torch.cuda.init()
    torch.cuda.current_stream()
    library = runtime()
    library.cudaFree(ctypes.c_void_p(0))
    calls = []
    for symbol, size_bytes, more, free in CALLS:
        function = getattr(library, symbol, None)
        if function is None:
            calls.append({"call": symbol, "size_bytes": size_bytes, "status": None})
            continue
        pointer = ctypes.c_void_p()
        status = function(ctypes.byref(pointer), ctypes.c_size_t(size_bytes), *more)
        calls.append({"call": symbol, "size_bytes": size_bytes, "status": status})
        if status == 0:
            getattr(library, free)(pointer)
    print(json.dumps({"label": "runtime", "runtime": Path(library._name).name, "calls": calls}), flush=True)


if __name__ == "__main__":
    main()
