"""A TensorFlow program that keeps results of operators whose sizes it knows, and prints at checkpoints, per operator, the bytes requested in total
and the bytes still live.

Options: --wait waits for a line at each checkpoint; --early adds a stop before anything is allocated.
"""

import json
import os
import sys

import tensorflow as tf

asked = {}
held = {}
# Older versions of TensorFlow store the name in another form.
named = tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (2, 20)


def stop(label):
    print(json.dumps({"label": label, "named": named, "asked": asked, "held": held}), flush=True)
    if "--wait" in sys.argv:
        sys.stdin.readline()


def count(name, tensor):
    size = tensor.shape.num_elements() * tensor.dtype.size
    asked[name] = asked.get(name, 0) + size
    held[name] = held.get(name, 0) + size
    return tensor


def drop(name, tensor):
    held[name] -= tensor.shape.num_elements() * tensor.dtype.size


@tf.function
def model(x):
    with tf.name_scope("model"):
        with tf.name_scope("dense"):
            sums = tf.cumsum(x, name="Sums")
        with tf.name_scope("a_rather_long_name_of_a_block_of_layers/which_is_in_another_one"):
            rows = tf.reverse(sums, [0], name="Reversed")
    return sums, rows


def main():
    if "--early" in sys.argv:
        stop("library")
    with tf.device("/GPU:0"):
        x = count("Fill", tf.fill([512, 256], 1.0))
        stop("first")
        y = count("AddV2", tf.add(x, x))
        z = count("Transpose", tf.transpose(x))
        both = count("ConcatV2", tf.concat([x, y], 0))
        stop("eager")
        drop("ConcatV2", both)
        del both
        w = count("Neg", tf.negative(x))
        stop("dropped")
        sums, rows = model(x)
        count("model/dense/Sums", sums)
        long = "model/a_rather_long_name_of_a_block_of_layers/which_is_in_another_one/Reversed"
        count("…" + long[-72:], rows)
        stop("graph")
    # Exits with live tensors and skips the regular exit of the library, which calls functions that the stand-ins lack.
    os._exit(0)


main()
