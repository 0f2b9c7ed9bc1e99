"""Tensors of a small training, on the host: prints where their storages are, stops, and says then what they are by itself."""

import gc
import json
import os
import threading
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch import nn  # noqa: E402


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(width, width))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (self.query(x) @ self.mask) * self.scale.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.h = nn.ModuleList(Attention(16) for _ in range(3))
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.zeros(2, 3, 4, 5, 6, 7))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.h:
            x = x + layer(x)
        return self.head(self.norm(x.mean(1)))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept = x * 1
        ctx.save_for_backward(kept)
        PLACES["own function"] = where(kept)
        return kept * kept

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


PLACES = {}


def where(tensor):
    storage = tensor.untyped_storage()
    return [storage.data_ptr(), storage.nbytes()]


class Cache:
    def __init__(self):
        self.layers = [{"keys": torch.ones(5, 7), "values": torch.zeros(5, 7)} for _ in range(2)]


class Server:
    def __init__(self):
        self.requests = {"req1": Cache(), "req2": Cache()}


def steps(model, optimizer, history):
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randint(50, (4, 6))).square().mean()
        loss.backward()
        optimizer.step()
        history.append(torch.full((11,), loss.item()))


server = Server()
view = torch.zeros(1000, 300)[:2]
model = Net()
optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if n != "frozen"])


def saved():
    weight = torch.ones(13, 17, requires_grad=True)
    result = weight.exp()
    PLACES["saved"] = where(result)
    kept = result.sum()
    del result
    return kept, Squared.apply(torch.ones(19, requires_grad=True)).sum()


graph, own = saved()
cycle = [torch.ones(23)]
cycle.append(cycle)
PLACES["cycle"] = where(cycle[0])


def tensors():
    return [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]


def main():
    global cycle
    history = []
    steps(model, optimizer, history)
    gc.collect()
    gc.disable()
    del cycle
    storages = {tuple(where(tensor)) for tensor in tensors()}
    storages |= {tuple(where(p.grad)) for p in model.parameters() if p.grad is not None}
    storages |= {tuple(place) for place in PLACES.values()}
    blocks = sorted(place for place in storages if place[0] != 0 and place[1] != 0)
    print(json.dumps({"blocks": blocks, "tid": threading.get_native_id()}), flush=True)
    del storages, blocks
    os.read(0, 1)
    print(json.dumps(truth(history)), flush=True)
    os.read(0, 1)


def truth(history):
    names = []

    def put(kind, name, tensor):
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        names.append([where(tensor)[0], kind, name, shape, dtype])

    owners = {id(p): n for n, p in model.named_parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        put("parameter", name, parameter)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            put("gradient", name, parameter.grad)
    for name, buffer in model.named_buffers():
        put("buffer", name, buffer)
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                put("optimizer_state", f"{key} of {owners[id(parameter)]}", value)
    for index, tensor in enumerate(history):
        put("tensor", f"held.py:main: history[{index}]", tensor)
    for request, cache in server.requests.items():
        for index, layer in enumerate(cache.layers):
            for key, value in layer.items():
                put("tensor", f"server.requests['{request}'].layers[{index}]['{key}']", value)
    put("tensor", "view", view)
    return {"names": names, "places": PLACES}


main()
