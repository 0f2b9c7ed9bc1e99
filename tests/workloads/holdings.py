"""Keeps tensors in many ways, and prints afterwards what each of them is.

    holdings.py

memwatch reads the process at the first checkpoint, `held`; only for the second, `truth`, the program itself looks up what everything is.
That one has `names`: address of the storage, class, name, shape and dtype; and `saved`: address and node of tensors that
only autograd keeps."""

import collections
import functools
import gc

import torch
from checkpoint import begin, checkpoint, parser

CUDA = "cuda"


class Attention(torch.nn.Module):
    """A layer with a buffer and a parameter of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = torch.nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(width, width))
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the attention output for x."""
        return (self.query(x) @ self.mask) * self.scale.sum()


class Net(torch.nn.Module):
    """A model whose head and embedding share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(500, 64)
        self.h = torch.nn.ModuleList(Attention(64) for _ in range(3))
        self.norm = torch.nn.LayerNorm(64)
        self.head = torch.nn.Linear(64, 500, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = torch.nn.Linear(64, 96, dtype=torch.bfloat16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the scores of the next token."""
        x = self.embed(tokens)
        for layer in self.h:
            x = x + layer(x)
        return self.head(self.norm(x.mean(1)))


class Cache:
    """Keys and values of two layers."""

    def __init__(self) -> None:
        self.layers = [{"keys": made(5, 7), "values": made(5, 9)} for _ in range(2)]


class Server:
    """Requests with their caches."""

    shared = None

    def __init__(self) -> None:
        self.requests = {"req1": Cache(), "req2": Cache()}


def made(*shape: int) -> torch.Tensor:
    """Allocates a tensor of this shape."""
    return torch.zeros(*shape, device=CUDA)


def closure(kept: torch.Tensor):
    """Returns a function that keeps the argument."""

    def inner() -> torch.Tensor:
        return kept

    return inner


def generate(kept: torch.Tensor):
    """Yields before it uses its argument."""
    yield
    print(kept.sum())


def fail(kept: torch.Tensor) -> None:
    """Raises an error."""
    raise ValueError(tuple(kept.shape))


@functools.lru_cache(maxsize=8)
def cached(number: int) -> torch.Tensor:
    """Returns the cached tensor for a number."""
    return made(number, 3)


def storage(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


as_global = made(11)
server = Server()
Server.shared = made(12)
in_closure = closure(made(13))
in_deque = collections.deque([made(14), made(15)])
in_generator = generate(made(16))
next(in_generator)
in_partial = functools.partial(print, made(17))
cached(18)
registry = {"a": {"b": [made(19)]}}
half = made(4096, 128)[:2]
try:
    fail(made(20))
except ValueError as error:
    in_exception = error


def steps(model: Net, optimizer: torch.optim.Optimizer, history: list) -> None:
    """Runs three training steps; each adds a tensor to the history."""
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randint(500, (4, 6), device=CUDA)).square().mean()
        loss.backward()
        optimizer.step()
        history.append(torch.full((21,), loss.item(), device=CUDA))


def unreachable() -> None:
    """Creates an unreachable cycle."""
    kept = [made(24)]
    kept.append(kept)


def result(saved: list) -> torch.Tensor:
    """Returns a number; only its graph keeps two tensors."""
    weight = made(22, 23).requires_grad_()
    powers = weight.exp()
    saved += [(storage(powers), "ExpBackward0"), (storage(weight), "AccumulateGrad")]
    return powers.sum()


def of_model(model: Net, optimizer: torch.optim.Optimizer):
    """Iterates over class, name and tensor of everything that PyTorch names."""
    owners = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield "parameter", name, parameter
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield "gradient", name, parameter.grad
    for name, buffer in model.named_buffers():
        yield "buffer", name, buffer
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                yield "optimizer_state", f"{key} of {owners[id(parameter)]}", value


def of_keepers(history: list):
    """Iterates over path and tensor of everything that the program keeps itself."""
    frame = ".gi_frame" if not hasattr(in_generator, "gi_suspended") else ""
    yield "as_global", as_global
    yield "Server.shared", Server.shared
    yield "in_closure.__closure__[0].cell_contents", in_closure()
    yield "in_deque[1]", in_deque[1]
    yield f"in_generator{frame} → holdings.py:generate: kept", in_generator.gi_frame.f_locals["kept"]
    yield "in_partial.args[0]", in_partial.args[0]
    yield "cached[18]", cached(18)
    yield "registry['a']['b'][0]", registry["a"]["b"][0]
    yield "half", half
    traceback = in_exception.__traceback__.tb_next
    yield "in_exception.__traceback__.tb_next.tb_frame → holdings.py:fail: kept", traceback.tb_frame.f_locals["kept"]
    for index, tensor in enumerate(history):
        yield f"holdings.py:main: history[{index}]", tensor
    for request, cache in server.requests.items():
        for index, layer in enumerate(cache.layers):
            for key, value in layer.items():
                yield f"server.requests['{request}'].layers[{index}]['{key}']", value


def row(kind: str, name: str, tensor: torch.Tensor) -> list:
    """Returns the row of a tensor in the checkpoint."""
    return [storage(tensor), kind, name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def main() -> None:
    """Creates all the tensors and prints the checkpoints."""
    begin(parser(__doc__))
    model = Net().to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters())
    history, saved = [], []
    steps(model, optimizer, history)
    graph = result(saved)
    masters = [parameter.detach().float() for parameter in model.frozen.parameters()]
    gc.collect()
    gc.disable()
    unreachable()
    checkpoint("held")
    names = [row(*part) for part in of_model(model, optimizer)]
    names += [row("tensor", *part) for part in of_keepers(history)]
    names.append(row("tensor", "holdings.py:main: graph", graph))
    names += [row("tensor", f"holdings.py:main: masters[{index}]", master) for index, master in enumerate(masters)]
    checkpoint("truth", names=names, saved=saved)


if __name__ == "__main__":
    main()
