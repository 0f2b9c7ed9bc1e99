"""Stand-ins for the schedulers of inference servers, with the released modules, names and layouts.

Each case prints what is true of it, and stops: in a method of the engine, or elsewhere.
"""

import collections
import gc
import heapq
import json
import os
import sys
import threading
import types


def module(name, **names):
    """Makes a module in which classes can be defined."""
    made = types.ModuleType(name)
    vars(made).update(names)
    sys.modules[name] = made
    return vars(made)


POOL = """
import collections

class KVCacheBlock:
    {slots}
    def __init__(self, block_id):
        self.block_id = block_id
        self.ref_cnt = 0
        self._block_hash = None
        self.prev_free_block = None
        self.next_free_block = None
        self.is_null = False

class FreeKVCacheBlockQueue:
    def __init__(self, blocks):
        self.free = collections.deque(blocks)
        self.num_free_blocks = len(blocks)
        self.fake_free_list_head = KVCacheBlock(-1)

    def popleft(self):
        self.num_free_blocks -= 1
        return self.free.popleft()

    def append(self, block):
        self.num_free_blocks += 1
        self.free.append(block)

class BlockHashToBlockMap:
    def __init__(self):
        self._cache = {{}}

class BlockPool:
    def __init__(self, num_gpu_blocks):
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = True
        self.blocks = [KVCacheBlock(index) for index in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True

    def take(self):
        block = self.free_block_queue.popleft()
        block.ref_cnt = 1
        return block

    def give(self, block, digest):
        block._block_hash = digest
        block.ref_cnt = 0
        self.free_block_queue.append(block)
"""

SCHEDULER = """
import collections

class FCFSRequestQueue(collections.deque):
    pass

class PriorityRequestQueue:
    def __init__(self):
        self._heap = []

class SingleTypeManager:
    def __init__(self):
        self.req_to_blocks = collections.defaultdict(list)

class Coordinator:
    def __init__(self):
        self.single_type_managers = (SingleTypeManager(), SingleTypeManager())

class KVCacheTensor:
    def __init__(self, size, layer):
        self.size, self.shared_by = size, [layer]

class KVCacheSpec:
    def __init__(self):
        self.block_size = 16

class KVCacheGroupSpec:
    def __init__(self, layers):
        self.layer_names, self.kv_cache_spec = layers, KVCacheSpec()

class KVCacheConfig:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.kv_cache_tensors = [KVCacheTensor(num_blocks << 20, f"layers.{index}") for index in range(4)]
        self.kv_cache_groups = [KVCacheGroupSpec([f"layers.{index}" for index in range(4)])]

class KVCacheManager:
    def __init__(self, block_pool):
        self.block_pool = block_pool
        self.coordinator = Coordinator()
        self.kv_cache_config = KVCacheConfig(block_pool.num_gpu_blocks)

class Mixin:
    pass

class Scheduler:
    def __init__(self, block_pool, waiting):
        self.requests = {}
        self.waiting = waiting
        self.running = []
        self.kv_cache_manager = KVCacheManager(block_pool)
        self.encoder_cache_manager = None

class AsyncScheduler(Mixin, Scheduler):
    pass
"""

CORE = """
import os

class Executor:
    def __init__(self):
        self.is_sleeping, self.sleeping_tags = False, set()

class EngineCore:
    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.model_executor = Executor()

class EngineCoreProc(EngineCore):
    def run_busy_loop(self):
        os.read(0, 1)
"""


