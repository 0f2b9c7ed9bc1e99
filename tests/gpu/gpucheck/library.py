"""Loads the driver's libraries, even from folders that the loader does not search."""

from __future__ import annotations

import ctypes
from pathlib import Path

DRIVER = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
# Mount points of the driver in containers, and folders of distributions without an entry in the loader's cache.
_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib")


def load(name: str) -> ctypes.CDLL:
    """Loads the library with this name. Raises OSError if there is none."""
    refusal = None
    for candidate in (name, *(f"{folder}/{name}" for folder in _FOLDERS)):
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            refusal = refusal or error
    raise refusal or OSError(name)


def mapped(beginning: str) -> Path | None:
    """Returns the file mapped by this process whose name has this prefix."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.startswith(beginning):
            return Path(fields[5])
    return None


def path_of(name: str) -> Path:
    """Returns the real file of a library's name. Raises OSError if it cannot be loaded."""
    load(name)
    found = mapped(name.split(".so")[0] + ".so")
    if found is None:
        raise OSError(f"{name} is loaded, but not in /proc/self/maps")
    return found.resolve()
