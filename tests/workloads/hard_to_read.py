"""Children of a process with a model on the GPU, each of which is hard to read: it dies, executes another program, unmaps its memory or has corrupt objects.

    hard_to_read.py MODE [--children N] [--step MS]

forks one child after another, each at a checkpoint "child" with its PID in `child`. The first child starts the MODE at once, each later one after a
delay that grows by MS milliseconds. The next line on standard input kills the child.
"""

import collections
import ctypes
import gc
import mmap
import os
import signal
import sys
import time

import torch
from checkpoint import begin, checkpoint, parser

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
NORESERVE = 0x4000
PR_SET_PDEATHSIG = 1
SECONDS = 20.0
TENSORS: list[torch.Tensor] = []


def dies() -> None:
    """Kills the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def execs() -> None:
    """Executes another program under the same PID."""
    os.execv("/bin/sleep", ["sleep", "60"])


def unmaps() -> None:
    """Unmaps the memory, the largest mappings first, until the process crashes."""
    mappings = []
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            mappings.append((end - start, start))
    for size, start in sorted(mappings, reverse=True):
        LIBC.munmap(start, size)


def forks() -> None:
    """Forks children all the time; each fork makes the pages of the process shared."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


def changes() -> None:
    """Creates and frees objects and mappings."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        kept = [[{str(number): (number, [number])} for number in range(200)] for _ in range(50)]
        with mmap.mmap(-1, 64 << 20) as mapped:
            mapped[12345] = 1
        kept.clear()
        gc.collect()


def rests() -> None:
    """Waits, so that a test can write garbage into the memory."""
    signal.pause()


def lies() -> None:
    """Corrupts the sizes and pointers of its objects."""
    gc.disable()
    word = ctypes.c_ssize_t.from_address
    long_list, long_tuple, numbers, table, queue = [1], (1, 2), {1, 2, 3}, {"a": 1}, collections.deque([1])
    word(id(long_list) + 16).value = 1 << 60
    word(id(long_tuple) + 16).value = -1
    word(id(numbers) + 32).value = (1 << 50) - 1
    word(id(table) + 32).value = id(table)
    word(id(queue) + 24).value = id(queue)
    word(id(queue) + 16).value = 1 << 40
    inner = word(id(TENSORS[0]) + 24).value
    for offset in range(16, 192, 8):
        if word(inner + offset).value in (2, 3, 6):
            word(inner + offset).value = 1 << 62
    Lying = type("Lying", (), {})
    lying = Lying()
    word(id(Lying) + 256).value = id(Lying)
    # Makes the collector's list lead from this object to itself.
    word(id(lying) - 16).value = id(lying) - 16
    signal.pause()


def reserves() -> None:
    """Reserves far more address space than it uses, with objects that point there."""
    size = 2 << 40
    reserved = LIBC.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, -1, 0)
    writable = LIBC.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, -1, 0)
    assert reserved != ctypes.c_void_p(-1).value and writable != ctypes.c_void_p(-1).value, ctypes.get_errno()
    word = ctypes.c_size_t.from_address
    word(writable + (1 << 40)).value = 1
    lists = [[number] for number in range(8)]
    for number, place in enumerate(lists[:4]):
        word(id(place) + 24).value = writable + number * (300 << 30)
        word(id(place) + 16).value = 1 << 21
    for number, place in enumerate(lists[4:]):
        word(id(place) + 24).value = reserved + number * (300 << 30)
        word(id(place) + 16).value = 1 << 21
    signal.pause()


MODES = (dies, execs, unmaps, forks, changes, rests, lies, reserves)


def main() -> None:
    """Forks one child after another."""
    options = parser(__doc__)
    options.add_argument("mode", choices=[mode.__name__ for mode in MODES])
    options.add_argument("--children", type=int, default=1, metavar="N", help="how many (default 1)")
    options.add_argument("--step", type=float, default=30.0, metavar="MS", help="how much later each begins (default 30)")
    arguments = begin(options)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).to("cuda")
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    TENSORS.extend(torch.full((2, 3), 1.0, device="cuda") for _ in range(2))
    parent = os.getpid()
    for number in range(arguments.children):
        sys.stdout.flush()
        is_ready, ready = os.pipe()
        child = os.fork()
        if child == 0:
            # The kernel kills the child when its parent exits.
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                # The parent exited before prctl() was called.
                os._exit(0)
            os.write(ready, b".")
            time.sleep(number * arguments.step / 1000)
            globals()[arguments.mode]()
            os._exit(0)
        # Waits for prctl(): a child stopped before that would outlive its parent.
        os.read(is_ready, 1)
        os.close(is_ready)
        os.close(ready)
        checkpoint("child", devices=(), child=child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
