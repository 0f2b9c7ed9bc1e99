"""Calls functions in the library file of RAPIDS' memory manager, and only maps that of CuPy: both need a real driver for anything more.

The called functions of a pool access only the pool object, which this program makes up, and the address of a block from the driver.
--wait waits for a line at each checkpoint.
"""

import ctypes as c
import glob
import json
import mmap
import os
import sys

MIB = 1 << 20
PREFIX = "_ZN3rmm10_RMM_26_102mr6detail"
POOL, FIXED = PREFIX + "25pool_memory_resource_impl", PREFIX + "31fixed_size_memory_resource_impl"
# Offset of the size in a pool, and of the block size in a pool with blocks of one size.
COUNTER = 0xD0


def of_package(pattern):
    """Returns a file in one of the folders where Python looks for packages."""
    return next(path for folder in sys.path for path in glob.glob(os.path.join(folder, pattern)))


def checkpoint(label, pools=()):
    print(json.dumps({"label": label, "pools": list(pools)}), flush=True)
    if "--wait" in sys.argv:
        sys.stdin.readline()


def driver():
    """Allocates memory of the driver on the first GPU."""
    context, address = c.c_void_p(), c.c_uint64()
    cuda = c.CDLL("libcuda.so.1")
    done = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0), cuda.cuCtxSetCurrent(context)]
    if any([*done, cuda.cuMemAlloc_v2(c.byref(address), c.c_size_t(8 * MIB))]):
        sys.exit("no CUDA driver")
    return address.value


def main():
    c.CDLL(of_package("rapids_logger/lib64/librapids_logger.so"), c.RTLD_GLOBAL)
    rmm = c.CDLL(of_package("librmm/lib64/librmm.so"))
    with open(of_package("cupy/cuda/memory.cpython-*.so"), "rb") as module:
        cupy = mmap.mmap(module.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
    checkpoint("files")
    address = driver()
    pool, fixed, result = c.create_string_buffer(4096), c.create_string_buffer(4096), c.create_string_buffer(256)
    at = c.addressof
    word = lambda value: value.to_bytes(8, "little")
    whole = c.create_string_buffer(word(address) + word(8 * MIB) + word(1))
    sized = c.c_size_t
    # With an initial size of zero, the pool allocates nothing.
    getattr(rmm, POOL + "15initialize_poolEmSt8optionalImE")(c.c_void_p(at(pool)), sized(0), sized(0), sized(0))
    pool[COUNTER : COUNTER + 8] = word(8 * MIB)
    fixed[COUNTER : COUNTER + 8] = word(65536)
    grant = getattr(rmm, POOL + "19allocate_from_blockERKNS2_5blockEm")
    back = getattr(rmm, POOL + "10free_blockEPvm")
    places = [c.c_void_p(at(one)) for one in (result, pool, whole)]
    grant(*places, sized(MIB))
    whole[0:16] = result[24:40]
    grant(*places, sized(4096))
    back(places[0], places[1], c.c_void_p(address), sized(MIB))
    whole[0:16] = word(address + 4 * MIB) + word(65536)
    getattr(rmm, FIXED + "19allocate_from_blockERKNS2_10block_baseEm")(c.c_void_p(at(fixed)), places[2], sized(1024))
    exact = {"kind": "pool", "known_bytes": 4096, "pool_bytes": 8 * MIB, "block_bytes": None, "exact": True}
    of_one_size = {"kind": "fixed_size", "known_bytes": 65536, "pool_bytes": 8 * MIB, "block_bytes": 65536, "exact": True}
    checkpoint("blocks", (exact, of_one_size))
    cupy.close()
    os._exit(0)


main()
