"""The CUDA driver API, called as a program without the runtime calls it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from gpucheck import library

_POOL_THRESHOLD = 4
_POOL_RESERVED = 5
_POOL_USED = 7
_NEVER = 2**64 - 1


class CudaError(Exception):
    """A driver call that was refused."""


class IpcHandle(ctypes.Structure):
    """What one process gives another to open its memory; passed by value."""

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
    """The newest CUDA that the driver serves; needs no GPU."""
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
        """How many devices there are."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def use(self, ordinal: int) -> None:
        """All that follows concerns this device."""
        self.call("cuDeviceGet", byref(self.device), c_int(ordinal))

    def enable_peer(self, ordinal: int) -> None:
        """The current context may use the memory of another device's primary one."""
        other, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(other), c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", byref(context), other)
        self.call("cuCtxEnablePeerAccess", context, c_uint(0))

    def create_physical(self, size_bytes: int, place: int, number: int) -> int:
        """cuMemCreate of pinned memory: at 1 of this device, 2 of the host, 3 of the host's node of that number."""
        properties = AllocationProperties(type=1, place=place, number=number)
        handle = c_uint64()
        self.call("cuMemCreate", byref(handle), c_size_t(size_bytes), byref(properties), c_uint64(0))
        return handle.value

    def call(self, symbol: str, *arguments: object) -> None:
        """Calls a function. CudaError where it answers anything but 0."""
        status = getattr(self.lib, symbol)(*arguments)
        if status != 0:
            raise CudaError(f"{symbol} answered {status}")

    def uuid(self) -> str:
        """The device's UUID, as NVML writes it."""
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", byref(raw), self.device)
        text = bytes(raw).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def version(self) -> int:
        """The newest CUDA that the driver serves: 1000 * major + 10 * minor."""
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def retain_context(self) -> c_void_p:
        """The primary context, not yet current."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        return context

    def enter(self) -> None:
        """Makes the primary context current on this thread."""
        self.call("cuCtxSetCurrent", self.retain_context())

    def synchronize(self) -> None:
        """Waits for everything; a pool gives memory back only here."""
        self.call("cuCtxSynchronize")

    def device_used_bytes(self) -> int:
        """What all processes together use, as cuMemGetInfo reports it."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return total.value - free.value

    def alloc(self, size_bytes: int) -> int:
        """cuMemAlloc."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        """cuMemFree."""
        self.call("cuMemFree_v2", c_uint64(pointer))

    def ipc_handle(self, pointer: int) -> bytes:
        """What another process needs to open this memory."""
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", byref(handle), c_uint64(pointer))
        return bytes(handle.bytes)

    def ipc_open(self, handle: bytes) -> int:
        """Opens another process's memory."""
        pointer = c_uint64()
        self.call("cuIpcOpenMemHandle_v2", byref(pointer), IpcHandle.from_buffer_copy(handle), c_uint(1))
        return pointer.value


class Pool:
    """The device's default pool, reported to keep everything, as PyTorch reports it."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = c_void_p()
        driver.call("cuDeviceGetDefaultMemPool", byref(self.handle), driver.device)
        driver.call("cuMemPoolSetAttribute", self.handle, c_int(_POOL_THRESHOLD), byref(c_uint64(_NEVER)))

    def alloc(self, size_bytes: int) -> int:
        """cuMemAllocAsync on the default stream."""
        pointer = c_uint64()
        self.driver.call("cuMemAllocAsync", byref(pointer), c_size_t(size_bytes), c_void_p(0))
        return pointer.value

    def empty(self, pointers: list[int]) -> None:
        """Frees these and lets the pool give back what it keeps."""
        for pointer in pointers:
            self.driver.call("cuMemFreeAsync", c_uint64(pointer), c_void_p(0))
        self.driver.synchronize()
        self.driver.call("cuMemPoolTrimTo", self.handle, c_size_t(0))

    def _attribute(self, number: int) -> int:
        value = c_uint64()
        self.driver.call("cuMemPoolGetAttribute", self.handle, c_int(number), byref(value))
        return value.value

    def reserved_bytes(self) -> int:
        """What the pool holds of the device."""
        return self._attribute(_POOL_RESERVED)

    def used_bytes(self) -> int:
        """What allocations hold of the pool."""
        return self._attribute(_POOL_USED)
