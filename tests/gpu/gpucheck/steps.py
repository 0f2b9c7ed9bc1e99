"""The questions, in the order in which they are answered: the cheap and safe ones first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpucheck import ask_kernel_driver, ask_memory, ask_mps, ask_probes, compare, overhead
from gpucheck.bench import Answer, Bench


@dataclass(frozen=True)
class Step:
    """One question."""

    name: str
    question: str
    # How the question is answered, for the report.
    method: str
    # After this time the step is killed, and its last saved answer counts.
    limit_s: int
    # Whether the step needs a kernel that allows probes.
    needs_probes: bool
    run: Callable[[Bench], Answer]


STEPS = (
    Step(
        "nvml_versions",
        "What do NVML's two versions of the device's memory say?",
        "nvmlDeviceGetMemoryInfo and _v2, one after the other; how many processes each list has",
        20,
        False,
        ask_memory.nvml_versions,
    ),
    Step(
        "context",
        "How much does a context take, and when does NVML list the process?",
        "NVML's value for this process after each step to a context; then for a PyTorch process minus memory_reserved",
        60,
        False,
        ask_memory.context,
    ),
    Step(
        "small_blocks",
        "Do small cuMemAlloc allocations share 2 MiB blocks?",
        "growth of NVML's values and cuMemGetInfo over many allocations of one size; the closest two addresses",
        30,
        False,
        ask_memory.small_blocks,
    ),
    Step(
        "pool_growth",
        "In which steps does the stream-ordered pool grow?",
        "default pool, release threshold at its maximum: reserved bytes after one allocation from empty, and over 80 x 1 MiB",
        30,
        False,
        ask_memory.pool_growth,
    ),
    Step(
        "ipc_importer",
        "Does NVML count another process's memory twice when it is opened through CUDA IPC?",
        "NVML's values of both processes and the device before and after cuIpcOpenMemHandle",
        40,
        False,
        ask_memory.ipc_importer,
    ),
    Step(
        "sites",
        "Where do memwatch's probes sit in this driver, and do they fire?",
        "memwatch doctor --json on the driver's file",
        30,
        True,
        ask_probes.sites,
    ),
    Step(
        "runtime_calls",
        "Which driver functions does the CUDA runtime reach: does cudaMalloc reach cuMemAlloc_v2?",
        "uprobes through tracefs on every allocation function; runtime calls with sizes that occur nowhere else",
        60,
        True,
        ask_probes.runtime_calls,
    ),
    Step(
        "against_torch",
        "Is what memwatch says what PyTorch says?",
        "three scripts under three allocators, watched from before their first call, compared at every checkpoint",
        240,
        True,
        compare.against_torch,
    ),
    Step(
        "explained",
        "Is all that NVML charges a PyTorch process explained by its requests to the kernel driver?",
        "memwatch explain at every checkpoint of a training under three allocators, seen from its start by an agent",
        120,
        True,
        ask_kernel_driver.explained,
    ),
    Step(
        "context_parts",
        "What is a context made of?",
        "the objects that memwatch explain lists for a program that makes a context and nothing else",
        30,
        True,
        ask_kernel_driver.context_parts,
    ),
    Step(
        "host_physical",
        "What does the kernel driver take for cuMemCreate on the host?",
        "64 MiB by cuMemCreate with the locations HOST and HOST_NUMA: growth of what memwatch explain has of GPU and host",
        60,
        True,
        ask_kernel_driver.host_physical,
    ),
    Step(
        "two_gpus",
        "Is it so on two GPUs, and what does peer access take?",
        "a program with memory on both, before and after cuCtxEnablePeerAccess",
        60,
        True,
        ask_kernel_driver.two_gpus,
    ),
    Step(
        "instances",
        "Is it so on an instance of a divided GPU?",
        "a program on the first MIG instance that NVML lists",
        30,
        True,
        ask_kernel_driver.instances,
    ),
    Step(
        "graphics",
        "Is it so of programs that draw or encode?",
        "vkcube and ffmpeg with NVENC, where they are installed",
        60,
        True,
        ask_kernel_driver.graphics,
    ),
    Step(
        "traces",
        "Which driver functions do PyTorch's allocators call, and how often?",
        "uprobes through tracefs on every allocation function; the traces are kept as files",
        180,
        True,
        ask_probes.traces,
    ),
    Step(
        "overhead",
        "What does a training step cost more while memwatch watches?",
        "one process; stretches of steps with and without memwatch take turns",
        120,
        True,
        overhead.per_step,
    ),
    Step(
        "hot_calls",
        "How often do frameworks call the functions that memwatch leaves alone?",
        "hit counts of uprobes through tracefs over ten training steps; the rate uses steps timed without probes",
        60,
        True,
        ask_probes.hot_calls,
    ),
    Step(
        "mps",
        "Under whose process id does NVML show the memory of an MPS client?",
        "an MPS daemon with a pipe folder of its own, one client that holds 256 MiB, NVML's three lists",
        60,
        False,
        ask_mps.clients,
    ),
)
