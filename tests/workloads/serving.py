"""An inference server's tensors on the GPU, beside the stand-in scheduler of the engines' tests: real memory of real
PyTorch, and a pool of KV cache blocks with the released modules, names and layouts of vLLM.

    serving.py DIRECTORY

DIRECTORY has `engines.py`. The pool changes between the checkpoints and rests at them.
"""

import sys

import torch
from checkpoint import begin, checkpoint, parser

BLOCKS = 400


def serve(scheduler, engines) -> None:
    """Serves, with the scheduler in a variable of the running method."""
    checkpoint("serving", pool=engines.truth(scheduler))
    pool = scheduler.kv_cache_manager.block_pool
    taken = [pool.take() for _ in range(100)]
    scheduler.running.append(object())
    checkpoint("busier", pool=engines.truth(scheduler))
    for block in taken:
        pool.give(block, None)
    scheduler.running.pop()
    checkpoint("quieter", pool=engines.truth(scheduler))


def main() -> None:
    """Makes the server and lets it serve."""
    options = parser(__doc__)
    options.add_argument("directory")
    arguments = begin(options)
    sys.path.insert(0, arguments.directory)
    import engines

    # The bytes that the configuration of the pool names, in four layers.
    layers = [torch.zeros(BLOCKS << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    serve(engines.server(BLOCKS), engines)
    del layers


if __name__ == "__main__":
    main()
