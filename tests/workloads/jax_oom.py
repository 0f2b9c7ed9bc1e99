"""A JAX program that requests more memory than its arena has free, and continues: a line of JSON contains the error message.

Options: --wait waits for a line before and after that.
"""

import json
import os
import sys

import jax
import numpy as np
from jax._src import hardware_utils

# JAX looks for NVIDIA's device files, which the simulated GPU does not have.
hardware_utils.has_visible_nvidia_gpu = lambda: True
DEVICE = jax.devices()[0]


def put(mebibytes):
    return jax.device_put(np.ones((mebibytes << 18,), np.float32), DEVICE).block_until_ready()


def say(label, **facts):
    print(json.dumps({"label": label, "stats": DEVICE.memory_stats(), **facts}), flush=True)


def main():
    kept = [put(64) for _ in range(5)]
    say("kept")
    if "--wait" in sys.argv:
        sys.stdin.readline()
    try:
        kept.append(put(600))
        failure = None
    except Exception as error:
        failure = str(error)
    say("failed", failure=failure)
    if "--wait" in sys.argv:
        sys.stdin.readline()
    # Exits with live arrays: the regular exit of XLA calls functions of cuBLAS that the stand-in lacks.
    os._exit(0)


main()
