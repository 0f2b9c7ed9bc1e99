"""Small jobs whose memory use follows a known course: test input for forecasts and for verdicts on leaks.

    courses.py linear --seconds 30 --rate 12 --seed 3

The jobs train (or serve) a tiny model a few times a second. Lines that keep memory end in a comment with their name. A job that runs out of
memory exits normally, with a checkpoint "refused".
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20
WIDTH = 64


def size_bytes(size_mib: float) -> int:
    """Converts MiB to bytes, at least one block of the allocator."""
    return max(512, int(size_mib * MIB))


def room(size_mib: float) -> torch.Tensor:
    """Allocates device memory of this size for temporary use."""
    return torch.empty(size_bytes(size_mib), dtype=torch.uint8, device="cuda")


class Job:
    """A tiny model, and the memory that it keeps."""

    def __init__(self, seconds: float, rate: float, seed: int, pace: float) -> None:
        self.seconds, self.rate, self.pace = seconds, rate, pace
        self.chance = random.Random(seed)
        self.model = torch.nn.Linear(WIDTH, WIDTH).to("cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.base = room(64)
        self.kept: list[torch.Tensor] = []
        self.cache: dict[int, torch.Tensor] = {}
        self.start = time.monotonic()
        self.done = 0

    def part(self) -> float:
        """Returns the elapsed share of the job's duration."""
        return (time.monotonic() - self.start) / self.seconds

    def share_mib(self) -> float:
        """Returns how many MiB a step may keep, for the requested rate per second."""
        return self.rate / self.pace

    def train(self, work_mib: float = 24) -> None:
        """Runs one training step with this much temporary memory."""
        work = room(work_mib)
        loss = self.model(torch.randn(8, WIDTH, device="cuda")).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        del work
        self.done += 1

    def keep(self, size_mib: float) -> None:
        """Keeps memory that is never used again."""
        self.kept.append(torch.empty(size_bytes(size_mib), dtype=torch.uint8, device="cuda"))  # kept

    def remember(self, key: int, size_mib: float) -> None:
        """Allocates an entry of the cache unless it exists."""
        if key not in self.cache:
            self.cache[key] = torch.empty(size_bytes(size_mib), dtype=torch.uint8, device="cuda")  # cached


def steady(job: Job) -> None:
    """Every step needs the same memory."""
    job.train()


def batches(job: Job) -> None:
    """The memory per step varies."""
    job.train(job.chance.uniform(8, 96))


def evaluation(job: Job) -> None:
    """Steps need the same memory; a large temporary allocation follows every fortieth."""
    job.train()
    if job.done % 40 == 39:
        room(job.rate * 10)


def warm_up(job: Job) -> None:
    """The memory per step grows at first."""
    job.train(24 + min(job.part() / 0.15, 1) * job.rate * 8)


def linear(job: Job) -> None:
    """Each step keeps the same amount."""
    job.train()
    job.keep(job.share_mib())


def noisy(job: Job) -> None:
    """Both the kept and the temporary memory per step vary."""
    job.train(job.chance.uniform(8, 64))
    job.keep(job.chance.uniform(0, 2 * job.share_mib()))


def bursts(job: Job) -> None:
    """Some steps, at random, keep a large amount."""
    job.train()
    if job.chance.random() < 0.15:
        job.keep(job.share_mib() / 0.15)


def faster(job: Job) -> None:
    """The amount kept per step grows."""
    job.train()
    job.keep(job.share_mib() * (0.5 + 1.5 * job.part()))


def with_evaluation(job: Job) -> None:
    """Each step keeps the same amount; a large temporary allocation follows every fortieth."""
    job.train()
    job.keep(job.share_mib())
    if job.done % 40 == 39:
        room(100)


def epochs(job: Job) -> None:
    """Every thirtieth step keeps a large amount."""
    job.train()
    if job.done % 30 == 29:
        job.keep(job.share_mib() * 30)


def slower(job: Job) -> None:
    """The amount kept per step shrinks."""
    job.train()
    job.keep(job.share_mib() * (1.5 - job.part()))


def sequence(job: Job) -> None:
    """Each step needs more temporary memory than the one before, and keeps nothing."""
    job.train(24 + job.done * job.share_mib())


def late(job: Job) -> None:
    """Each step keeps the same amount after the first third."""
    job.train()
    if job.part() > 0.33:
        job.keep(job.share_mib() * 1.5)


def little(job: Job) -> None:
    """Each step keeps very little."""
    job.train()
    job.keep(1 / 1024)


def cache_once(job: Job) -> None:
    """A cache fills during the first quarter."""
    job.train()
    job.remember(int(min(job.part(), 0.25) * 200), job.rate)


def cache_slow(job: Job) -> None:
    """A cache is queried at random, so misses become rarer."""
    job.train()
    job.remember(int(job.chance.random() * 36), job.rate)


def cache_late(job: Job) -> None:
    """A cache fills during the first half, at a constant rate."""
    job.train()
    job.remember(int(min(job.part(), 0.5) * 200), job.rate)


def fragments(job: Job) -> None:
    """Batches of varying sizes, part of which are kept for a while and so leave holes."""
    job.train(job.chance.uniform(16, 64))
    job.kept = job.kept[-24:]
    job.keep(job.chance.uniform(2, 18))


def server(job: Job) -> None:
    """Serves requests of varying sizes, without training."""
    with torch.no_grad():
        work = room(job.chance.uniform(8, 128))
        job.model(torch.randn(8, WIDTH, device="cuda"))
        del work


def server_leak(job: Job) -> None:
    """Serves requests, and keeps memory for each."""
    server(job)
    job.keep(job.share_mib())


COURSES: dict[str, Callable[[Job], None]] = {
    course.__name__: course
    for course in [
        steady, batches, evaluation, warm_up, linear, noisy, bursts, faster, with_evaluation, epochs, slower, sequence, late,
        little,
        cache_once, cache_slow, cache_late, fragments, server, server_leak,
    ]
}  # fmt: skip


def main() -> None:
    """Runs one course, and with --beside another in a second process."""
    options = parser(__doc__)
    options.add_argument("course", choices=COURSES)
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--rate", type=float, default=8, help="MiB a second")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--pace", type=float, default=8, help="steps a second")
    options.add_argument("--beside", choices=COURSES, help="a second process takes this course")
    arguments = begin(options)
    other = None
    if arguments.beside:
        words = [arguments.beside, "--seconds", str(arguments.seconds), "--seed", str(arguments.seed + 1)]
        other = subprocess.Popen([sys.executable, __file__, *words])
    job = Job(arguments.seconds, arguments.rate, arguments.seed, arguments.pace)
    step = COURSES[arguments.course]
    label = "done"
    try:
        while job.part() < 1:
            step(job)
            time.sleep(1 / arguments.pace)
    except torch.OutOfMemoryError:
        label = "refused"
    if other:
        other.terminate() if label == "refused" else None
        other.wait()
    checkpoint(label)


if __name__ == "__main__":
    main()
