"""Allocates within ranges named by record_function and by NVTX, and prints the bytes allocated in each range.

The innermost range counts, whichever way it was named. A backward pass is within the ranges of the thread that started it.
"""

import threading
from collections import Counter

import torch
from attribution import granted_bytes
from checkpoint import begin, checkpoint, parser
from torch import nn
from torch.cuda import nvtx
from torch.profiler import record_function

MIB = 1 << 20
WIDTH = 256
ROWS = 512


class Ranges:
    """Counts the bytes granted per range: what is granted between two calls belongs to the innermost open range."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()
        self._open = ["none"]
        self._seen = granted_bytes()

    def begin(self, name: str) -> None:
        """Opens a range."""
        self._charge()
        self._open.append(name)

    def end(self) -> None:
        """Closes the innermost range."""
        self._charge()
        self._open.pop()

    def reported(self) -> dict[str, int]:
        """Returns all ranges in which memory was granted."""
        self._charge()
        return dict(+self._bytes)

    def _charge(self) -> None:
        now = granted_bytes()
        self._bytes[self._open[-1]] += now - self._seen
        self._seen = now


def take(size_mib: int) -> torch.Tensor:
    """Allocates an amount that identifies the range."""
    return torch.empty(size_mib * MIB, dtype=torch.uint8, device="cuda")


def by_record_function(ranges: Ranges) -> None:
    """Nests record_function ranges."""
    with record_function("load"):
        ranges.begin("load")
        first = take(3)
        with record_function("augment é"):
            ranges.begin("augment é")
            second = take(5)
            ranges.end()
        third = take(7)
        ranges.end()
    del first, second, third


def by_nvtx(ranges: Ranges) -> None:
    """Uses NVTX ranges: as a pair of calls, as a context manager and as a decorator."""
    nvtx.range_push("prepare")
    ranges.begin("prepare")
    first = take(11)
    with nvtx.range("batch {}", 7):
        ranges.begin("batch 7")
        second = take(13)
        ranges.end()
    ranges.end()
    nvtx.range_pop()

    @nvtx.range("decorated")
    def decorated() -> torch.Tensor:
        ranges.begin("decorated")
        third = take(17)
        ranges.end()
        return third

    del first, second
    decorated()


def mixed(ranges: Ranges) -> None:
    """Nests each kind of range in the other."""
    with record_function("outer"):
        ranges.begin("outer")
        nvtx.range_push("within outer")
        ranges.begin("within outer")
        first = take(19)
        ranges.end()
        nvtx.range_pop()
        ranges.end()
    nvtx.range_push("outer by NVTX")
    ranges.begin("outer by NVTX")
    with record_function("within NVTX"):
        ranges.begin("within NVTX")
        second = take(23)
        ranges.end()
    third = take(29)
    ranges.end()
    nvtx.range_pop()
    del first, second, third


def in_a_thread(ranges: Ranges) -> None:
    """Ranges of one thread do not affect another thread."""

    def work() -> None:
        first = take(31)
        ranges.begin("in a thread")
        with record_function("in a thread"):
            second = take(37)
        ranges.end()
        del first, second

    with record_function("of the main thread"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def in_training(ranges: Ranges) -> None:
    """Runs a training step, each part in a range."""
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, 16)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    with record_function("training"):
        ranges.begin("training")
        batch = torch.randn(ROWS, WIDTH, device="cuda")
        with record_function("the forward pass"):
            ranges.begin("the forward pass")
            loss = model(batch).square().mean()
            ranges.end()
        with nvtx.range("the backward pass"):
            ranges.begin("the backward pass")
            loss.backward()
            ranges.end()
        optimizer.step()
        ranges.end()


def main() -> None:
    """Runs all cases once."""
    begin(parser(__doc__))
    ranges = Ranges()
    torch.zeros(1, device="cuda")
    for part in (by_record_function, by_nvtx, mixed, in_a_thread, in_training):
        part(ranges)
    checkpoint("trained", ranges=ranges.reported())


if __name__ == "__main__":
    main()
