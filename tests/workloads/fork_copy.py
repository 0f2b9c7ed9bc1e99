"""Holds a tensor and forks a child, whose PID is in `child`: the child has a copy of the allocator state but no memory on the GPU.

    fork_copy.py
"""

import os
import signal

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """Keeps the child until the checkpoint is left."""
    begin(parser(__doc__))
    kept = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # Exits once the parent has exited, even if it was killed and another process adopts the child.
        while os.getppid() == parent:
            signal.sigtimedwait([], 1)
        os._exit(0)
    checkpoint("forked", child=child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    del kept


if __name__ == "__main__":
    main()
