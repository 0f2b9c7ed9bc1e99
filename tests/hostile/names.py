"""A user's PyTorch program that makes the flight recorder work as much as it can.

names.py UID OBJECTS

It has OBJECTS Python objects, containers nested a million deep, objects that contain each other, names of 100 KB with control
characters and without end, and tensors below all of them. Its memory reaches a new peak every second, and its allocations fail
without end. It prints "ready" when this begins, and runs until it is killed.
"""

import ctypes
import gc
import os
import signal
import sys
import time

import torch

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
MIB = 1 << 20
DEPTH = 1_000_000
NAME = '"}\n\x1b[2J\u202e{a="'


def become(user):
    """Gives this process to a user, and has it end with its parent."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_DUMPABLE, 1)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tensor(size=1024):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class Holder:
    """An object with any attributes."""


def deep():
    """Returns lists, dictionaries and objects, each in another, with a tensor at the bottom."""
    held = [tensor()]
    for level in range(DEPTH):
        if level % 3 == 0:
            held = [held]
        elif level % 3 == 1:
            held = {NAME: held}
        else:
            holder = Holder()
            holder.next = held
            held = holder
    return held


def named(count):
    """Returns an object with tensors in attributes whose names have 100,000 characters."""
    holder = Holder()
    for number in range(count):
        setattr(holder, (NAME * (100_000 // len(NAME))) + str(number), tensor())
    return holder


def circle(count):
    """Returns objects of which each knows all others."""
    everybody = [Holder() for _ in range(count)]
    for holder in everybody:
        holder.everybody, holder.mine = everybody, tensor()
    return everybody


def wide(count):
    """Returns a dictionary with many keys of every kind."""
    return {(number, NAME + str(number)): [number, {number: [number]}] for number in range(count)}


def main():
    user, objects = int(sys.argv[1]), int(sys.argv[2])
    tensor(64 * MIB)
    become(user)
    gc.disable()
    # Every variable is in the frame that the recorder reads.
    held = [deep(), named(1000), circle(5000), wide(objects // 5)]
    kept = [tensor(64 * MIB)]
    print("ready", flush=True)
    peak = time.monotonic()
    while True:
        try:
            if time.monotonic() > peak + 1:
                peak = time.monotonic()
                kept.append(tensor(len(kept) * 8 * MIB))
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            time.sleep(0.01)
        held[0:1] = held[0:1]


if __name__ == "__main__":
    main()
