"""Allocates 64 MiB per call, through a package and through torch, so that the call site of each is a line of this program.

    lines.py --packages FOLDER

FOLDER has links to all installed packages and gets one more, `shelf`: torch and the package are imported from there. With `python -m shelf`,
the package runs as the program itself, and no line of this file is on the stack.
"""

import sys
from pathlib import Path

FOLDER = Path(sys.argv[sys.argv.index("--packages") + 1])

SHELF = '''import functools
import torch

PIECE = 16 << 20


class Kept(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


clone = timed(torch.clone)


def put(items):
    items.append(torch.ones(PIECE, device="cuda"))


def copy(kept):
    return kept * 2


def store(items):
    kept = items[0].as_subclass(Kept)
    items.append(copy(kept))
'''
MAIN = '''import torch
from checkpoint import begin, checkpoint, parser
from shelf import put, store

options = parser(__doc__)
options.add_argument("--packages")
begin(options)
torch.nn.Linear(8, 8).cuda()
items = []
put(items)
store(items)
checkpoint("stored")
'''

shelf = FOLDER / "shelf"
shelf.mkdir(exist_ok=True)
(shelf / "__init__.py").write_text(SHELF)
(shelf / "__main__.py").write_text(MAIN)
sys.path.insert(0, str(FOLDER))

import torch
from checkpoint import begin, checkpoint, parser
from shelf import PIECE, clone, put, store


def main() -> None:
    """Allocates four tensors."""
    options = parser(__doc__)
    options.add_argument("--packages")
    begin(options)
    items: list[torch.Tensor] = []
    # memwatch learns where packages are installed from the first stack with a line of torch.
    torch.nn.Linear(8, 8).cuda()
    put(items)
    store(items)
    items.append(clone(items[0]))
    items.append(torch.zeros(PIECE, device="cuda"))
    lines = [main.__code__.co_firstlineno + number for number in (8, 9, 10, 11)]
    checkpoint("held", lines=lines, torch=torch.__file__)


if __name__ == "__main__":
    main()
