"""Properties of the machine, and whether it supports the check."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

from gpucheck.bench import Bench
from gpucheck.nvml import Nvml
from gpucheck.watcher import sources

# A sandbox may provide the device without the version file. Checking for either loads no driver.
_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidia0"))
# Checks of the doctor without which probes are impossible.
_NEEDED = ("kernel", "architecture", "btf", "lockdown", "cap_bpf", "cap_perfmon", "kernel_half", "test_call")


def no_gpu() -> str | None:
    """Returns the reason why the machine has no GPU, or None if it has one. Does nothing that would load a driver."""
    return None if any(sign.exists() for sign in _SIGNS) else f"there is neither {_SIGNS[0]} nor {_SIGNS[1]}"


def facts(bench: Bench) -> dict[str, object]:
    """Returns a description of the machine."""
    nvml = Nvml()
    return {
        "gpu": nvml.name(),
        "driver": nvml.driver_version(),
        "gpu_total_bytes": nvml.memory()["total_bytes"],
        "driver_says_so_in_proc": _SIGNS[0].exists(),
        "kernel": platform.release(),
        "kernel_version": platform.version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "torch": _torch_version(bench.python),
        "memwatch": _first_line([str(bench.memwatch), "--version"]),
        "built_from": (bench.root / "BUILT_FROM").read_text().strip(),
    }


def _torch_version(python: str) -> str:
    return _first_line([python, "-c", "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)"])


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return lines[0 if done.returncode == 0 else -1] if lines else f"unknown: exit status {done.returncode}"


def no_probes(bench: Bench) -> str | None:
    """Returns the kernel's reason why memwatch cannot attach probes here; None if it can."""
    try:
        doctor = subprocess.run(
            [bench.memwatch, "doctor", "--json", *sources(bench)], capture_output=True, text=True, check=False, timeout=60
        )
        report = json.loads(doctor.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"memwatch itself does not run here: {error}"
    return refusal(report, f"Linux {platform.release()}")


def refusal(report: dict, kernel: str) -> str | None:
    """Returns that reason from the doctor's report."""
    checks = report["data"]["checks"]
    missing = [check for check in checks if check["id"] in _NEEDED and check["state"] == "missing"]
    if not missing:
        return None
    reported = "; ".join(f"{check['id']}: {check['fact']}" for check in missing)
    return f"{kernel} allows no eBPF probes here ({reported})"
