"""Runs programs of a folder in parallel, each as a forked process in which PyTorch is already loaded.

usage: many.py SECONDS FOLDER NAME...
Prints their PIDs once they run, and kills them after that time.
"""

import json
import os
import runpy
import signal
import sys
import time

import torch  # noqa: F401 - the programs find it loaded

seconds, folder, *names = sys.argv[1:]
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), folder)
pids = {}
for name in names:
    pid = os.fork()
    if pid == 0:
        sys.argv = [os.path.join(folder, f"{name}.py")]
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    pids[name] = pid
print(json.dumps({"label": "running", "pids": pids}), flush=True)
time.sleep(float(seconds))
for pid in pids.values():
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
