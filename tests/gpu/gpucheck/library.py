"""Loads the driver's libraries, also where the loader does not look for them by itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

DRIVER = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
# Where containers mount the driver, and where distributions without an entry in the loader's cache put it.
_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib")


def load(name: str) -> ctypes.CDLL:
    """The library of this name. OSError where there is none."""
    refusal = None
    for candidate in (name, *(f"{folder}/{name}" for folder in _FOLDERS)):
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            refusal = refusal or error
    raise refusal or OSError(name)


def mapped(beginning: str) -> Path | None:
    """The file that this process has mapped whose name begins like this."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.startswith(beginning):
            return Path(fields[5])
    return None


def path_of(name: str) -> Path:
    """The real file behind a library's name. OSError where it cannot be loaded."""
    load(name)
    found = mapped(name.split(".so")[0] + ".so")
    if found is None:
        raise OSError(f"{name} is loaded, but not in /proc/self/maps")
    return found.resolve()
