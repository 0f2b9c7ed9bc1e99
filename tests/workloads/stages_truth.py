"""A few training steps of one kind, and how much each phase and module allocated in them.

With --control, hooks in the program measure it (see attribution.py), and the last checkpoint has `truth`: bytes granted by
phase and module. Without it, the same steps run without hooks. Both print the total granted since the checkpoint `ready`,
which is the same number.
"""

from collections.abc import Iterable, Iterator

import torch
from attribution import Meter, granted_bytes, leave, rows
from checkpoint import begin, checkpoint, parser
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 256
BATCH = 16
LENGTH = 64
# Larger batches, in an order that leaves free pieces.
TIMES = (4, 11, 7, 19, 5)


class Training:
    """The trained models with their optimizers, and the loss of one step."""

    batch = BATCH

    def __init__(self, models: dict[str, nn.Module], accumulates: int = 1) -> None:
        self.models = {label: model.to("cuda") for label, model in models.items()}
        self.optimizers = [torch.optim.AdamW(model.parameters()) for model in self.models.values()]
        self.accumulates = accumulates

    def losses(self) -> Iterable[torch.Tensor]:
        """Iterates over the losses of one step; a backward pass follows each."""
        raise NotImplementedError

    def step(self, meter: Meter | None) -> None:
        """Runs one step of all optimizers."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        for _ in range(self.accumulates):
            for loss in self.losses():
                if meter is None:
                    loss.backward()
                else:
                    meter.backward(loss)
        for optimizer in self.optimizers:
            optimizer.step()


def noise(*shape: int) -> torch.Tensor:
    """Returns random numbers on the device."""
    return torch.randn(*shape, device="cuda")


class Transformer(Training):
    """A transformer with bf16 autocast."""

    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, batch_first=True)
        super().__init__({"TransformerEncoder": nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)})

    def losses(self) -> Iterator[torch.Tensor]:
        (model,) = self.models.values()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(noise(self.batch, LENGTH, WIDTH))
        yield nn.functional.mse_loss(output.float(), noise(self.batch, LENGTH, WIDTH))


class ConvNet(nn.Module):
    """Convolutions with in-place operations, which create nodes but allocate nothing, and views between layers."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [(3, 32), (32, 64), (64, 64)]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
            for before, after in blocks
        )
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns ten numbers per image."""
        for block in self.blocks:
            images = self.pool(block(images))
        return self.head(images.flatten(2).transpose(1, 2)[:, 0])


class Convolutions(Training):
    """A convolutional network whose loss is also a module."""

    def __init__(self) -> None:
        super().__init__({"ConvNet": ConvNet()})
        self.loss = nn.MSELoss()
        self.models["MSELoss"] = self.loss

    def losses(self) -> Iterator[torch.Tensor]:
        model = self.models["ConvNet"]
        yield self.loss(model(noise(self.batch, 3, 32, 32)), noise(self.batch, 10))


class Sequence(nn.Module):
    """An LSTM whose last state is used: the backward pass of that slice allocates much, which belongs to the model and to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Returns ten numbers per sequence."""
        states, _ = self.lstm(steps)
        return self.head(states[:, -1])


class Lstm(Training):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__({"Sequence": Sequence()})

    def losses(self) -> Iterator[torch.Tensor]:
        (model,) = self.models.values()
        yield model(noise(self.batch, LENGTH, WIDTH)).square().mean()


class Block(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values of the same shape."""
        return values + self.narrow(nn.functional.gelu(self.wide(values)))


class Checkpointed(nn.Module):
    """Blocks that are recomputed in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values of the same shape."""
        values = self.stem(values)
        for block in self.blocks:
            values = recomputed(block, values, use_reentrant=self.reentrant)
        return values


class Recomputation(Training):
    """Activation checkpointing, in both modes of PyTorch."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__({"Checkpointed": Checkpointed(reentrant=reentrant)})

    def losses(self) -> Iterator[torch.Tensor]:
        (model,) = self.models.values()
        yield model(noise(self.batch, LENGTH, WIDTH)).square().mean()


class Perceptron(nn.Sequential):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


class Accumulation(Training):
    """Gradients of four passes are accumulated per step."""

    def __init__(self) -> None:
        super().__init__({"Perceptron": Perceptron()}, accumulates=4)

    def losses(self) -> Iterator[torch.Tensor]:
        (model,) = self.models.values()
        yield model(noise(self.batch * LENGTH, WIDTH)).square().mean()


class TwoModels(Training):
    """Two models of one class; the second computes on the output of the first."""

    def __init__(self) -> None:
        super().__init__({"Perceptron": Perceptron(), "Perceptron#2": Perceptron()})

    def losses(self) -> Iterator[torch.Tensor]:
        first, second = self.models.values()
        yield second(first(noise(self.batch * LENGTH, WIDTH))).square().mean()


class Compiled(Training):
    """A model compiled by the backend that differentiates ahead of time but generates no kernels, which would need Triton."""

    def __init__(self) -> None:
        super().__init__({"Perceptron": torch.compile(Perceptron(), backend="aot_eager")})

    def losses(self) -> Iterator[torch.Tensor]:
        (model,) = self.models.values()
        yield model(noise(self.batch * LENGTH, WIDTH)).square().mean()


class Loader(Training):
    """Batches come from a loader through pinned memory."""

    def __init__(self) -> None:
        super().__init__({"Perceptron": Perceptron()})
        data = TensorDataset(torch.zeros(4 * BATCH * LENGTH, WIDTH))
        self.loader = DataLoader(data, batch_size=BATCH * LENGTH, pin_memory=True)

    def losses(self) -> Iterator[torch.Tensor]:
        (model,) = self.models.values()
        for (batch,) in self.loader:
            yield model(batch.to("cuda", non_blocking=True)).square().mean()


TRAININGS = {
    "transformer": Transformer,
    "convnet": Convolutions,
    "lstm": Lstm,
    "checkpointing": lambda: Recomputation(reentrant=False),
    "reentrant": lambda: Recomputation(reentrant=True),
    "accumulation": Accumulation,
    "two-models": TwoModels,
    "loader": Loader,
    "compiled": Compiled,
}


def main() -> None:
    """Trains, and prints what each phase and module allocated."""
    options = parser(__doc__)
    options.add_argument("training", choices=TRAININGS, help="what is trained")
    options.add_argument("--steps", type=int, default=3, metavar="N", help="how many steps (default 3)")
    options.add_argument("--vary", action="store_true", help="batches of another size in each step")
    options.add_argument("--control", action="store_true", help="with hooks that measure who allocates")
    arguments = begin(options)
    # PyTorch 2.11 prefers cuDNN's attention, for which the simulated cuDNN has no plan.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.zeros(1, device="cuda")
    checkpoint("ready")
    before = granted_bytes()
    meter = Meter() if arguments.control else None
    training = TRAININGS[arguments.training]()
    if meter is not None:
        for label, model in training.models.items():
            meter.watch_model(label, model)
        for optimizer in training.optimizers:
            meter.watch_optimizer(optimizer)
    for number in range(arguments.steps):
        if arguments.vary:
            training.batch = BATCH * TIMES[number % len(TIMES)]
        training.step(meter)
    facts = {"granted_bytes": granted_bytes() - before, "steps": arguments.steps}
    if meter is not None:
        facts |= {"measured_bytes": meter.total(), "truth": rows(meter)}
    checkpoint("trained", **facts)
    leave()


if __name__ == "__main__":
    main()
