"""An inference engine with as many Python objects as vLLM has: classes, functions and dicts of thousands of modules,
and among them a model and its cache of keys and values.

    engine_heap.py [--objects N] [--freeze] [--serve SECONDS]

At the checkpoint it rests. With --serve it then serves requests for so long, and moves objects and tensors as fast as
the processor lets it. With --freeze the collector leaves the first objects alone, as vLLM makes it do.
"""

import collections
import gc
import itertools
import marshal
import sys
import time
import types

import torch
from checkpoint import begin, checkpoint, parser

LAYERS = 48
WIDTH = 64
SLOTS = 16
FILE = "/usr/lib/python3/site-packages/models/modeling.py"
# The modules of a library of models: each has classes that inherit from each other, and their configurations.
SOURCE = """
import collections
DEFAULTS = {f"option_{number}": {"kind": "float", "range": [0, number], "names": (str(number), "x")} for number in range(24)}
def register(**options):
    def wrap(function):
        def inner(self, *values, scale: float = 1.0, **named):
            return function(self, *values, **options)
        return inner
    return wrap
class Config:
    keys = {"width": 64}
    def __init__(self, **values):
        self.values, self.names, self.parts = dict(values), list(values), [{"name": name} for name in values]
    @property
    def width(self): return self.values["width"]
    @classmethod
    def of(cls, name): return cls(**{name: 1})
""" + "".join(
    f"""
class Block{number}(Config if {number} == 0 else Block{number - 1}):
    @register(eps={number})
    def forward(self, hidden: "Tensor", mask: "Tensor" = None): return hidden
    def reset(self): self.state = collections.OrderedDict()
    @staticmethod
    def make(width): return [lambda value: value + width for _ in range(2)]
"""
    for number in range(6)
) + """
CONFIGS = [Config(width=number, layers=[number], parts={"a": [number]}) for number in range(12)]
TABLE = {number: (config, [config], {"config": config}) for number, config in enumerate(CONFIGS)}
MAKERS = Block5.make(2)
"""


class Layer(torch.nn.Module):
    """A decoder layer, as far as its parameters go."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.o_proj = torch.nn.Linear(WIDTH, WIDTH)
        self.gate_up_proj = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down_proj = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)


class Request:
    """A request and its pages of the cache."""

    def __init__(self, number: int) -> None:
        self.number, self.tokens, self.pages = number, [number], {"pages": [(number, 0)], "slots": {}}
        self.logits: list[torch.Tensor] = []


class Engine:
    """The model, its cache, and the requests in it."""

    def __init__(self) -> None:
        self.model = torch.nn.ModuleDict(
            {"embed": torch.nn.Embedding(1000, WIDTH), "layers": torch.nn.ModuleList(Layer() for _ in range(LAYERS))}
        ).to("cuda")
        self.kv_caches = [[[torch.zeros(SLOTS, WIDTH, device="cuda") for _ in range(2)]] for _ in range(LAYERS)]
        self.numbers = itertools.count()
        self.waiting: collections.deque[Request] = collections.deque()
        self.running: dict[int, Request] = {}
        self.finished: list[Request] = []
        self.scratch = {"hidden": torch.zeros(SLOTS, WIDTH, device="cuda")}

    @torch.no_grad()
    def step(self) -> None:
        """New requests come, each running one gets a token, and some are finished."""
        self.waiting.extend(Request(next(self.numbers)) for _ in range(4))
        while self.waiting and len(self.running) < 64:
            request = self.waiting.popleft()
            self.running[request.number] = request
        hidden = self.scratch["hidden"] = self.scratch["hidden"] + 1
        for request in list(self.running.values()):
            request.tokens.append(len(request.tokens))
            request.pages["slots"][len(request.tokens)] = {"page": [request.number]}
            request.logits = [hidden[:1] * 2]
            if len(request.tokens) > 12:
                self.finished.append(self.running.pop(request.number))
        del self.finished[:-256]
        layer = next(self.numbers) % LAYERS
        self.kv_caches[layer][0].reverse()


def load_library(objects: int) -> int:
    """Makes modules until the process has so many objects."""
    # Each module has its own code, as on import.
    code = marshal.dumps(compile(SOURCE, FILE, "exec"))
    made = 0
    while len(gc.get_objects()) < objects:
        for _ in range(50):
            module = types.ModuleType(f"models.modeling_{made}")
            module.__file__ = FILE
            sys.modules[module.__name__] = module
            exec(marshal.loads(code), module.__dict__)
            made += 1
    return made


def main() -> None:
    """At the checkpoint it rests."""
    options = parser(__doc__)
    options.add_argument("--objects", type=int, default=720_000, metavar="N", help="how many (default 720,000)")
    options.add_argument("--serve", type=float, default=0, metavar="SECONDS", help="for how long it serves requests")
    options.add_argument("--freeze", action="store_true", help="exempt what was loaded from the collector")
    arguments = begin(options)
    engine = Engine()
    modules = load_library(arguments.objects)
    gc.collect()
    objects = len(gc.get_objects())
    if arguments.freeze:
        gc.freeze()
    checkpoint("loaded", objects=objects, modules=modules)
    until = time.monotonic() + arguments.serve
    while time.monotonic() < until:
        engine.step()
    checkpoint("served", finished=len(engine.finished))


if __name__ == "__main__":
    main()
