"""A TensorFlow program that asks for more than its arena has room for, and goes on: a line of JSON says how the failure reads.

Words: --wait to wait for a line before that.
"""

import json
import os
import sys

import tensorflow as tf

ARENA_MEBIBYTES = 512


def put(mebibytes):
    return tf.fill([mebibytes << 18], 1.0)


def say(label, **facts):
    info = tf.config.experimental.get_memory_info("GPU:0")
    print(json.dumps({"label": label, "stats": {"bytes_in_use": info["current"]}, **facts}), flush=True)


def main():
    [gpu] = tf.config.list_physical_devices("GPU")
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=ARENA_MEBIBYTES)
    tf.config.set_logical_device_configuration(gpu, [limit])
    with tf.device("/GPU:0"):
        kept = [put(64) for _ in range(5)]
        say("kept")
        if "--wait" in sys.argv:
            sys.stdin.readline()
        # An arena is met with its next event.
        kept.pop()
        try:
            kept.append(put(600))
            failure = None
        except tf.errors.ResourceExhaustedError as error:
            failure = str(error)
        say("failed", failure=failure)
        if "--wait" in sys.argv:
            sys.stdin.readline()
    # Without the library's own end, which needs functions that the stand-ins do not have.
    os._exit(0)


main()
