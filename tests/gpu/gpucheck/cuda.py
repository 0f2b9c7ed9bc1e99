"""The CUDA driver API, called directly as by a program without the runtime."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from gpucheck import library

_POOL_THRESHOLD = 4
_POOL_RESERVED = 5
_POOL_USED = 7
_NEVER = 2**64 - 1


class CudaError(Exception):
    """A driver call that returned an error."""


class IpcHandle(ctypes.Structure):
    """The handle with which another process opens memory; passed by value."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp (cuda.h, 12.0)."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("place", c_int),
        ("number", c_int),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def driver_version() -> tuple[int, int]:
    """Returns the newest CUDA version that the driver supports; needs no GPU."""
    version = c_int()
    library.load(library.DRIVER).cuDriverGetVersion(byref(version))
    return version.value // 1000, version.value % 1000 // 10


class Driver:
    """The loaded driver after cuInit, and its first device."""

    def __init__(self) -> None:
        self.lib = library.load(library.DRIVER)
        self.call("cuInit", c_uint(0))
        device = c_int()
        self.call("cuDeviceGet", byref(device), c_int(0))
        self.device = device

    def count(self) -> int:
        """Returns the number of devices."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def use(self, ordinal: int) -> None:
        """Selects the device for all later calls."""
        self.call("cuDeviceGet", byref(self.device), c_int(ordinal))

    def enable_peer(self, ordinal: int) -> None:
        """Gives the current context access to the memory of another device's primary context."""
        other, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(other), c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", byref(context), other)
        self.call("cuCtxEnablePeerAccess", context, c_uint(0))

    def create_physical(self, size_bytes: int, place: int, number: int) -> int:
        """Calls cuMemCreate for pinned memory; place 1 is this device, 2 the host, 3 the host's NUMA node with this number."""
        properties = AllocationProperties(type=1, place=place, number=number)
        handle = c_uint64()
        self.call("cuMemCreate", byref(handle), c_size_t(size_bytes), byref(properties), c_uint64(0))
        return handle.value

    def call(self, symbol: str, *arguments: object) -> None:
        """Calls a function. Raises CudaError unless it returns 0."""
        status = getattr(self.lib, symbol)(*arguments)
        if status != 0:
            raise CudaError(f"{symbol} answered {status}")

    def uuid(self) -> str:
        """Returns the device's UUID in NVML's form."""
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", byref(raw), self.device)
        text = bytes(raw).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def version(self) -> int:
        """Returns the newest CUDA version that the driver supports: 1000 * major + 10 * minor."""
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def retain_context(self) -> c_void_p:
        """Retains the primary context without making it current."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        return context

    def enter(self) -> None:
        """Makes the primary context current on this thread."""
        self.call("cuCtxSetCurrent", self.retain_context())

    def synchronize(self) -> None:
        """Waits for all work; a pool releases memory only here."""
        self.call("cuCtxSynchronize")

    def device_used_bytes(self) -> int:
        """Returns the memory used by all processes, as reported by cuMemGetInfo."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return total.value - free.value

    def alloc(self, size_bytes: int) -> int:
        """Calls cuMemAlloc."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Calls cuMemFree."""
        self.call("cuMemFree_v2", c_uint64(pointer))

    def ipc_handle(self, pointer: int) -> bytes:
        """Returns the handle with which another process opens this memory."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", byref(handle), c_uint64(pointer))
        return bytes(handle.bytes)

    def ipc_open(self, handle: bytes) -> int:
        """Opens another process's memory."""
        pointer = c_uint64()
        self.call("cuIpcOpenMemHandle_v2", byref(pointer), IpcHandle.from_buffer_copy(handle), c_uint(1))
        return pointer.value


class Pool:
    """The device's default pool, configured as PyTorch does, to keep all memory."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = c_void_p()
        driver.call("cuDeviceGetDefaultMemPool", byref(self.handle), driver.device)
        driver.call("cuMemPoolSetAttribute", self.handle, c_int(_POOL_THRESHOLD), byref(c_uint64(_NEVER)))

    def alloc(self, size_bytes: int) -> int:
        """Calls cuMemAllocAsync on the default stream."""
        pointer = c_uint64()
        self.driver.call("cuMemAllocAsync", byref(pointer), c_size_t(size_bytes), c_void_p(0))
        return pointer.value

    def empty(self, pointers: list[int]) -> None:
        """Frees these pointers and makes the pool release the memory that it keeps."""
        for pointer in pointers:
            self.driver.call("cuMemFreeAsync", c_uint64(pointer), c_void_p(0))
        self.driver.synchronize()
        self.driver.call("cuMemPoolTrimTo", self.handle, c_size_t(0))

    def _attribute(self, number: int) -> int:
        value = c_uint64()
        self.driver.call("cuMemPoolGetAttribute", self.handle, c_int(number), byref(value))
        return value.value

    def reserved_bytes(self) -> int:
        """Returns the device memory that the pool holds."""
        return self._attribute(_POOL_RESERVED)

    def used_bytes(self) -> int:
        """Returns the bytes of the pool that allocations use."""
        return self._attribute(_POOL_USED)
