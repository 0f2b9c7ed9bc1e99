"""NVML, as far as it says who uses how much."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p, create_string_buffer

from gpucheck import library

_TOO_SMALL = 7
_UNAVAILABLE = 2**64 - 1
# Which calls list processes; MPS clients stand in a list of their own.
LISTS = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}


class NvmlError(Exception):
    """A call that NVML refused."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class Nvml:
    """NVML after its init, and one device."""

    def __init__(self, uuid: str | None = None) -> None:
        self.lib = library.load(library.NVML)
        self._call("nvmlInit_v2")
        self.device = c_void_p()
        if uuid is None:
            self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(0), byref(self.device))
        else:
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(self.device))

    def _call(self, symbol: str, *arguments: object) -> None:
        function = getattr(self.lib, symbol, None)
        if function is None:
            raise NvmlError(f"{symbol} is not in this NVML")
        status = function(*arguments)
        if status != 0:
            raise NvmlError(f"{symbol} answered {status}")

    def _text(self, symbol: str, *before: object) -> str:
        buffer = create_string_buffer(96)
        self._call(symbol, *before, buffer, c_uint(len(buffer)))
        return buffer.value.decode()

    def name(self) -> str:
        """The device's name."""
        return self._text("nvmlDeviceGetName", self.device)

    def driver_version(self) -> str:
        """The driver's version."""
        return self._text("nvmlSystemGetDriverVersion")

    def memory(self) -> dict[str, int]:
        """The device's memory as version 1 of the call reports it."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self.device, byref(memory))
        return {"total_bytes": memory.total, "free_bytes": memory.free, "used_bytes": memory.used}

    def memory_v2(self) -> dict[str, int]:
        """The same as version 2 reports it, with what is reserved apart."""
        memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", self.device, byref(memory))
        return {
            "total_bytes": memory.total,
            "reserved_bytes": memory.reserved,
            "free_bytes": memory.free,
            "used_bytes": memory.used,
        }

    def processes(self, kind: str = "compute") -> dict[int, int | None]:
        """Used bytes by process id, None where NVML does not know them."""
        symbol = f"nvmlDeviceGet{LISTS[kind]}RunningProcesses_v3"
        count = c_uint(64)
        while True:
            rows = (_Process * count.value)()
            try:
                self._call(symbol, self.device, byref(count), rows)
                break
            except NvmlError as error:
                if not str(error).endswith(f" {_TOO_SMALL}"):
                    raise
                count.value = len(rows) * 2
        return {row.pid: None if row.used == _UNAVAILABLE else row.used for row in rows[: count.value]}

    def first_instance(self) -> str | None:
        """The UUID of the first instance of the first GPU; None where it has none."""
        count = c_uint()
        self._call("nvmlDeviceGetMaxMigDeviceCount", self.device, byref(count))
        for index in range(count.value):
            instance = c_void_p()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", self.device, c_uint(index), byref(instance))
            except NvmlError:
                continue
            return self._text("nvmlDeviceGetUUID", instance)
        return None

    def used_by(self, tgid: int) -> int | None:
        """What a process uses, None where it is not listed or its bytes are not known."""
        return self.processes().get(tgid)