def server(blocks, slots=False, priorities=False):
    """Makes a scheduler with four requests, of which two run."""
    names = "'block_id', 'ref_cnt', '_block_hash', 'prev_free_block', 'next_free_block', 'is_null'"
    pools = module("vllm.v1.core.block_pool")
    exec(POOL.format(slots=f"__slots__ = ({names})" if slots else ""), pools)
    schedulers = module("vllm.v1.core.sched.scheduler")
    exec(SCHEDULER, schedulers)
    exec(CORE, module("vllm.v1.engine.core"))
    waiting = schedulers["PriorityRequestQueue"]() if priorities else schedulers["FCFSRequestQueue"]()
    scheduler = schedulers["AsyncScheduler"](pools["BlockPool"](blocks), waiting)
    pool, manager = scheduler.kv_cache_manager.block_pool, scheduler.kv_cache_manager
    first, second = manager.coordinator.single_type_managers
    for request in ("short", "long", "third", "fourth"):
        scheduler.requests[request] = object()
    scheduler.running += [scheduler.requests["short"], scheduler.requests["long"]]
    queue = waiting._heap if priorities else waiting
    for request in ("third", "fourth"):
        heapq.heappush(queue, 1) if priorities else queue.append(scheduler.requests[request])
    used = [pool.take() for _ in range(blocks // 4)]
    for block in used[:3]:
        block.ref_cnt = 2
    first.req_to_blocks["short"] = used[:5]
    first.req_to_blocks["long"] = used[3:]
    second.req_to_blocks["long"] = used[:2]
    first.req_to_blocks["preempted"] = []
    for digest in [pool.take() for _ in range(blocks // 8)]:
        pool.give(digest, b"digest")
    return scheduler


def truth(scheduler):
    pool = scheduler.kv_cache_manager.block_pool
    blocks = [block for block in pool.blocks if not block.is_null]
    waiting = getattr(scheduler.waiting, "_heap", scheduler.waiting)
    return {
        "blocks": len(blocks),
        "used_blocks": sum(block.ref_cnt > 0 for block in blocks),
        "free_blocks": pool.free_block_queue.num_free_blocks,
        "shared_blocks": sum(block.ref_cnt > 1 for block in blocks),
        "reusable_blocks": sum(block.ref_cnt == 0 and block._block_hash is not None for block in blocks),
        "empty_blocks": sum(block.ref_cnt == 0 and block._block_hash is None for block in blocks),
        "running": len(scheduler.running),
        "waiting": len(waiting) + len(getattr(scheduler, "skipped_waiting", ())),
    }


def forget():
    """Removes the engine's modules."""
    for name in [name for name in sys.modules if name.startswith("vllm")]:
        del sys.modules[name]


def objects(scheduler):
    """Addresses of the objects that a reading passes."""
    manager = getattr(scheduler, "kv_cache_manager", None)
    if manager is None or manager is scheduler:
        return []
    pool, coordinator, config = manager.block_pool, manager.coordinator, manager.kv_cache_config
    group = coordinator.single_type_managers[0]
    first = [scheduler, manager, pool, pool.free_block_queue, pool.blocks, pool.blocks[1], pool.blocks[-1]]
    lists = [scheduler.running, scheduler.waiting, scheduler.requests, coordinator, coordinator.single_type_managers]
    last = [group, group.req_to_blocks, config, config.kv_cache_tensors, config.kv_cache_groups, pool.num_gpu_blocks]
    every = first + lists + last
    return [id(one) for one in every] + [id(type(one)) for one in every]


def stop(case, scheduler=None, in_method=True, true=None):
    """Reports a case and waits: in a method of the engine, or in this function."""
    report = {"case": case, "tid": threading.get_native_id(), "truth": true, "objects": objects(scheduler)}
    print(json.dumps(report), flush=True)
    if in_method:
        core = sys.modules["vllm.v1.engine.core"].EngineCoreProc(scheduler)
        if case == "asleep":
            core.model_executor.is_sleeping, core.model_executor.sleeping_tags = True, {"weights", "kv_cache"}
        if case == "half awake":
            core.model_executor.is_sleeping, core.model_executor.sleeping_tags = True, {"weights"}
        del scheduler
        core.run_busy_loop()
    else:
        os.read(0, 1)
    forget()


def right():
    kinds = [("dicts", {}), ("slots", {"slots": True}), ("priorities", {"priorities": True})]
    for case, options in kinds + [("asleep", {}), ("half awake", {})]:
        scheduler = server(400, **options)
        stop(case, scheduler, true=truth(scheduler))
    skipping = server(400)
    skipping.skipped_waiting = collections.deque([1])
    skipping.requests["fifth"] = 1
    skipping.deferred_waiting = {1, 2, 3}
    stop("skipped", skipping, true=truth(skipping))
    materialised = server(64)
    for block in materialised.kv_cache_manager.block_pool.blocks:
        vars(block)["more"] = 1
    stop("own dicts", materialised, true=truth(materialised))


kept = []


def in_heap():
    kept.append(server(30_000, slots=True))
    gc.collect()
    gc.freeze()
    stop("frozen", in_method=False, true=truth(kept[0]))
    kept.clear()


def wrong():
    many = server(64)
    many.kv_cache_manager.block_pool.free_block_queue.num_free_blocks = 64
    stop("more free than there are", many)
    negative = server(64)
    negative.kv_cache_manager.block_pool.blocks[5].ref_cnt = -1
    stop("negative users", negative)
    huge = server(64)
    huge.kv_cache_manager.block_pool.blocks[5].ref_cnt = 1 << 200
    stop("huge users", huge)
    shorter = server(64)
    shorter.kv_cache_manager.block_pool.blocks.pop()
    stop("shorter list", shorter)
    other = server(64)
    other.kv_cache_manager.block_pool.blocks[7] = types.SimpleNamespace(ref_cnt=0, _block_hash=None)
    stop("other block class", other)
    changing = server(64)
    changing.kv_cache_manager.block_pool.blocks[-1].ref_cnt = 1
    stop("another count", changing)
    longer = server(64)
    pool = longer.kv_cache_manager.block_pool
    pool.blocks = [pool.blocks[1]] * 5_000_001
    pool.num_gpu_blocks = 5_000_001
    stop("too many blocks", longer)
    circle = server(64)
    circle.kv_cache_manager = circle
    stop("circle", circle)
    text = server(64)
    text.kv_cache_manager.block_pool.num_gpu_blocks = "64"
    stop("text for a number", text)
    server(64)
    stop("no scheduler", in_method=False)
    own = server(64)
    sys.modules["program"] = sys.modules.pop("vllm.v1.core.sched.scheduler")
    del sys.modules["vllm.v1.engine.core"]
    stop("classes of the program", in_method=False)
    del own


def moving():
    """A pool that a thread uses all the time."""
    scheduler = server(2000, slots=True)
    pool = scheduler.kv_cache_manager.block_pool
    ends = threading.Event()

    def use():
        taken = collections.deque()
        while not ends.is_set():
            for _ in range(50):
                taken.append(pool.take())
            while len(taken) > 100:
                pool.give(taken.popleft(), b"digest")

    thread = threading.Thread(target=use)
    thread.start()
    stop("moving", scheduler)
    ends.set()
    thread.join()


if __name__ == "__main__":
    right()
    in_heap()
    wrong()
    moving()
