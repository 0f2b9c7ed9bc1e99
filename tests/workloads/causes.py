"""Situations with a known cause and similar ones without it: held one after another, or failures, each in a separate process.

        causes.py held        a checkpoint per situation: `expected` is the cause, `is_it` whether the situation has it or only looks alike
        causes.py failed      at the checkpoint "failed", `expected` maps the PID of each process that failed to its cause
"""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from checkpoint import begin, checkpoint, parser
from torch import distributed, nn

CUDA = "cuda"
MIB = 1 << 20
SECONDS_BEFORE = 1.5
SECONDS_AFTER = 0.5
KEPT: dict[str, object] = {}
Out: dict[int, torch.Tensor] = {}
Outputs: dict[int, torch.Tensor] = {}


def room(size_mib: float) -> torch.Tensor:
    """Allocates this much memory."""
    return torch.empty(int(size_mib * MIB), dtype=torch.uint8, device=CUDA)


class Net(nn.Module):
    """Two layers of about one MiB each."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, device=CUDA), nn.Linear(width, width, device=CUDA)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values of the same shape."""
        return self.second(self.first(values).relu())


def graphs_kept(is_it: bool) -> None:
    """Losses that keep their graphs, of many steps or of two."""
    KEPT["model"] = model = Net()
    KEPT["losses"] = [model(torch.randn(256, 512, device=CUDA)).square().mean() for _ in range(20 if is_it else 2)]


def state_copies(is_it: bool) -> None:
    """Copies of the weights of the best epoch, or batches as large as a weight."""
    KEPT["model"] = model = Net()
    copies = {name: value.clone() for name, value in model.state_dict().items()}
    KEPT["book"] = {"best": copies} if is_it else {"best": [torch.empty(512, 512, device=CUDA) for _ in range(4)]}


def instances(is_it: bool) -> None:
    """Six models of one class, or one model with many layers."""
    KEPT["models"] = [Net() for _ in range(6)] if is_it else nn.Sequential(*[nn.Linear(512, 512, device=CUDA) for _ in range(12)])


def two_precisions(is_it: bool) -> None:
    """16-bit parameters with a 32-bit copy, or 32-bit parameters with another tensor."""
    KEPT["model"] = model = Net().to(torch.bfloat16 if is_it else torch.float32)
    KEPT["master"] = [value.detach().float().clone() for value in model.parameters()] if is_it else room(4)


def view_keeps_storage(is_it: bool) -> None:
    """The first rows of large tensors, as views or as copies."""
    rows = [room(8)[:4096] for _ in range(4)]
    KEPT["rows"] = rows if is_it else [row.clone() for row in rows]


def fails(tensor: torch.Tensor) -> None:
    """Raises an error whose frame holds the argument."""
    raise ValueError(tensor.shape)


def exception_kept(is_it: bool) -> None:
    """A kept error, with its frames or without."""
    try:
        fails(room(16))
    except ValueError as error:
        KEPT["error"] = error if is_it else error.with_traceback(None)


class Node:
    """An object that refers to another one."""

    def __init__(self) -> None:
        self.tensor, self.other = room(8), None


def cycle(is_it: bool) -> None:
    """Objects that refer to each other, and that nothing else or a variable refers to."""
    one, other = Node(), Node()
    one.other, other.other = other, one
    if not is_it:
        KEPT["node"] = one


def notebook(is_it: bool) -> None:
    """The outputs of a notebook's cells, or a variable with a similar name."""
    (Out if is_it else Outputs)[5] = room(16)


