"""Makes and deletes JAX arrays as fast as the processor lets it: the worst case for whoever watches each chunk of JAX's arena.

It reads orders from standard input, a line each, and answers with a line of JSON:

    run N        makes N steps       {"step_ns": [...], "events_per_step": ...}

and ends with standard input. The first line it prints says {"label": "ready", "pid": ...}.
"""

import gc
import json
import os
import sys
import time

import jax
import numpy as np
from jax._src import hardware_utils

# JAX looks for NVIDIA's device files, which the simulated GPU does not have.
hardware_utils.has_visible_nvidia_gpu = lambda: True
DEVICE = jax.devices()[0]
ARRAYS = 32
WARM_STEPS = 20
HOST = np.ones((256,), np.float32)


def allocations():
    """Chunks granted so far."""
    return DEVICE.memory_stats()["num_allocs"]


def step():
    """Some arrays come, and go."""
    for array in [jax.device_put(HOST, DEVICE) for _ in range(ARRAYS)]:
        array.block_until_ready()
        array.delete()


def run(steps):
    """Works, and says how long each step took."""
    gc.disable()
    before, times = allocations(), []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - begin)
    gc.enable()
    # Each chunk that comes in a step goes in it.
    return {"step_ns": times, "events_per_step": 2 * (allocations() - before) / steps}


def main():
    """Obeys until standard input ends."""
    run(WARM_STEPS)
    print(json.dumps({"label": "ready", "pid": os.getpid()}), flush=True)
    for order in sys.stdin:
        match order.split():
            case ["run", steps]:
                answer = run(int(steps))
            case _:
                sys.exit(f"busy_arrays.py: {order!r} is no order")
        print(json.dumps(answer), flush=True)
    # XLA's own end needs functions of cuBLAS that the stand-in does not have.
    os._exit(0)


main()
