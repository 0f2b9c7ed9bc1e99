"""Runs TensorFlow's operators on small tensors as fast as possible: the worst case for tracing each chunk of TensorFlow's arena together with the name of
its operator.

It reads commands from standard input, one per line, and answers each with a line of JSON:

        run N        runs N steps        {"step_ns": [...], "events_per_step": ...}

and exits at the end of standard input. The first line of output is {"label": "ready", "pid": ...}.
"""

import gc
import json
import os
import sys
import time

import tensorflow as tf

OPERATORS = 64
WARM_STEPS = 20
KIB = 1 << 10


def step(x):
    """Runs operators; each allocates one chunk, which is freed with its result."""
    for _ in range(OPERATORS):
        tf.add(x, x)


def has_chunk_of_its_own(x):
    """Returns whether a result occupies memory that is freed with it."""
    held = lambda: tf.config.experimental.get_memory_info("GPU:0")["current"]
    before = held()
    kept = tf.add(x, x)
    during = held()
    del kept
    return during - before == KIB and held() == before


def run(x, steps):
    """Runs the steps and returns the duration of each."""
    gc.disable()
    times = []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        step(x)
        times.append(time.perf_counter_ns() - begin)
    gc.enable()
    return {"step_ns": times, "events_per_step": 2 * OPERATORS}


def main():
    """Runs commands until standard input ends."""
    with tf.device("/GPU:0"):
        x = tf.fill([KIB // 4], 1.0)
        run(x, WARM_STEPS)
        if not has_chunk_of_its_own(x):
            sys.exit("busy_operators.py: an operator's result takes no chunk of its own")
        print(json.dumps({"label": "ready", "pid": os.getpid()}), flush=True)
        for order in sys.stdin:
            match order.split():
                case ["run", steps]:
                    answer = run(x, int(steps))
                case _:
                    sys.exit(f"busy_operators.py: {order!r} is no order")
            print(json.dumps(answer), flush=True)
    # Skips the regular exit of the libraries, which calls functions that the stand-ins lack.
    os._exit(0)


main()
