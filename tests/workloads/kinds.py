"""Programs of many kinds, each idle: prints the allocator state of `torch.cuda.memory._snapshot()` and, after the next line of input, what its tensors are.

    kinds.py KIND [--store FILE]

At the checkpoint "held", `segments` has the allocator state; at "truth", `names` has class, name and storage of everything that PyTorch names. The
kinds `ddp`, `fsdp` and `fully_shard` need two processes, with RANK 0 and 1 and the same --store. `gpt2` and `llama` need transformers.
"""

import gc
import os
import sys
from collections.abc import Iterator
from functools import partial

import torch
from checkpoint import begin, checkpoint, parser
from late_books import state
from torch import nn

CUDA = "cuda"
KEPT: dict[str, object] = {}


class Mixin:
    """A base class before `Module`, which changes the layout of instances."""


class Net(Mixin, nn.Module):
    """A small model with a buffer."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values of the same shape."""
        return self.second(self.norm(self.first(values)).relu())


def trained(model: nn.Module, batch: torch.Tensor, steps: int = 2) -> torch.optim.Optimizer:
    """Trains some steps and keeps the gradients."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(batch)
        (output[0] if isinstance(output, tuple) else getattr(output, "logits", output)).square().mean().backward()
        optimizer.step()
    return optimizer


def graphs() -> list[tuple[str, nn.Module, torch.optim.Optimizer | None]]:
    """A captured training step, and another graph that shares its pool."""
    model = Net().to(CUDA)
    batch = torch.randn(64, 96, device=CUDA)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(batch).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        loss = model(batch).square().mean()
        loss.backward()
    with torch.cuda.graph(second, pool=first.pool()):
        output = model(batch)
    first.replay()
    second.replay()
    KEPT.update(first=first, second=second, loss=loss, output=output, batch=batch)
    return [("", model, None)]


def two_models() -> list[tuple[str, nn.Module, torch.optim.Optimizer | None]]:
    """Two models of one class, each with an optimizer."""
    batch = torch.randn(64, 96, device=CUDA)
    found = []
    for name in ("teacher", "student"):
        KEPT[name] = Net().to(CUDA)
        found.append((f"KEPT['{name}'].", KEPT[name], trained(KEPT[name], batch)))
    return found


def rank_of(kind: str, store: str) -> list[tuple[str, nn.Module, torch.optim.Optimizer | None]]:
    """One of two processes that train one model."""
    from torch import distributed
    from two_ranks import KINDS, ROWS, WIDTH

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    model = KINDS[kind](rank)
    batch = torch.randn(ROWS, WIDTH, device=CUDA)
    return [("", model, trained(model, batch))]


def gpt2() -> list[tuple[str, nn.Module, torch.optim.Optimizer | None]]:
    """Hugging Face's GPT-2 with random weights; the embedding is tied to the head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=96, n_head=4, vocab_size=1000, n_positions=64)).to(CUDA)
    return [("", model, trained(model, torch.randint(1000, (2, 32), device=CUDA)))]


def llama() -> list[tuple[str, nn.Module, torch.optim.Optimizer | None]]:
    """Hugging Face's Llama with a cache between two passes."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=96, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, vocab_size=1000, max_position_embeddings=128
    )
    model = LlamaForCausalLM(config).to(CUDA).eval()
    cache = DynamicCache()
    with torch.no_grad():
        tokens = torch.randint(1000, (2, 16), device=CUDA)
        for _ in range(3):
            output = model(tokens, past_key_values=cache, use_cache=True)
            tokens = output.logits[:, -1:].argmax(-1)
    KEPT.update(cache=cache, tokens=tokens)
    return [("", model, None)]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a distributed tensor that is in this process."""
    return getattr(tensor, "_local_tensor", tensor)


def names(prefix: str, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Iterates over class, name and tensor of everything that PyTorch names."""
    owners = {id(parameter): prefix + name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield "parameter", prefix + name, parameter
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield "gradient", prefix + name, parameter.grad
    for name, buffer in model.named_buffers():
        yield "buffer", prefix + name, buffer
    for parameter, kept in (optimizer.state if optimizer else {}).items():
        for key, value in kept.items():
            if isinstance(value, torch.Tensor):
                yield "optimizer_state", f"{key} of {owners[id(parameter)]}", value


def rows(found: list[tuple[str, nn.Module, torch.optim.Optimizer | None]]) -> list[list[object]]:
    """Returns the rows of the checkpoint: only tensors with bytes on a device."""
    all_names = (row for part in found for row in names(*part))
    tensors = ((kind, name, local(tensor)) for kind, name, tensor in all_names)
    on_device = ((kind, name, tensor) for kind, name, tensor in tensors if tensor.is_cuda)
    sized = ((kind, name, tensor.untyped_storage()) for kind, name, tensor in on_device)
    return [[storage.data_ptr(), kind, name] for kind, name, storage in sized if storage.nbytes() and storage.data_ptr()]


KINDS = {"graphs": graphs, "two_models": two_models, "gpt2": gpt2, "llama": llama}
RANKS = ("ddp", "fsdp", "fully_shard")


def main() -> None:
    """Runs the program and stops at both checkpoints."""
    options = parser(__doc__)
    options.add_argument("kind", choices=[*KINDS, *RANKS])
    options.add_argument("--store", metavar="FILE", help="where two ranks find each other")
    arguments = begin(options, devices=2 if "--store" in sys.argv else 1)
    make = KINDS.get(arguments.kind) or partial(rank_of, arguments.kind, arguments.store)
    found = make()
    gc.collect()
    torch.cuda.synchronize()
    state("held", torch.cuda.device_count())
    checkpoint("truth", devices=(), names=rows(found))


if __name__ == "__main__":
    main()
