"""Memory whose owner is not a plain variable: first while idle, then while the program changes the references to it.

Checkpoints:

        kept      for each storage, `expected` has its class, its name and its retainer
        moves     a thread adds to a linked list and replaces a total repeatedly; `list` is the minimum length of the list
"""

import gc
import queue
import tempfile
import threading
import time

import torch
import torch.distributed
from checkpoint import begin, checkpoint, parser

CUDA = "cuda"
SECONDS_BETWEEN_EDITS = 0.1


class Edit:
    """A node of an undo history."""

    __slots__ = ("before", "previous")

    def __init__(self, before: torch.Tensor, previous: "Edit | None") -> None:
        self.before, self.previous = before, previous


class Canvas:
    """Refers to the newest edit."""

    def __init__(self) -> None:
        self.newest: Edit | None = None
        self.total = made(64)

    def stroke(self) -> None:
        self.newest = Edit(made(7000), self.newest)
        self.total = self.total + 1


class Mean:
    """A running sum that is never detached."""

    __slots__ = ("sum",)

    def __init__(self) -> None:
        self.sum = torch.zeros((), device=CUDA)

    def push(self, value: torch.Tensor) -> None:
        self.sum = self.sum + value


class Policy(torch.nn.Module):
    """Keeps itself alive through a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(48, 48, device=CUDA)
        self.act = self.forward


class Pool:
    """Keeps storages, but no tensors."""

    def __init__(self) -> None:
        self.pages = [made(5000).untyped_storage() for _ in range(3)]


def made(*shape: int) -> torch.Tensor:
    """Allocates a tensor."""
    return torch.zeros(shape, device=CUDA)


def address(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


waiting: queue.Queue = queue.Queue(maxsize=2)
pool = Pool()
means = {"sparsity": Mean()}


def put() -> None:
    """Blocks in a method of the library, whose frame refers to the queue."""
    while True:
        waiting.put(made(3100))


def states(taken: list):
    """Carries a hidden state from step to step with its graph."""
    weight = made(33, 33).requires_grad_()
    taken.append(address(weight))
    state = made(33, 33)
    while True:
        state = (state @ weight).tanh()
        taken.append(address(state))
        yield state.detach()


def listen(taken: list, is_done: threading.Event) -> None:
    """Iterates over the states, and sleeps after some."""
    for number, _ in enumerate(states(taken)):
        if number == 4:
            is_done.set()
            time.sleep(3600)


def train(expected: list) -> None:
    """Adds outputs of a network to a sum: only its graph keeps the intermediate tensors."""
    inputs = made(21, 40).requires_grad_()
    hidden = inputs.exp()
    means["sparsity"].push(hidden.sin().sum())
    expected.append([address(hidden), "saved_for_backward", None, "means['sparsity'].sum"])
    means["sparsity"].push(hidden.cos().sum())


def flattened() -> torch.optim.Optimizer:
    """Trains a master copy that no module refers to."""
    master = torch.nn.Parameter(made(4100))
    optimizer = torch.optim.AdamW([master])
    master.grad = torch.zeros_like(master)
    optimizer.step()
    master.grad = None
    return optimizer


def distributed() -> torch.nn.Module:
    """Returns a model whose reducer has buckets of gradients."""
    folder = tempfile.mkdtemp()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(90, 90, device=CUDA))
    model(made(1, 90)).sum().backward()
    return model


def draw(canvas: Canvas) -> None:
    """Changes the canvas all the time."""
    while True:
        canvas.stroke()
        time.sleep(SECONDS_BETWEEN_EDITS)


def main() -> None:
    """Creates all the memory and prints the checkpoints."""
    begin(parser(__doc__))
    expected: list = []
    canvas, taken, is_done = Canvas(), [], threading.Event()
    for _ in range(10):
        canvas.stroke()
    train(expected)
    optimizer = flattened()
    replica = distributed()
    threading.Thread(target=put, daemon=True).start()
    threading.Thread(target=listen, args=(taken, is_done), daemon=True).start()
    is_done.wait()
    gc.collect()
    gc.disable()
    lost = [address(parameter) for _ in range(3) for parameter in Policy().parameters()]
    while not waiting.full():
        time.sleep(0.01)
    oldest = canvas.newest
    for _ in range(9):
        oldest = oldest.previous
    oldest = address(oldest.before)
    master = optimizer.param_groups[0]["params"][0]
    expected += [[row, "unreachable", None, None] for row in lost]
    expected += [[page.data_ptr(), "tensor", f"pool.pages[{index}]", None] for index, page in enumerate(pool.pages)]
    expected += [[address(item), "tensor", f"waiting.queue[{index}]", None] for index, item in enumerate(waiting.queue)]
    expected += [
        [oldest, "tensor", "owners.py:main: canvas.newest(.previous ×9).before", None],
        [address(master), "parameter", "param_groups[0]['params'][0]", None],
        [address(optimizer.state[master]["exp_avg"]), "optimizer_state", "exp_avg of param_groups[0]['params'][0]", None],
        [address(replica.module.weight), "parameter", "module.weight", None],
    ]
    checkpoint("kept", expected=expected, states=taken[1:4])
    threading.Thread(target=draw, args=(canvas,), daemon=True).start()
    time.sleep(1.5)
    checkpoint("moves", list=20)


if __name__ == "__main__":
    main()
