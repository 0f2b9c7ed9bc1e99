"""Compares the frames of live blocks in two memory snapshots: memwatch's with native frames, and PyTorch's own with stacks="all".

    same_frames.py OURS TRUTH

prints one line of JSON: how many blocks were `compared`, how many of them are `without_python`, how many stacks are `cut`, how many blocks have no
native frame at all (`missing`), how many frames have a function `named` in both, and the blocks that `differ`.

Native frames are compared by file and address, from the caller of the allocator on: the inner frames are different in the two. PyTorch puts the
interpreter loop beside the Python frames, with only one Python frame per loop, so native and Python frames are compared separately.
PyTorch names functions by exported symbols only (TORCH_SYMBOLIZE_MODE=dladdr).
"""

import json
import pickle
import sys
from pathlib import Path

ALLOCATOR = "libc10_cuda.so"
LOOP = "_PyEval_EvalFrameDefault"
MISSING = "memwatch: further native frames are missing"
Frames = list[dict[str, object]]


def blocks(path: str) -> dict[int, Frames]:
    """Returns the frames of each live block, by its address."""
    snapshot = pickle.loads(Path(path).read_bytes())
    all_blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {block["address"]: block["frames"] for block in all_blocks if block["state"] == "active_allocated"}


def is_python(frame: dict[str, object]) -> bool:
    """Returns whether a frame is a Python frame."""
    return str(frame["filename"]).endswith(".py")


def callers(frames: Frames) -> Frames:
    """Returns the native frames that call the allocator, without the interpreter loop."""
    native = [frame for frame in frames if not is_python(frame)]
    files = [Path(str(frame["filename"])).name for frame in native]
    if ALLOCATOR not in files:
        return []
    begin = files.index(ALLOCATOR)
    while begin < len(files) and files[begin] == ALLOCATOR:
        begin += 1
    return [frame for frame in native[begin:] if not str(frame["name"]).startswith(LOOP)]


def places(frames: Frames) -> list[tuple[str, object]]:
    """Returns file and address of native frames."""
    return [(Path(str(frame["filename"])).resolve().name, frame["line"]) for frame in frames]


def python(frames: Frames) -> list[tuple[object, object, str]]:
    """Returns the Python frames."""
    own = [frame for frame in frames if is_python(frame)]
    return [(frame["filename"], frame["line"], str(frame["name"]).split(".")[-1]) for frame in own]


def plain(name: object) -> str:
    """Removes from a name the parts that demanglers format differently: spaces, and everything after the function's name."""
    return str(name).split("(")[0].replace(" ", "")


def main() -> None:
    """Compares block by block."""
    ours, truth = blocks(sys.argv[1]), blocks(sys.argv[2])
    reported = {"compared": 0, "without_python": 0, "cut": 0, "missing": 0, "named": 0, "differ": []}
    for address in sorted(ours.keys() & truth.keys()):
        native, true_native = callers(ours[address]), callers(truth[address])
        if not native:
            reported["missing"] += 1
            continue
        reported["compared"] += 1
        reported["without_python"] += not python(truth[address])
        names = [frame["name"] for frame in native]
        if MISSING in names:
            reported["cut"] += 1
            native = native[: names.index(MISSING)]
            true_native = true_native[: len(native)]
        pairs = [(own["name"], true["name"]) for own, true in zip(native, true_native, strict=False)]
        named = [(plain(own), plain(true)) for own, true in pairs if "??" not in (own, true)]
        reported["named"] += len(named)
        differing = [pair for pair in named if pair[0] != pair[1]]
        own = (places(native), python(ours[address]))
        true = (places(true_native), python(truth[address]))
        if own != true or differing:
            reported["differ"].append({"names": differing, "ours": own, "truth": true})
    print(json.dumps(reported))


if __name__ == "__main__":
    main()
