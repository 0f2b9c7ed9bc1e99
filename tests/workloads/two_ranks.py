"""One of two processes that train one model together, each on its own GPU, and how much each phase and module allocates.

Start two, with RANK 0 and 1 and the same --store. With --control, hooks measure the allocations, as in stages_truth.py.
"""

import os

import torch
from attribution import Meter, granted_bytes, leave, rows
from checkpoint import begin, checkpoint, parser
from stages_truth import WIDTH, Block
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

ROWS = 1024
RANKS = 2


class Net(nn.Module):
    """Blocks between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns sixteen numbers per row."""
        values = self.stem(values)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def replicated(rank: int) -> nn.Module:
    """Each rank has all parameters; gradients are averaged."""
    return nn.parallel.DistributedDataParallel(Net().to("cuda"), device_ids=[rank])


def sharded(rank: int) -> nn.Module:
    """Each rank has half of each parameter; the rest is gathered block by block."""
    return FullyShardedDataParallel(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=rank)


def sharded_in_place(_rank: int) -> nn.Module:
    """Sharded without wrappers: the classes of the modules are replaced."""
    net = Net().to("cuda")
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return net


KINDS = {"ddp": replicated, "fsdp": sharded, "fully_shard": sharded_in_place}


def main() -> None:
    """Trains, with a checkpoint after each step."""
    options = parser(__doc__)
    options.add_argument("kind", choices=KINDS, help="how the model is shared")
    options.add_argument("--store", required=True, metavar="FILE", help="where the two find each other")
    options.add_argument("--steps", type=int, default=3, metavar="N", help="how many steps (default 3)")
    options.add_argument("--control", action="store_true", help="with hooks that measure who allocates")
    arguments = begin(options, devices=RANKS)
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{arguments.store}", rank=rank, world_size=RANKS)
    before = granted_bytes()
    meter = Meter() if arguments.control else None
    model = KINDS[arguments.kind](rank)
    optimizer = torch.optim.AdamW(model.parameters())
    if meter is not None:
        meter.watch_model("FSDPNet" if arguments.kind == "fully_shard" else "Net", model)
        meter.watch_optimizer(optimizer)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(ROWS, WIDTH, device="cuda")).square().mean()
        if meter is None:
            loss.backward()
        else:
            meter.backward(loss)
        optimizer.step()
        del loss
        checkpoint(f"step {step + 1}", devices=(rank,))
    facts = {"granted_bytes": granted_bytes() - before}
    if meter is not None:
        facts |= {"measured_bytes": meter.total(), "truth": rows(meter)}
    checkpoint("trained", devices=(rank,), **facts)
    distributed.destroy_process_group()
    if meter is not None:
        leave()


if __name__ == "__main__":
    main()
