"""Stops in the middle of models; each place says the class and the name of every module on the stack, innermost first."""
import collections
import json
import os
import sys
import threading

import torch.nn as nn

CALL = getattr(nn.Module, "_wrapped_call_impl", nn.Module._call_impl).__code__


INNER = {"DistributedDataParallel": "module", "FullyShardedDataParallel": "_fsdp_wrapped_module"}


def wrapped(module):
    """The class of what a wrapper stands around."""
    if type(module).__name__ not in INNER:
        return None
    while type(module).__name__ in INNER:
        module = module._modules[INNER[type(module).__name__]]
    return type(module).__name__


def stop(name, root=None):
    modules, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code is CALL:
            modules.append(frame.f_locals["self"])
        frame = frame.f_back
    names = {module: name for name, module in (root or modules[-1]).named_modules()} if modules else {}
    reported = [[type(module).__name__, names.get(module), wrapped(module)] for module in modules]
    place = {"place": name, "thread": threading.get_ident(), "tid": threading.get_native_id(), "modules": reported}
    os.write(1, (json.dumps(place) + "\n").encode())
    os.read(0, 1)


class Leaf(nn.Module):
    def forward(self, name, root=None):
        stop(name, root)


class Chain(nn.Module):
    def __init__(self, *modules):
        super().__init__()
        for number, module in enumerate(modules):
            self.add_module(str(number), module)

    def forward(self, name):
        for module in self._modules.values():
            if module is not None:
                module(name)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = Leaf()
        self.add_module("first", Leaf())
        self.add_module("nothing", None)
        self.add_module("layers", Chain(Chain(Leaf(), shared), Chain(shared, Leaf())))
        self.add_module("größe", Leaf())

    def forward(self, name):
        for module in list(self._modules.values()):
            if module is not None:
                module(name)


class Wide(Net):
    """More attributes than a class shares keys of."""
    def __init__(self):
        super().__init__()
        for number in range(100):
            setattr(self, "attribute_%d" % number, number)


class Ordered(Chain):
    def __init__(self, *modules):
        super().__init__(*modules)
        self._modules = collections.OrderedDict(self._modules)


class DistributedDataParallel(nn.Module):
    """A wrapper that has something to do before it calls what it wraps."""
    def __init__(self, module):
        super().__init__()
        self.add_module(INNER[type(self).__name__], module)

    def forward(self, name):
        stop(name)
        for module in self._modules.values():
            module(name)


class FullyShardedDataParallel(DistributedDataParallel):
    """Another one, with another name for it."""


class Hidden(nn.Module):
    """Its layer is in no module's list."""
    def __init__(self):
        super().__init__()
        self.hidden = [Leaf()]

    def forward(self, name):
        self.hidden[0](name)


def main():
    stop("outside")
    Net()("plain")
    net = Net()
    for _, module in net.named_modules():
        module.__dict__
    net("with dicts")
    Wide()("wide")
    Ordered(Leaf(), Ordered(Leaf()))("ordered")
    Hidden()("hidden")
    DistributedDataParallel(FullyShardedDataParallel(Chain(Leaf(), FullyShardedDataParallel(Leaf()))))("wrapped")
    chain = Leaf()
    for _ in range(30):
        chain = Chain(chain)
    chain("deep")
    # Again and again: what lies at an address was another module, with another name.
    for _ in range(3):
        net = Net()
        net("again")
        net._modules["first"], net._modules["größe"] = net._modules["größe"], net._modules["first"]
        net("swapped")
        net.add_module("late", Leaf())
        net("late")
    # As when a part is computed once more during backward: it is known where it belongs.
    net._modules["größe"]("inner", net)
    os.write(1, b"\n")


main()
