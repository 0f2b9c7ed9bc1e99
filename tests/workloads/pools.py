"""Uses pools of RAPIDS' memory manager and of CuPy, stops at checkpoints and prints the pools' own counts.

The first argument is the library, built from rmm_pools.cpp or cupy_pools.cpp; the second selects the test: `pools`, `cupy`, `late` or `torch`.
--wait waits for a line at each checkpoint.
"""

import ctypes as c
import json
import os
import sys

MIB = 1 << 20
POOL, FIXED, ARENA = 0, 1, 2
KINDS = ("pool", "fixed_size", "arena")
NUMBERS = ("bytes_in_use", "peak_bytes_in_use", "num_allocs", "known_blocks", "pool_bytes")

DRIVER = c.CDLL("libcuda.so.1", c.RTLD_GLOBAL)
POOLS = c.CDLL(sys.argv[1])
for function in ("make", "allocate"):
    getattr(POOLS, function).restype = c.c_void_p
made = []


class Pool:
    """A pool and its own counts."""

    def __init__(self, sort, size, above=None, kind=None):
        self.whole = c.c_void_p(POOLS.make(sort, above and above.whole, c.c_size_t(size)))
        self.kind = kind or KINDS[sort]
        made.append(self)

    def take(self, size):
        return POOLS.allocate(self.whole, c.c_size_t(size))

    def give(self, address, size):
        POOLS.deallocate(self.whole, c.c_void_p(address), c.c_size_t(size))

    def end(self):
        made.remove(self)
        POOLS.end(self.whole)

    def stats(self):
        numbers = (c.c_size_t * len(NUMBERS))()
        POOLS.stats(self.whole, numbers)
        return {"kind": self.kind, **dict(zip(NUMBERS, numbers))}


def checkpoint(label, **facts):
    print(json.dumps({"label": label, "pools": [pool.stats() for pool in made], **facts}), flush=True)
    if "--wait" in sys.argv:
        sys.stdin.readline()


def begin():
    """Makes the driver's primary context of the first GPU current."""
    context = c.c_void_p()
    if DRIVER.cuInit(0) or DRIVER.cuDevicePrimaryCtxRetain(c.byref(context), 0) or DRIVER.cuCtxSetCurrent(context):
        sys.exit("no CUDA driver")
    checkpoint("library")


def pools():
    begin()
    pool = Pool(POOL, 8 * MIB)
    columns = [pool.take(MIB), pool.take(4000), pool.take(300)]
    checkpoint("columns")
    pool.give(columns.pop(0), MIB)
    columns.append(pool.take(24 * MIB))
    checkpoint("grown")
    refused = [pool.take(1 << 50)]
    fixed, arena = Pool(FIXED, 1 << 16), Pool(ARENA, 0)
    blocks = [fixed.take(1000), fixed.take(1 << 16)]
    arenas = [arena.take(1000), arena.take(5000)]
    refused += [fixed.take(1 << 17), arena.take(1 << 50), arena.take(0)]
    checkpoint("sorts", refused=refused.count(None))
    fixed.give(blocks.pop(0), 1000)
    arena.give(arenas.pop(0), 1000)
    inner = Pool(POOL, 2 * MIB, above=pool)
    within = [inner.take(MIB), inner.take(512)]
    checkpoint("within", divided=2 * MIB)
    for address, size in zip(within, (MIB, 512)):
        inner.give(address, size)
    inner.end()
    for address, size in zip(columns, (4000, 300, 24 * MIB)):
        pool.give(address, size)
    pool.end()
    pool = Pool(POOL, 4 * MIB)
    kept = pool.take(MIB)
    checkpoint("again", kept=kept)


def cupy():
    begin()
    pool = Pool(POOL, 0, kind="memory_pool")
    arrays = [pool.take(MIB), pool.take(700)]
    checkpoint("arrays")
    pool.give(arrays.pop(0), MIB)
    arrays.append(pool.take(MIB // 2))
    checkpoint("smaller")
    for address, size in zip(arrays, (700, MIB // 2)):
        pool.give(address, size)
    checkpoint("free")


def late():
    begin()
    pool = Pool(POOL, 8 * MIB, kind="memory_pool" if "cupy" in sys.argv[1] else None)
    old = [pool.take(MIB), pool.take(2 * MIB)]
    checkpoint("old")
    young = pool.take(4096)
    checkpoint("young", young=4096)
    pool.give(old.pop(), 2 * MIB)
    checkpoint("one old one less")
    pool.give(young, 4096)
    pool.give(old.pop(), MIB)
    checkpoint("none")


def in_torch():
    import torch

    checkpoint("library")
    torch.cuda.init()
    torch.empty(1, device="cuda")
    pool = Pool(POOL, 64 * MIB)
    POOLS.give_torch(pool.whole)
    columns = pool.take(MIB)
    plugged = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "torch_allocate", "torch_free")
    within = torch.cuda.MemPool(plugged.allocator())
    with torch.cuda.use_mem_pool(within):
        tensors = [torch.empty(MIB, dtype=torch.uint8, device="cuda"), torch.empty(3000, dtype=torch.uint8, device="cuda")]
    statistics = torch.cuda.memory_stats()
    own = {"allocated": statistics["allocated_bytes.all.current"], "reserved": statistics["reserved_bytes.all.current"]}
    checkpoint("within", columns=MIB, torch=own, divided=pool.stats()["bytes_in_use"] - MIB, kept=len(tensors), at=columns)


{"pools": pools, "cupy": cupy, "late": late, "torch": in_torch}[sys.argv[2]]()
sys.stdout.flush()
# Skips the regular exit, which calls functions that the stand-ins of the driver lack.
os._exit(0)
