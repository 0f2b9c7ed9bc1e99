"""Runs TensorFlow's operators on small tensors as fast as the processor lets it: the worst case for whoever watches each chunk of its arena with the name of
the operator.

It reads orders from standard input, a line each, and answers with a line of JSON:

    run N        makes N steps       {"step_ns": [...], "events_per_step": ...}

and ends with standard input. The first line it prints says {"label": "ready", "pid": ...}.
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
    """Each operator takes a chunk, which goes with its result."""
    for _ in range(OPERATORS):
        tf.add(x, x)


def has_chunk_of_its_own(x):
    """Whether a result takes memory that is given back with it."""
    held = lambda: tf.config.experimental.get_memory_info("GPU:0")["current"]
    before = held()
    kept = tf.add(x, x)
    during = held()
    del kept
    return during - before == KIB and held() == before


def run(x, steps):
    """Works, and says how long each step took."""
    gc.disable()
    times = []
    for _ in range(steps):
        begin = time.perf_counter_ns()
        step(x)
        times.append(time.perf_counter_ns() - begin)
    gc.enable()
    return {"step_ns": times, "events_per_step": 2 * OPERATORS}


def main():
    """Obeys until standard input ends."""
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
    # Without the libraries' own end, which needs functions that the stand-ins do not have.
    os._exit(0)


main()
