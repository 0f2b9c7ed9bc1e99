"""A TensorFlow program that stops at checkpoints and prints what TensorFlow reports of its GPU's memory.

Options: --wait waits for a line at each checkpoint; --early adds a stop before anything is allocated.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf


def stop(words):
    print(json.dumps(words), flush=True)
    if "--wait" in sys.argv:
        sys.stdin.readline()


def checkpoint(label):
    info = tf.config.experimental.get_memory_info("GPU:0")
    stop({"label": label, "stats": {"bytes_in_use": info["current"], "peak_bytes_in_use": info["peak"]}})


def main():
    if "--early" in sys.argv:
        stop({"label": "library"})
    assert tf.config.list_physical_devices("GPU"), "TensorFlow sees no GPU"
    with tf.device("/GPU:0"):
        first = tf.identity(tf.constant(np.ones((1000, 1000), np.float32)))
        checkpoint("first")
        kept = [tf.identity(tf.constant(np.ones((count,), np.float32))) for count in (1 << 18, 1 << 16, 3)]
        both = tf.concat([first, first + 1.0], 0)
        checkpoint("several")
        del first, both
        kept.pop(0)
        checkpoint("freed")
        step = tf.function(lambda x: tf.nn.relu(x * 2.0) + x)
        weights = tf.Variable(tf.ones((512, 512)))
        for _ in range(3):
            weights.assign(step(weights))
        checkpoint("steps")
        del weights
        kept.clear()
        checkpoint("end")
    # Skips the regular exit of the library, which calls functions that the stand-ins lack.
    os._exit(0)


main()
