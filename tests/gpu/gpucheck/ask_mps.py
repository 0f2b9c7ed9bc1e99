"""Which process NVML charges for memory that is used through NVIDIA's MPS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpucheck.bench import Answer, Bench, answered, mib, not_answered
from gpucheck.nvml import LISTS, Nvml, NvmlError

_CONTROL = "nvidia-cuda-mps-control"
_PLACES = ("/usr/local/nvidia/bin", "/usr/bin", "/opt/bin")
_CLIENT = """
import sys
from gpucheck.cuda import Driver
driver = Driver()
driver.enter()
driver.alloc(256 << 20)
print("holding", flush=True)
sys.stdin.readline()
"""


def clients(bench: Bench) -> Answer:
    """Starts a daemon that only our own client can find, allocates 256 MiB in the client, and stops both."""
    control = shutil.which(_CONTROL) or shutil.which(_CONTROL, path=os.pathsep.join(_PLACES))
    if control is None:
        return not_answered(f"{_CONTROL} is not installed here")
    with tempfile.TemporaryDirectory(prefix="gpucheck-mps-") as folder:
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        daemon = subprocess.Popen([control, "-f"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(1.0)
            if daemon.poll() is not None:
                return not_answered(f"{_CONTROL} ended at once with {daemon.returncode}: {_logs(folder)}")
            return _ask(bench, environment, folder)
        finally:
            subprocess.run([control], input="quit -t 2\n", env=environment, text=True, capture_output=True, check=False, timeout=20)
            daemon.kill()
            daemon.wait()


def _ask(bench: Bench, environment: dict[str, str], folder: str) -> Answer:
    environment = {**environment, "PYTHONPATH": str(bench.root)}
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )
    with client:
        if client.stdout.readline().strip() != "holding":
            return not_answered(f"a client of our own MPS daemon did not start: {_logs(folder)}")
        nvml, lists = Nvml(), {}
        for kind in LISTS:
            try:
                lists[kind] = [{"pid": tgid, "bytes": used, "is_client": tgid == client.pid} for tgid, used in nvml.processes(kind).items()]
            except NvmlError as error:
                lists[kind] = str(error)
        client.stdin.write("\n")
    found = [(kind, row["bytes"]) for kind, rows in lists.items() if isinstance(rows, list) for row in rows if row["is_client"]]
    reported = ", ".join(f"{mib(used)} in the {kind} list" for kind, used in found) or "nothing under the client's process id"
    return answered(f"a client that holds 256 MiB: {reported}", lists=lists)


def _logs(folder: str) -> str:
    texts = [path.read_text(errors="replace").strip().splitlines()[-1:] for path in Path(folder).glob("*.log")]
    return " ".join(line for lines in texts for line in lines) or "it wrote no log"
