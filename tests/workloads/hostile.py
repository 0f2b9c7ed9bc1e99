"""A user who means harm: endless driver libraries, some of which hold up whoever opens them, clients of the agent that say nothing, and short processes with a name that is no name.

Words: the driver library, the agent's socket, a folder of his own, and how many of each.
"""

import ctypes
import fcntl
import mmap
import os
import resource
import shutil
import signal
import socket
import sys

LIBRARY, SOCKET, FOLDER = sys.argv[1:4]
FILES, CLIENTS, PROCESSES = map(int, sys.argv[4:7])
# What a line of metrics, JSON or a terminal would be broken by.
NAME = b'"}\n\x1b[2J{a="'
PR_SET_NAME = 15
LEASES = 4


def leases():
    """To open one takes /proc/sys/fs/lease-break-time, 45 seconds, unless O_NONBLOCK says otherwise."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = []
    for number in range(LEASES):
        path = os.path.join(FOLDER, f"libcuda.so.leased.{number}")
        shutil.copyfile(LIBRARY, path)
        with open(path, "ab") as file:
            file.write(bytes([number]))
        file = open(path, "rb")
        held.append((file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)))
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            # The agent has it open just now, or this file system has no leases.
            print(f"no lease: {error}", file=sys.stderr)
    return held


def libraries():
    held = []
    for number in range(FILES):
        path = os.path.join(FOLDER, f"libcuda.so.{number}")
        shutil.copyfile(LIBRARY, path)
        with open(path, "rb") as file:
            held.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    return held


def clients():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = []
    for _ in range(CLIENTS):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        # Where no more are taken, this one has tried.
        client.connect_ex(SOCKET)
        held.append(client)
    return held


def processes():
    prctl = ctypes.CDLL(None).prctl
    for _ in range(PROCESSES):
        child = os.fork()
        if child == 0:
            prctl(PR_SET_NAME, NAME, 0, 0, 0)
            os._exit(0)
        os.waitpid(child, 0)


held = [leases(), libraries(), clients()]
processes()
print("done", flush=True)
sys.stdin.readline()
