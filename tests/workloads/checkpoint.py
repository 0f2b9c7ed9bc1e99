"""Shared by all workloads: checkpoints that print how much device memory PyTorch reports.

A checkpoint prints one line of JSON and flushes it:

    {"label": "grown", "pid": 4711, "allocator": "native", "devices": [{"device": 0, ...}], ...}

with, for each device that the workload uses (all in bytes):

        memory_allocated      bytes of live tensors. With the allocator cudaMallocAsync: the used bytes of the driver's pool.
        memory_reserved       bytes that PyTorch holds from the driver. With cudaMallocAsync: the reserved bytes of the pool.
        max_memory_allocated  the highest memory_allocated so far. With cudaMallocAsync: the high-water mark of the pool.
        max_memory_reserved   the highest memory_reserved so far. With cudaMallocAsync: the high-water mark of the pool.
        memory_stats          the full result of torch.cuda.memory_stats().
        mem_get_info_used     device memory used by all processes: total minus free of cudaMemGetInfo.

and further facts from the workload. With --wait, the workload stops at each checkpoint and continues when it reads a
line from standard input. Once standard input has ended, it does not wait.

The caller selects the allocator before the start, in PYTORCH_CUDA_ALLOC_CONF (newer versions of PyTorch also read
PYTORCH_ALLOC_CONF): nothing, expandable_segments:True or backend:cudaMallocAsync.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from types import TracebackType

import torch

_waits = False


def parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options of all workloads."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--wait", action="store_true", help="after each checkpoint, wait for a line on standard input")
    options.add_argument("--fraction", type=float, metavar="F", help="limit the process to this part of each device's memory")
    options.add_argument("--hold", action="store_true", help="a checkpoint more, before anything is allocated")
    return options


def begin(options: argparse.ArgumentParser, devices: int = 1) -> argparse.Namespace:
    """Parses the command line, and exits with a message if the workload cannot run."""
    global _waits
    arguments = options.parse_args()
    _waits = arguments.wait
    if arguments.hold:
        checkpoint("begun", devices=())
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < devices:
        options.exit(3, f"{options.prog}: needs {devices} CUDA device(s), PyTorch {torch.__version__} finds {found}\n")
    sys.excepthook = _end
    if arguments.fraction is not None:
        for device in range(found):
            torch.cuda.set_per_process_memory_fraction(arguments.fraction, device)
    return arguments


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints the memory held when an allocation failed."""
    if issubclass(kind, torch.OutOfMemoryError):
        used = [device for device in range(torch.cuda.device_count()) if torch.cuda.max_memory_reserved(device)]
        checkpoint("out of memory", used)
    sys.__excepthook__(kind, error, trace)


def checkpoint(label: str, devices: Iterable[int] = (0,), **facts: object) -> None:
    """Waits for the work on `devices`, prints the memory held on them and, with --wait, waits for a line."""
    global _waits
    line = {
        "label": label,
        "pid": os.getpid(),
        "allocator": torch.cuda.get_allocator_backend(),
        "devices": [_device(device) for device in devices],
        **facts,
    }
    print(json.dumps(line), flush=True)
    if _waits and not sys.stdin.readline():
        _waits = False


def _device(device: int) -> dict[str, object]:
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "device": device,
        "memory_allocated": torch.cuda.memory_allocated(device),
        "memory_reserved": torch.cuda.memory_reserved(device),
        "max_memory_allocated": torch.cuda.max_memory_allocated(device),
        "max_memory_reserved": torch.cuda.max_memory_reserved(device),
        "memory_stats": torch.cuda.memory_stats(device),
        "mem_get_info_used": total - free,
    }
