"""A TensorFlow program that requests more memory than its arena has free, and continues: a line of JSON contains the error message.

Options: --wait waits for a line before and after that.
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
        # memwatch finds an existing arena at the arena's next event.
        kept.pop()
        try:
            kept.append(put(600))
            failure = None
        except tf.errors.ResourceExhaustedError as error:
            failure = str(error)
        say("failed", failure=failure)
        if "--wait" in sys.argv:
            sys.stdin.readline()
    # Skips the regular exit of the library, which calls functions that the stand-ins lack.
    os._exit(0)


main()
