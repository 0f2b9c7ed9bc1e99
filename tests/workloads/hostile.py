"""A user who means harm: endless driver libraries, clients of the agent that say nothing, and short processes with a name that is no name.

Words: the driver library, the agent's socket, a folder of his own, and how many of each.
"""

import ctypes
import mmap
import os
import resource
import shutil
import socket
import sys

LIBRARY, SOCKET, FOLDER = sys.argv[1:4]
FILES, CLIENTS, PROCESSES = map(int, sys.argv[4:7])
# What a line of metrics, JSON or a terminal would be broken by.
NAME = b'"}\n\x1b[2J{a="'
PR_SET_NAME = 15


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


held = [libraries(), clients()]
processes()
print("done", flush=True)
sys.stdin.readline()
