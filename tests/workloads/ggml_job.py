"""Uses ggml's own library as llama.cpp does: buffers for weights, a cache and a graph. It stops at checkpoints and prints what ggml reports.

Options: --wait waits for a line at each checkpoint; --early adds a stop before anything is allocated.
"""

import ctypes as c
import json
import os
import sys

# `ggml_type` (ggml.h).
F32, F16, Q8_0 = 0, 1, 8
# `ggml_backend_buffer_usage` (ggml-backend.h).
ANY, WEIGHTS, COMPUTE = 0, 1, 2
USAGES = {ANY: "other", WEIGHTS: "weights", COMPUTE: "compute"}
MIB = 1 << 20


class Parameters(c.Structure):
    """`ggml_init_params`."""

    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


def library(name, functions):
    """Loads a library of ggml and declares that these functions return a pointer."""
    folder = next(path for path in sys.path if os.path.exists(os.path.join(path, name)))
    loaded = c.CDLL(os.path.join(folder, name), c.RTLD_GLOBAL)
    for function in functions:
        getattr(loaded, function).restype = c.c_void_p
    return loaded


BASE = library(
    "libggml-base.so",
    (
        "ggml_backend_alloc_ctx_tensors_from_buft",
        "ggml_backend_buft_alloc_buffer",
        "ggml_backend_buft_get_device",
        "ggml_backend_cpu_buffer_type",
        "ggml_init",
        "ggml_new_tensor_2d",
    ),
)
CUDA = library("libggml-cuda.so", ("ggml_backend_cuda_buffer_type", "ggml_backend_cuda_host_buffer_type"))
BASE.ggml_backend_buffer_get_size.restype = c.c_size_t
BASE.ggml_nbytes.restype = c.c_size_t


