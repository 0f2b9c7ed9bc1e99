"""Holds a tensor, and has a child that was forked after that, whose process id is in `child`: it has a copy of all books, and no memory on the GPU.

    fork_copy.py
"""

import os
import signal

import torch
from checkpoint import begin, checkpoint, parser


def main() -> None:
    """The child is there until the checkpoint is left."""
    begin(parser(__doc__))
    kept = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        # However its parent ends, and whoever adopts it then.
        while os.getppid() == parent:
            signal.sigtimedwait([], 1)
        os._exit(0)
    checkpoint("forked", child=child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    del kept


if __name__ == "__main__":
    main()
