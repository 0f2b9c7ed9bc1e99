"""The part of NVML that reports used memory."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_ulonglong, c_void_p, create_string_buffer

from gpucheck import library

_TOO_SMALL = 7
_UNAVAILABLE = 2**64 - 1
# Calls that list processes; MPS clients have a separate list.
LISTS = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}


class NvmlError(Exception):
    """A call for which NVML returned an error."""


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
    """NVML after its initialisation, and one device."""

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
        """Returns the device's name."""
        return self._text("nvmlDeviceGetName", self.device)

    def driver_version(self) -> str:
        """Returns the driver's version."""
        return self._text("nvmlSystemGetDriverVersion")

    def memory(self) -> dict[str, int]:
        """Returns the device's memory as reported by version 1 of the call."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self.device, byref(memory))
        return {"total_bytes": memory.total, "free_bytes": memory.free, "used_bytes": memory.used}

    def memory_v2(self) -> dict[str, int]:
        """Returns the device's memory as reported by version 2, with reserved memory separate."""
        memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", self.device, byref(memory))
        return {
            "total_bytes": memory.total,
            "reserved_bytes": memory.reserved,
            "free_bytes": memory.free,
            "used_bytes": memory.used,
        }

    def processes(self, kind: str = "compute") -> dict[int, int | None]:
        """Returns used bytes by process id, None if NVML does not know them."""
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
        """Returns the UUID of the first MIG instance of the first GPU; None if there is none."""
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
        """Returns the used bytes of a process; None if it is not listed or its bytes are unknown."""
        return self.processes().get(tgid)
