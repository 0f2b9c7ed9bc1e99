"""Who allocates in a training, as seen from inside: by hooks on modules, optimizers and nodes of the backward graph.

At every hook, what the caching allocator has granted since the hook before is charged to whoever was at work in between.
The hooks allocate nothing on the device, so that a run with them allocates what a run without them does; they belong into a
control run all the same, since they are what memwatch does without.

A node of the backward graph belongs to the innermost module whose call made it: to the one whose outputs lead to it, but
not its inputs, nor the outputs of the modules called within.
A wrapper (DistributedDataParallel and the like) is the module that it wraps.
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
    """What the allocator of the device (by default of the current one) has granted since the process began, in bytes."""
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))


def leave() -> NoReturn:
    """Ends a program that has reported all that it has to say, at once.

    PyTorch's backward thread lets go of the Python objects of a pass, of hooks and of recomputed parts, a little after it is over. An interpreter that ends in
    between takes its lock away, and the program is aborted (seen with PyTorch 2.15 on Python 3.11, on a busy machine).
    """
    os._exit(0)


@dataclass(frozen=True)
class Owner:
    """Who is at work: a stage, and the module, where it is for one."""

    stage: str
    model: str | None = None
    name: str | None = None
    module_class: str | None = None
    recomputed: bool = False


OUTSIDE = Owner("outside")


class Meter:
    """Charges what is granted on a device, by default on the current one, to whoever is at work."""

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
        """Watches every module of a model, under the names that they have without what wrappers put in.

        A compiled one is watched as a whole: hooks on what is in it would be compiled, too.
        """
        for name, module in model.named_modules():
            self._watch_module(label, own_name(model, name), module)
            if is_a(module, "OptimizedModule"):
                break

    def watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Watches the steps of an optimizer."""
        optimizer.register_step_pre_hook(lambda *_: self._push(Owner("optimizer")))
        optimizer.register_step_post_hook(lambda *_: self._pop())

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass of a loss."""
        with self.during_backward(loss):
            loss.backward()

    @contextmanager
    def during_backward(self, loss: torch.Tensor) -> Iterator[None]:
        """What runs within is the backward pass of a loss."""
        self._claim(loss, Owner("backward"))
        self._push(Owner("backward"))
        self._is_backward = True
        yield
        self._is_backward = False
        self._pop()
        self._nodes.clear()

    def total(self) -> int:
        """What was granted since the meter was made."""
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
            # What was made on the way here is the caller's; so are parameters that are parts of a larger tensor.
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

        # Around the hooks that the module has already, and before the ones that they put on its outputs.
        module.register_forward_pre_hook(before, prepend=True)
        module.register_forward_hook(claim, prepend=True)
        # Also where the call ends early, as a recomputation does that has what it needs.
        module.register_forward_hook(after, always_call=True)

    def _claim(self, tensor: torch.Tensor, owner: Owner) -> None:
        """The nodes behind a tensor that are nobody's are this owner's."""
        waiting = [tensor.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in self._nodes:
                continue
            self._nodes[node] = owner
            if node is tensor.grad_fn:
                # What the program hooks to the tensor runs within the node, and before what is hooked to the node.
                tensor.register_hook(self._node_hook(owner))
            node.register_prehook(self._node_hook(owner))
            waiting.extend(next_node for next_node, _ in node.next_functions)

    def _node_hook(self, owner: Owner) -> Callable[[object], None]:
        return lambda _gradients: self._become(owner)


def is_a(module: torch.nn.Module, wrapper: str) -> bool:
    """Whether it is a wrapper of this class, which need not be imported: that takes seconds."""
    return type(module).__name__ == wrapper


def own_name(model: torch.nn.Module, name: str) -> str:
    """The name of a module as the model has it without wrappers."""
    parts = [part for part in name.split(".") if part not in WRAPPED]
    if is_a(model, "DistributedDataParallel"):
        parts = parts[1:]
    return ".".join(parts)


def _parameters(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The module's own parameters and those below it, whatever kind of tensor stands for them now.

    Below a wrapper that gathers them when it is called, they are those of the call before.
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
    """What the meter has, as JSON takes it: largest first."""
    return [{**vars(owner), "bytes": count} for owner, count in meter.bytes.most_common()]
