"""Compares a memory snapshot of memwatch with the state that PyTorch reported at a checkpoint, in every field of segments and blocks.

    same_books.py SNAPSHOT CHECKPOINT

prints how many fields were compared, how many differ, and the first of those. It needs no PyTorch.
"""

import json
import pickle
import sys
from pathlib import Path

SEGMENT = ("address", "total_size", "stream", "device", "segment_type", "segment_pool_id", "is_expandable")
BLOCK = ("address", "size", "requested_size", "state")


def fields(segments: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Returns all fields in a defined order."""
    found: list[tuple[object, ...]] = []
    for segment in sorted(segments, key=lambda segment: (segment["device"], segment["address"])):
        found += [(segment["address"], key, plain(segment[key])) for key in SEGMENT]
        for block in segment["blocks"]:
            found += [(segment["address"], block["address"], key, block[key]) for key in BLOCK]
    return found


def plain(value: object) -> object:
    """Converts tuples to lists, as JSON does."""
    return list(value) if isinstance(value, tuple) else value


def main() -> None:
    """Compares the two and prints the result."""
    own = fields(pickle.loads(Path(sys.argv[1]).read_bytes())["segments"])
    truth = fields(json.loads(Path(sys.argv[2]).read_text())["segments"])
    differ = [pair for pair in zip(own, truth) if pair[0] != pair[1]]
    count = len(differ) + abs(len(own) - len(truth))
    print(json.dumps({"fields": len(truth), "differ": count, "first": differ[:3]}))


if __name__ == "__main__":
    main()