def ddp_buckets(is_it: bool) -> None:
    """Gradients besides the buckets of DistributedDataParallel, or as views of them."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    # Large compared with the workspaces of cuBLAS.
    KEPT["model"] = model = nn.parallel.DistributedDataParallel(Net(2048), gradient_as_bucket_view=not is_it)
    model(torch.randn(16, 2048, device=CUDA)).square().mean().backward()


def old_optimizers(is_it: bool) -> None:
    """An optimizer for each stage of a training, or one."""
    KEPT["model"] = model = Net()
    KEPT["optimizers"] = [torch.optim.Adam(model.parameters()) for _ in range(3 if is_it else 1)]
    model(torch.randn(16, 512, device=CUDA)).square().mean().backward()
    for optimizer in KEPT["optimizers"]:
        optimizer.step()


HELD = [
    graphs_kept, state_copies, instances, two_precisions, view_keeps_storage, exception_kept, cycle, notebook, ddp_buckets,
    old_optimizers,
]  # fmt: skip


def held() -> None:
    """Creates the situations, with a checkpoint at each."""
    gc.disable()
    for situation in HELD:
        for is_it in (True, False):
            situation(is_it)
            checkpoint("held", expected=situation.__name__, is_it=is_it)
            KEPT.clear()
            Out.clear()
            Outputs.clear()
            gc.collect()
            torch.cuda.empty_cache()
    checkpoint("done", devices=())


def grow(step: Callable[[int], object]) -> None:
    """Repeats a step until an allocation fails."""
    for number in range(1, 4096):
        step(number)


def optimizer_state() -> None:
    """Parameters, gradients and one of Adam's two moments fit on the GPU; the second does not."""
    model = nn.Linear(10_000, 12_000, bias=False, device=CUDA)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(torch.randn(1, 10_000, device=CUDA)).sum().backward()
    optimizer.step()


def activations() -> None:
    """A batch that is too large."""
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(40)]).to(CUDA)
    layers(torch.randn(100_000, 512, device=CUDA)).sum().backward()


def larger_than_gpu() -> None:
    """An allocation larger than the GPU."""
    room(4_000)


def own_limit() -> None:
    """A limit of a third of the GPU."""
    torch.cuda.set_per_process_memory_fraction(0.33)
    kept = []
    grow(lambda _: kept.append(room(64)))


def fragmentation() -> None:
    """Half of the pieces are free, but no free piece is large enough."""
    # Two pieces of this size share a segment of 20 MiB.
    pieces = [room(9) for _ in range(120)]
    del pieces[::2]
    room(512)


def other_processes() -> None:
    """Another process holds half of the GPU."""
    kept = []
    grow(lambda _: kept.append(room(64)))


FAILED = [optimizer_state, activations, larger_than_gpu, own_limit, fragmentation, other_processes]


def fork(runs: Callable[[], None]) -> int:
    """Runs a function in a child, which is forked before CUDA is initialised, and returns its PID."""
    tgid = os.fork()
    if tgid == 0:
        try:
            # memwatch needs a moment to attach to a new process.
            torch.zeros(1, device=CUDA)
            time.sleep(SECONDS_BEFORE)
            runs()
        except torch.OutOfMemoryError:
            # Delays the exit, as writing a traceback does: memwatch reads the objects while they exist.
            time.sleep(SECONDS_AFTER)
            os._exit(0)
        os._exit(1)
    return tgid


def neighbour(ready: int, end: int) -> Callable[[], None]:
    """Returns a function that holds memory until the pipe `end` is written."""

    def holds() -> None:
        kept = room(1_000)
        os.write(ready, b".")
        os.read(end, 1)
        del kept
        raise torch.OutOfMemoryError

    return holds


def failed() -> Iterator[tuple[int, str]]:
    """Runs each failure in a separate process."""
    for situation in FAILED:
        (ready, is_ready), (end, ends) = os.pipe(), os.pipe()
        beside = fork(neighbour(is_ready, end)) if situation is other_processes else None
        if beside:
            os.read(ready, 1)
        tgid = fork(situation)
        _, status = os.waitpid(tgid, 0)
        if status:
            raise SystemExit(f"{situation.__name__} was not refused memory: {status}")
        os.write(ends, b".")
        if beside:
            os.waitpid(beside, 0)
        yield tgid, situation.__name__


def main() -> None:
    """Runs the situations or the failures."""
    options = parser(__doc__)
    options.add_argument("which", choices=("held", "failed"))
    # CUDA does not work in a child that is forked after CUDA was initialised.
    if "failed" in sys.argv:
        options.parse_args()
        print(json.dumps({"label": "failed", "expected": dict(failed())}), flush=True)
        return
    begin(options)
    held()


if __name__ == "__main__":
    main()