class Pool:
    """CUDA's pool for temporary memory of a graph, called by its virtual functions: two destructors, `alloc`, `free`."""

    def __init__(self):
        # The function returns a `unique_ptr` in space that the caller provides. Older versions have no pools per stream.
        name = "_ZN25ggml_backend_cuda_context19new_pool_for_deviceEi"
        new = CUDA[name + "i"] if hasattr(CUDA, name + "i") else CUDA[name]
        self.address = c.c_void_p()
        new(c.byref(self.address), 0, 0)
        functions = c.c_void_p.from_address(self.address.value).value
        entry = lambda at, *words: c.CFUNCTYPE(*words)(c.c_void_p.from_address(functions + 8 * at).value)
        self.delete = entry(1, None, c.c_void_p)
        self.alloc = entry(2, c.c_void_p, c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t))
        self.free = entry(3, None, c.c_void_p, c.c_void_p, c.c_size_t)
        self.pieces, self.bytes = 0, 0

    def use(self, sizes):
        """Allocates pieces of all these sizes, then frees them."""
        held = []
        for size in sizes:
            actual = c.c_size_t()
            held.append((self.alloc(self.address, size, c.byref(actual)), actual.value))
            lacking = sum(size for _, size in held) - self.bytes
            if lacking > 0:
                self.pieces += 1
                self.bytes += -(-lacking // (2 * MIB)) * 2 * MIB
        for address, size in reversed(held):
            self.free(self.address, address, size)


class Job:
    """The buffers of the program on the device, and their peak."""

    def __init__(self):
        self.device = c.c_void_p(CUDA.ggml_backend_cuda_buffer_type(0))
        self.buffers, self.peak, self.made, self.tensors, self.pool = [], 0, 0, {}, None

    def compute(self, sizes):
        self.pool = self.pool or Pool()
        before = self.pool.pieces
        self.pool.use(sizes)
        self.made += self.pool.pieces - before
        self.peak = max(self.peak, self.bytes() + self.pool.bytes)

    def drop_pool(self):
        self.pool.delete(self.pool.address)
        self.pool = None

    def add(self, buffer, usage):
        BASE.ggml_backend_buffer_set_usage(buffer, usage)
        self.buffers.append(buffer)
        self.made += 1
        self.peak = max(self.peak, self.bytes() + (self.pool.bytes if self.pool else 0))
        return buffer

    def free(self, buffer):
        self.buffers.remove(buffer)
        self.tensors.pop(buffer.value, None)
        BASE.ggml_backend_buffer_free(buffer)

    def bytes(self, usage=None):
        own = [one for one in self.buffers if usage in (None, BASE.ggml_backend_buffer_get_usage(one))]
        return sum(BASE.ggml_backend_buffer_get_size(one) for one in own)

    def with_tensors(self, shapes, usage):
        """Allocates a buffer with these tensors, each given by name, type, width and height."""
        context = c.c_void_p(BASE.ggml_init(Parameters(MIB, None, True)))
        sizes = {}
        for name, kind, width, height in shapes:
            tensor = c.c_void_p(BASE.ggml_new_tensor_2d(context, kind, c.c_int64(width), c.c_int64(height)))
            BASE.ggml_set_name(tensor, name.encode())
            sizes[name] = BASE.ggml_nbytes(tensor)
        buffer = c.c_void_p(BASE.ggml_backend_alloc_ctx_tensors_from_buft(context, self.device))
        self.tensors[buffer.value] = sizes
        BASE.ggml_free(context)
        return self.add(buffer, usage)

    def plain(self, size, usage):
        return self.add(c.c_void_p(BASE.ggml_backend_buft_alloc_buffer(self.device, c.c_size_t(size))), usage)

    def stats(self):
        free, total = c.c_size_t(), c.c_size_t()
        device = c.c_void_p(BASE.ggml_backend_buft_get_device(self.device))
        BASE.ggml_backend_dev_memory(device, c.byref(free), c.byref(total))
        by_usage = {f"{name}_bytes": self.bytes(usage) for usage, name in USAGES.items()}
        # ggml has no usage flag for caches; their tensors have the names that llama.cpp gives them.
        caches = [one for one in self.buffers if any(name.startswith("cache_") for name in self.tensors.get(one.value, ()))]
        by_usage["kv_cache_bytes"] = sum(BASE.ggml_backend_buffer_get_size(one) for one in caches)
        by_usage["other_bytes"] -= by_usage["kv_cache_bytes"]
        pieces, by_usage["scratch_bytes"] = (self.pool.pieces, self.pool.bytes) if self.pool else (0, 0)
        in_use = self.bytes() + by_usage["scratch_bytes"]
        own = {"buffers": len(self.buffers) + pieces, "num_buffers": self.made, "bytes_in_use": in_use}
        return {**own, "peak_bytes_in_use": self.peak, **by_usage, "device_free": free.value, "device_total": total.value}


def checkpoint(label, job):
    tensors = {name: size for sizes in job.tensors.values() for name, size in sizes.items()}
    print(json.dumps({"label": label, "stats": job.stats(), "tensors": tensors}), flush=True)
    if "--wait" in sys.argv:
        sys.stdin.readline()


def in_host_memory():
    """Allocates host buffers: one in pageable memory, and one pinned for the device."""
    kinds = (BASE.ggml_backend_cpu_buffer_type(), CUDA.ggml_backend_cuda_host_buffer_type())
    buffers = [c.c_void_p(BASE.ggml_backend_buft_alloc_buffer(c.c_void_p(kind), c.c_size_t(2 * MIB))) for kind in kinds]
    for buffer in buffers:
        BASE.ggml_backend_buffer_set_usage(buffer, WEIGHTS)
    return buffers


def main():
    job = Job()
    if "--early" in sys.argv:
        print(json.dumps({"label": "library"}), flush=True)
        sys.stdin.readline()
    shapes = [("token_embd.weight", F16, 1024, 4096), ("blk.0.attn_q.weight", Q8_0, 1024, 1024), ("blk.0.ffn_up.weight", F32, 512, 512)]
    weights = job.with_tensors(shapes, WEIGHTS)
    host = in_host_memory()
    checkpoint("weights", job)
    cache = job.with_tensors([("cache_k_l0", F16, 1024, 2048), ("cache_v_l0", F16, 1024, 2048)], ANY)
    checkpoint("cache", job)
    graph = job.plain(33 * MIB, COMPUTE)
    job.compute([3 * MIB, 1000])
    checkpoint("graph", job)
    job.free(graph)
    graph = job.plain(48 * MIB, COMPUTE)
    job.compute([3 * MIB, 5 * MIB + 1, 100])
    job.compute([7 * MIB])
    checkpoint("larger graph", job)
    job.free(cache)
    cache = job.with_tensors([("cache_k_l0", F16, 1024, 1024), ("cache_v_l0", F16, 1024, 1024)], ANY)
    for buffer in host:
        BASE.ggml_backend_buffer_free(buffer)
    checkpoint("shorter cache", job)
    for buffer in (weights, cache, graph):
        job.free(buffer)
    job.drop_pool()
    checkpoint("end", job)
    # Skips the regular exit of the libraries, which calls functions that the stand-ins lack.
    os._exit(0)


main()
