"""Measures inside the program which phase and module allocate, by hooks on modules, optimizers and nodes of the backward graph.

At each hook, the bytes granted by the caching allocator since the previous hook are charged to the phase and module that ran
in between. The hooks allocate nothing on the device, so a run with hooks allocates what a run without them does. memwatch is
tested on a run without hooks; the hooks run in a separate control run.

A node of the backward graph belongs to the innermost module whose call created it: the module whose outputs lead to the
node, while neither its inputs nor the outputs of modules called within it do.
A wrapper (DistributedDataParallel and the like) counts as the module that it wraps.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import NoReturn

import torch


WRAPPED = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


def granted_bytes(device: int | None = None) -> int:
    """Returns the bytes granted by the allocator of the device (by default the current one) since the process started."""
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))


def leave() -> NoReturn:
    """Exits at once, after the last report.

    PyTorch's backward thread releases the Python objects of a pass, of hooks and of recomputed parts shortly after the pass. If the interpreter exits before
    that, the thread cannot take the interpreter lock and the program aborts (seen with PyTorch 2.15 on Python 3.11, on a busy machine).
    """
    os._exit(0)


@dataclass(frozen=True)
class Owner:
    """What allocates: a phase, and a module if one is running."""

    stage: str
    model: str | None = None
    name: str | None = None
    module_class: str | None = None
    recomputed: bool = False


OUTSIDE = Owner("outside")


class Meter:
    """Charges the bytes granted on a device, by default the current one, to the running phase and module."""

    def __init__(self, device: int | None = None) -> None:
        self.bytes: Counter[Owner] = Counter()
        self._device = device
        self._owner = OUTSIDE
        self._seen = granted_bytes(device)
        self._begun = self._seen
        self._is_backward = False
        self._nodes: dict[object, Owner] = {}
        self._stack: list[Owner] = []

    def watch_model(self, label: str, model: torch.nn.Module) -> None:
        """Installs hooks on every module of a model, under its name without the parts that wrappers add.

        A compiled model is hooked as a whole: hooks on its submodules would be compiled too.
        """
        for name, module in model.named_modules():
            self._watch_module(label, own_name(model, name), module)
            if is_a(module, "OptimizedModule"):
                break

    def watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Installs hooks on the steps of an optimizer."""
        optimizer.register_step_pre_hook(lambda *_: self._push(Owner("optimizer")))
        optimizer.register_step_post_hook(lambda *_: self._pop())

    def backward(self, loss: torch.Tensor) -> None:
        """Runs the backward pass of a loss."""
        with self.during_backward(loss):
            loss.backward()

    @contextmanager
    def during_backward(self, loss: torch.Tensor) -> Iterator[None]:
        """Marks the body of the `with` statement as the backward pass of a loss."""
        self._claim(loss, Owner("backward"))
        self._push(Owner("backward"))
        self._is_backward = True
        yield
        self._is_backward = False
        self._pop()
        self._nodes.clear()

    def total(self) -> int:
        """Returns the bytes granted since the meter was created."""
        self._charge()
        return self._seen - self._begun

    def _charge(self) -> None:
        now = granted_bytes(self._device)
        if now != self._seen:
            self.bytes[self._owner] += now - self._seen
            self._seen = now

    def _become(self, owner: Owner) -> None:
        self._charge()
        self._owner = owner

    def _push(self, owner: Owner) -> None:
        self._stack.append(self._owner)
        self._become(owner)

    def _pop(self) -> None:
        self._become(self._stack.pop())

    def _watch_module(self, label: str, name: str, module: torch.nn.Module) -> None:
        module_class = type(module).__name__

        def before(_module: object, arguments: object) -> None:
            # Nodes created so far belong to the caller, including those of parameters that are views of a larger tensor.
            made = chain(_tensors(arguments), _parameters(module))
            for tensor in made:
                self._claim(tensor, replace(self._owner, stage="backward", recomputed=False))
            stage = "backward" if self._is_backward else "forward"
            self._push(Owner(stage, label, name, module_class, self._is_backward))

        def claim(_module: object, _arguments: object, outputs: object) -> None:
            for tensor in _tensors(outputs):
                self._claim(tensor, Owner("backward", label, name, module_class))

        def after(module: object, arguments: object, outputs: object) -> None:
            claim(module, arguments, outputs)
            self._pop()

        # Runs outside the existing hooks of the module, and before the hooks that these put on its outputs.
        module.register_forward_pre_hook(before, prepend=True)
        module.register_forward_hook(claim, prepend=True)
        # Also runs if the call ends early: a recomputation stops once it has the tensors that it needs.
        module.register_forward_hook(after, always_call=True)

    def _claim(self, tensor: torch.Tensor, owner: Owner) -> None:
        """Assigns to this owner the nodes behind a tensor that have no owner yet."""
        waiting = [tensor.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in self._nodes:
                continue
            self._nodes[node] = owner
            if node is tensor.grad_fn:
                # The program's hooks on the tensor run within the node, before the prehooks of the node.
                tensor.register_hook(self._node_hook(owner))
            node.register_prehook(self._node_hook(owner))
            waiting.extend(next_node for next_node, _ in node.next_functions)

    def _node_hook(self, owner: Owner) -> Callable[[object], None]:
        return lambda _gradients: self._become(owner)


def is_a(module: torch.nn.Module, wrapper: str) -> bool:
    """Returns whether the module is a wrapper of this class, without the slow import of the class."""
    return type(module).__name__ == wrapper


def own_name(model: torch.nn.Module, name: str) -> str:
    """Returns the name of a module without the parts that wrappers add."""
    parts = [part for part in name.split(".") if part not in WRAPPED]
    if is_a(model, "DistributedDataParallel"):
        parts = parts[1:]
    return ".".join(parts)


def _parameters(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Iterates over the parameters of the module and its submodules, whatever type of tensor now replaces them.

    For a wrapper that gathers parameters in its forward call, they are those of the previous call.
    """
    if is_a(module, "FullyShardedDataParallel"):
        return
    yield from (value for value in chain(vars(module).values(), module._parameters.values()) if torch.is_tensor(value))
    for inner in module.children():
        yield from _parameters(inner)


def _tensors(outputs: object) -> Iterator[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from (tensor for value in outputs.values() for tensor in _tensors(value))
    elif isinstance(outputs, Iterable) and not isinstance(outputs, str):
        yield from (tensor for value in outputs for tensor in _tensors(value))


def rows(meter: Meter) -> list[dict[str, object]]:
    """Returns the measurements as rows for JSON, largest first."""
    return [{**vars(owner), "bytes": count} for owner, count in meter.bytes.most_common()]
