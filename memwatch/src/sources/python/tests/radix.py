"""A stand-in for SGLang's scheduler with real tensors, on the host. Prints what is true of it, and stops."""

import json
import os
import sys
import threading
import types

import torch

SCHEDULER = """
import os
import torch

class KVCache:
    def __init__(self, size, page_size):
        self.layer_num = 4
        self.k_buffer = [torch.zeros((size + page_size, 2, 8), dtype=torch.float16) for _ in range(4)]
        self.v_buffer = [torch.zeros((size + page_size, 2, 8), dtype=torch.float16) for _ in range(4)]

class Allocator:
    def __init__(self, size, page_size):
        self.size, self.page_size, self._kvcache = size, page_size, KVCache(size, page_size)
        self.free_pages = torch.arange(1, size // page_size + 1, dtype=torch.int64)
        self.release_pages = torch.empty((0,), dtype=torch.int64)

    def available_size(self):
        return (len(self.free_pages) + len(self.release_pages)) * self.page_size

class RadixCache:
    def __init__(self):
        self.evictable_size_ = self.protected_size_ = 0

class ChunkCache:
    pass

class Batch:
    def __init__(self):
        self.reqs = []

class Scheduler:
    def __init__(self, size, page_size, tree_cache):
        self.token_to_kv_pool_allocator = Allocator(size, page_size)
        self.tree_cache = tree_cache
        self.running_batch = Batch()
        self.waiting_queue = []

    def event_loop_normal(self):
        os.read(0, 1)
"""

made = types.ModuleType("sglang.srt.managers.scheduler")
sys.modules["sglang.srt.managers.scheduler"] = made
exec(SCHEDULER, vars(made))


def stop(case, scheduler):
    allocator, cache = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    buffers = allocator._kvcache.k_buffer + allocator._kvcache.v_buffer
    truth = {
        "size": allocator.size,
        "available": allocator.available_size(),
        "evictable": getattr(cache, "evictable_size_", 0),
        "running": len(scheduler.running_batch.reqs),
        "waiting": len(scheduler.waiting_queue),
        "buffers": [(one.untyped_storage().data_ptr(), one.untyped_storage().nbytes()) for one in buffers],
    }
    print(json.dumps({"case": case, "tid": threading.get_native_id(), "truth": truth}), flush=True)
    scheduler.event_loop_normal()


for case, size, page_size in [("tokens", 10_007, 1), ("pages", 6400, 64)]:
    scheduler = made.Scheduler(size, page_size, made.RadixCache())
    allocator, pages = scheduler.token_to_kv_pool_allocator, size // page_size
    taken, allocator.free_pages = allocator.free_pages[: pages // 3], allocator.free_pages[pages // 3 :]
    allocator.release_pages = torch.cat((allocator.release_pages, taken[:7]))
    scheduler.tree_cache.evictable_size_ = 11 * page_size
    scheduler.tree_cache.protected_size_ = 5 * page_size
    scheduler.running_batch.reqs += [1, 2, 3]
    scheduler.waiting_queue += [4]
    stop(case, scheduler)

stop("no prefixes", made.Scheduler(500, 1, made.ChunkCache()))
over = made.Scheduler(500, 1, made.RadixCache())
over.tree_cache.evictable_size_ = 1
stop("more than there are", over)
two = made.Scheduler(500, 1, made.RadixCache())
two.token_to_kv_pool_allocator.full_attn_allocator = two.token_to_kv_pool_allocator
stop("two pools", two)
