"""A JAX program that stops at checkpoints and prints the memory statistics of its device.

Options: --wait waits for a line at each checkpoint.
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


def checkpoint(label):
    print(json.dumps({"label": label, "stats": DEVICE.memory_stats()}), flush=True)
    if "--wait" in sys.argv:
        sys.stdin.readline()


def put(count):
    return jax.device_put(np.ones((count,), np.float32), DEVICE).block_until_ready()


@jax.jit
def column_sums(weights):
    """Sums columns; its temporary memory is as large as the weights."""
    doubled = jax.lax.optimization_barrier(weights * 2.0)
    return doubled.reshape(1024, -1).sum(axis=0)


def main():
    first = put(1_000_000)
    checkpoint("first")
    kept = [put(1 << 18) for _ in range(5)]
    small = put(3)
    checkpoint("several")
    first.delete()
    kept.pop(1).delete()
    checkpoint("freed")
    step = jax.jit(lambda weights: weights * 2.0 + 1.0)
    donating = jax.jit(lambda weights: weights * 3.0 + 1.0, donate_argnums=0)
    weights = put(1 << 20)
    for _ in range(3):
        weights = step(weights)
    weights.block_until_ready()
    for _ in range(2):
        column_sums(weights).block_until_ready()
    checkpoint("steps")
    for _ in range(3):
        weights = donating(weights)
    weights.block_until_ready()
    checkpoint("donated")
    small.delete()
    checkpoint("end")
    # Exits with live arrays: the regular exit of XLA calls functions of cuBLAS that the stand-in lacks.
    os._exit(0)


main()
