// A librmm with the function names, arguments and layout of RAPIDS 26.10 (the same test checks them against its file), and working pools: their memory
// comes from the driver or from another pool. It throws if a pool cannot grant an allocation, through the functions that memwatch probes.
//
// pools.py calls the functions without a namespace, which have C linkage; `stats` returns a pool's own counts.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

// Functions of the driver.
extern "C" int cuMemAlloc_v2(uint64_t *address, size_t bytes);
extern "C" int cuMemFree_v2(uint64_t address);

namespace rmm {
inline namespace _RMM_26_10 {
struct out_of_memory : std::bad_alloc {};

namespace mr::detail {
struct block {
    char *pointer;
    size_t bytes;
    bool is_head;
};
struct split_block {
    block allocated, remainder;
};
struct block_base {
    void *pointer;
};

// Common part of all pools: the source of their memory, and their free pieces.
struct memory {
    std::mutex lock;
    memory *upstream = nullptr;
    std::map<char *, size_t> free;
    std::vector<std::pair<uint64_t, size_t>> segments;
    size_t in_use = 0, peak = 0, granted = 0, live = 0, size = 0;

    virtual ~memory() = default;
    virtual char *allocate(size_t bytes) = 0;
    virtual void deallocate(char *pointer, size_t bytes) = 0;

    static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

    char *segment(size_t bytes) {
        uint64_t address = 0;
        if (upstream) {
            address = reinterpret_cast<uint64_t>(upstream->allocate(bytes));
        } else if (cuMemAlloc_v2(&address, bytes)) {
            throw out_of_memory();
        }
        segments.emplace_back(address, bytes);
        size += bytes;
        return reinterpret_cast<char *>(address);
    }

    void give_back() {
        for (auto [address, bytes] : segments) {
            if (upstream) {
                upstream->deallocate(reinterpret_cast<char *>(address), bytes);
            } else {
                cuMemFree_v2(address);
            }
        }
        segments.clear();
        free.clear();
    }

    void count(size_t bytes) {
        in_use += bytes, granted += 1, live += 1;
        peak = in_use > peak ? in_use : peak;
    }

    // Takes the first free piece that is large enough.
    block take(size_t bytes, size_t grow) {
        for (int attempt = 0; attempt < 2; ++attempt) {
            for (auto [pointer, size] : free) {
                if (size >= bytes) {
                    free.erase(pointer);
                    return {pointer, size, false};
                }
            }
            free[segment(bytes > grow ? bytes : grow)] = bytes > grow ? bytes : grow;
        }
        throw out_of_memory();
    }
};

// Puts the counter at its offset in the real classes.
struct alignas(16) counted {
    char before[0xd0];
    size_t counter = 0;
    memory *whole = nullptr;
};

struct pool_memory_resource_impl : counted {
    void initialize_pool(size_t bytes, std::optional<size_t> most);
    split_block allocate_from_block(block const &from, size_t bytes);
    block free_block(void *pointer, size_t bytes) noexcept;
    void release();
    size_t pool_size() const;
};

struct fixed_size_memory_resource_impl : counted {
    explicit fixed_size_memory_resource_impl(size_t block_bytes);
    block_base allocate_from_block(block_base const &from, size_t bytes);
    block_base free_block(void *pointer, size_t bytes) noexcept;
    void release();
    size_t get_block_size() const;
};

struct arena_memory_resource_impl : counted {
    void *allocate(void *stream, size_t bytes, size_t alignment);
    void deallocate(void *stream, void *pointer, size_t bytes, size_t alignment) noexcept;
};

// Signatures as in the file of 26.10; only the effects visible to callers are implemented.
void pool_memory_resource_impl::initialize_pool(size_t, std::optional<size_t>) { counter = 0; }
split_block pool_memory_resource_impl::allocate_from_block(block const &from, size_t bytes) {
    block rest = from.bytes > bytes ? block{from.pointer + bytes, from.bytes - bytes, false} : block{};
    return {{from.pointer, bytes, from.is_head}, rest};
}
block pool_memory_resource_impl::free_block(void *pointer, size_t bytes) noexcept { return {static_cast<char *>(pointer), bytes, false}; }
void pool_memory_resource_impl::release() { whole->give_back(); }
size_t pool_memory_resource_impl::pool_size() const { return counter; }

fixed_size_memory_resource_impl::fixed_size_memory_resource_impl(size_t block_bytes) { counter = block_bytes; }
block_base fixed_size_memory_resource_impl::allocate_from_block(block_base const &from, size_t) { return from; }
block_base fixed_size_memory_resource_impl::free_block(void *pointer, size_t) noexcept { return {pointer}; }
void fixed_size_memory_resource_impl::release() { whole->give_back(); }
size_t fixed_size_memory_resource_impl::get_block_size() const { return counter; }

void *arena_memory_resource_impl::allocate(void *, size_t bytes, size_t) {
    if (bytes == 0) {
        return nullptr;
    }
    if (bytes > size_t{1} << 40) {
        throw out_of_memory();
    }
    block found = whole->take(memory::aligned(bytes), 4 << 20);
    whole->count(memory::aligned(bytes));
    if (found.bytes > memory::aligned(bytes)) {
        whole->free[found.pointer + memory::aligned(bytes)] = found.bytes - memory::aligned(bytes);
    }
    return found.pointer;
}
void arena_memory_resource_impl::deallocate(void *, void *pointer, size_t bytes, size_t) noexcept {
    whole->free[static_cast<char *>(pointer)] = memory::aligned(bytes);
    whole->in_use -= memory::aligned(bytes), whole->live -= 1;
}

struct pool : memory {
    pool_memory_resource_impl object;
    size_t grow;

    pool(memory *above, size_t bytes) : grow(bytes) {
        upstream = above, object.whole = this;
        object.initialize_pool(bytes, std::nullopt);
    }
    ~pool() override { object.release(); }
    char *allocate(size_t bytes) override {
        std::lock_guard held(lock);
        block found = take(aligned(bytes), grow);
        object.counter = size;
        split_block split = object.allocate_from_block(found, aligned(bytes));
        if (split.remainder.pointer) {
            free[split.remainder.pointer] = split.remainder.bytes;
        }
        count(aligned(bytes));
        return split.allocated.pointer;
    }
    void deallocate(char *pointer, size_t bytes) override {
        std::lock_guard held(lock);
        block freed = object.free_block(pointer, aligned(bytes));
        free[freed.pointer] = freed.bytes;
        in_use -= aligned(bytes), live -= 1;
    }
};

struct fixed : memory {
    fixed_size_memory_resource_impl object;

    fixed(memory *above, size_t block_bytes) : object(block_bytes) { upstream = above, object.whole = this; }
    ~fixed() override { object.release(); }
    char *allocate(size_t bytes) override {
        std::lock_guard held(lock);
        size_t own = object.counter;
        if (aligned(bytes) > own) {
            throw out_of_memory();
        }
        block found = take(own, 16 * own);
        if (found.bytes > own) {
            free[found.pointer + own] = found.bytes - own;
        }
        count(own);
        return static_cast<char *>(object.allocate_from_block({found.pointer}, aligned(bytes)).pointer);
    }
    void deallocate(char *pointer, size_t bytes) override {
        std::lock_guard held(lock);
        object.free_block(pointer, aligned(bytes));
        free[pointer] = object.counter;
        in_use -= object.counter, live -= 1;
    }
};

struct arena : memory {
    arena_memory_resource_impl object;

    arena(memory *above, size_t) { upstream = above, object.whole = this; }
    ~arena() override { give_back(); }
    char *allocate(size_t bytes) override { return static_cast<char *>(object.allocate(nullptr, bytes, 256)); }
    void deallocate(char *pointer, size_t bytes) override { object.deallocate(nullptr, pointer, bytes, 256); }
};
} // namespace mr::detail
} // namespace _RMM_26_10
} // namespace rmm

