// A working pool with the function names, arguments and layout of CuPy's `cupy.cuda.memory` 14.2.0 (the same test checks them against CuPy's file).
//
// pools.py calls the functions without a prefix, which have C linkage; `stats` returns the pool's own counts.
#include <cstddef>
#include <cstdint>
#include <map>

// Functions of the driver.
extern "C" int cuMemAlloc_v2(uint64_t *address, size_t bytes);
extern "C" int cuMemFree_v2(uint64_t address);

struct _object {
    ptrdiff_t references;
    void *type;
};
typedef _object PyObject;
// The layout of `PyWeakReference`.
struct Weak : _object {
    PyObject *object;
};

struct __pyx_obj_4cupy_4cuda_6memory_BaseMemory : _object {
    uint64_t address;
    size_t bytes;
    int device;
};
struct __pyx_obj_4cupy_4cuda_6memory__Chunk : _object {
    void *table;
    __pyx_obj_4cupy_4cuda_6memory_BaseMemory *memory;
    ptrdiff_t offset;
    size_t bytes;
    void *arena;
};
struct __pyx_obj_4cupy_4cuda_6memory_PooledMemory : __pyx_obj_4cupy_4cuda_6memory_BaseMemory {
    void *identity;
    PyObject *pool;
    void *table;
    __pyx_obj_4cupy_4cuda_6memory__Chunk *chunk;
};
struct __pyx_obj_4cupy_4cuda_6memory_SingleDeviceMemoryPool : _object {
    char before[0x40];
    size_t total;
    size_t used;
    size_t limit;
};
using Chunk = __pyx_obj_4cupy_4cuda_6memory__Chunk;
using Memory = __pyx_obj_4cupy_4cuda_6memory_BaseMemory;
using Pool = __pyx_obj_4cupy_4cuda_6memory_SingleDeviceMemoryPool;

__attribute__((noipa)) static PyObject *
__pyx_f_4cupy_4cuda_6memory_12PooledMemory__init(__pyx_obj_4cupy_4cuda_6memory_PooledMemory *self, Chunk *chunk, PyObject *pool) {
    chunk->references += 1;
    self->chunk = chunk;
    self->address = chunk->memory->address + chunk->offset;
    self->bytes = chunk->bytes;
    self->device = chunk->memory->device;
    self->pool = pool;
    return self;
}
__attribute__((noipa)) static PyObject *__pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_free(Pool *self, Chunk *chunk) {
    __atomic_sub_fetch(&self->used, chunk->bytes, __ATOMIC_SEQ_CST);
    return self;
}
__attribute__((noipa)) static size_t __pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_used_bytes(Pool *self, int) { return self->used; }
__attribute__((noipa)) static size_t __pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_total_bytes(Pool *self, int) { return self->total; }

namespace {
struct Whole {
    Pool pool = {};
    Weak weak = {};
    std::map<uint64_t, Chunk *> free, live;
    size_t peak = 0, granted = 0;

    Whole() { weak.object = &pool; }
};

size_t rounded(size_t bytes) { return (bytes + 511) / 512 * 512; }
} // namespace

extern "C" {
Whole *make(int, Whole *, size_t) { return new Whole(); }
// Returns the free chunks to the driver; all chunks are free by then.
void end(Whole *whole) {
    for (auto [address, chunk] : whole->free) {
        if (chunk->offset == 0) {
            cuMemFree_v2(address);
        }
    }
    delete whole;
}
void *allocate(Whole *whole, size_t wanted) {
    size_t bytes = rounded(wanted);
    Chunk *found = nullptr;
    for (auto [address, chunk] : whole->free) {
        if (chunk->bytes >= bytes) {
            found = chunk;
            whole->free.erase(address);
            break;
        }
    }
    if (!found) {
        Memory *memory = new Memory();
        memory->bytes = bytes;
        if (cuMemAlloc_v2(&memory->address, bytes)) {
            delete memory;
            return nullptr;
        }
        whole->pool.total += bytes;
        found = new Chunk();
        found->memory = memory, found->bytes = bytes;
    } else if (found->bytes > bytes) {
        Chunk *rest = new Chunk(*found);
        rest->offset += bytes, rest->bytes -= bytes;
        found->bytes = bytes;
        whole->free[rest->memory->address + rest->offset] = rest;
    }
    __atomic_add_fetch(&whole->pool.used, bytes, __ATOMIC_SEQ_CST);
    __pyx_obj_4cupy_4cuda_6memory_PooledMemory memory = {};
    __pyx_f_4cupy_4cuda_6memory_12PooledMemory__init(&memory, found, &whole->weak);
    whole->live[memory.address] = found;
    whole->granted += 1;
    size_t used = __pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_used_bytes(&whole->pool, 0);
    whole->peak = used > whole->peak ? used : whole->peak;
    return reinterpret_cast<void *>(memory.address);
}
void deallocate(Whole *whole, void *pointer, size_t) {
    uint64_t address = reinterpret_cast<uint64_t>(pointer);
    Chunk *chunk = whole->live[address];
    __pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_free(&whole->pool, chunk);
    whole->live.erase(address);
    whole->free[address] = chunk;
}
void stats(Whole *whole, size_t numbers[5]) {
    numbers[0] = __pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_used_bytes(&whole->pool, 0);
    numbers[1] = whole->peak, numbers[2] = whole->granted, numbers[3] = whole->live.size();
    numbers[4] = __pyx_f_4cupy_4cuda_6memory_22SingleDeviceMemoryPool_total_bytes(&whole->pool, 0);
}
}
