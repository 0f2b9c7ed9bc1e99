"""Creates and deletes JAX arrays as fast as possible: the worst case for tracing each chunk of JAX's arena.

It reads commands from standard input, one per line, and answers each with a line of JSON:

        run N        runs N steps        {"step_ns": [...], "events_per_step": ...}

and exits at the end of standard input. The first line of output is {"label": "ready", "pid": ...}.
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
    """Returns the number of chunks granted so far."""
    return DEVICE.memory_stats()["num_allocs"]


def step():
    """Creates some arrays and deletes them."""
    for array in [jax.device_put(HOST, DEVICE) for _ in range(ARRAYS)]:
        array.block_until_ready()
        array.delete()


def run(steps):
    """Runs the steps and returns the duration of each."""
    gc.disable()
    before, times = allocations(), []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - begin)
    gc.enable()
    # Each chunk allocated in a step is freed in that step.
    return {"step_ns": times, "events_per_step": 2 * (allocations() - before) / steps}


def main():
    """Runs commands until standard input ends."""
    run(WARM_STEPS)
    print(json.dumps({"label": "ready", "pid": os.getpid()}), flush=True)
    for order in sys.stdin:
        match order.split():
            case ["run", steps]:
                answer = run(int(steps))
            case _:
                sys.exit(f"busy_arrays.py: {order!r} is no order")
        print(json.dumps(answer), flush=True)
    # The regular exit of XLA calls functions of cuBLAS that the stand-in lacks.
    os._exit(0)


main()
