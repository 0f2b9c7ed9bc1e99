"""A training of a user without privileges, which ends in the user's hands: PyTorch is loaded as root, because the user
may not read its files, and from then on the process is the user's in every way.

    owned.py UID [PROGRAM]

After each checkpoint it goes on with its steps, until standard input ends. With PROGRAM it then replaces itself by it.
"""

import ctypes
import os
import select
import sys

import torch
from checkpoint import begin, checkpoint, parser

PR_SET_DUMPABLE = 4


def become(user: int) -> None:
    """Gives this process to a user."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # The kernel counts a process with changed ids as one with secrets of its former user.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)


def main() -> None:
    """Trains until standard input ends."""
    options = parser(__doc__)
    options.add_argument("user", type=int)
    options.add_argument("program", nargs="?")
    arguments = begin(options)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = []

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        kept.append(torch.ones(1 << 20, device="cuda"))

    step()
    become(arguments.user)
    checkpoint("owned")
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        step()
    if arguments.program:
        os.execv(arguments.program, [arguments.program, "60"])


if __name__ == "__main__":
    main()