using rmm::mr::detail::memory;

extern "C" {
memory *make(int sort, memory *above, size_t bytes) {
    switch (sort) {
    case 0:
        return new rmm::mr::detail::pool(above, bytes);
    case 1:
        return new rmm::mr::detail::fixed(above, bytes);
    default:
        return new rmm::mr::detail::arena(above, bytes);
    }
}
void end(memory *whole) { delete whole; }
// Returns null if the pool threw.
void *allocate(memory *whole, size_t bytes) {
    try {
        return whole->allocate(bytes);
    } catch (rmm::out_of_memory const &) {
        return nullptr;
    }
}
void deallocate(memory *whole, void *pointer, size_t bytes) { whole->deallocate(static_cast<char *>(pointer), bytes); }
void stats(memory *whole, size_t numbers[5]) {
    numbers[0] = whole->in_use, numbers[1] = whole->peak, numbers[2] = whole->granted, numbers[3] = whole->live, numbers[4] = whole->size;
}

// Functions for PyTorch's pluggable allocator.
memory *for_torch = nullptr;
void give_torch(memory *whole) { for_torch = whole; }
void *torch_allocate(ptrdiff_t bytes, int, void *) { return allocate(for_torch, static_cast<size_t>(bytes)); }
void torch_free(void *pointer, ptrdiff_t bytes, int, void *) { deallocate(for_torch, pointer, static_cast<size_t>(bytes)); }
}
