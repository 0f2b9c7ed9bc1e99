"""Allocates on two devices from code whose names contain terminal control codes, HTML or line breaks."""

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20
DEVICES = (0, 1)
NAME = 'f;"</script><b>&\r\n 5'
SOURCE = """
def strange(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)
"""
FILE = '/srv/=a;"</script><b>&\n\x1b[2J\u202e.py'


def main() -> None:
    """Gives a function these names and calls it for each device; the amounts differ, to distinguish the devices."""
    begin(parser(__doc__), devices=len(DEVICES))
    names = {"torch": torch}
    exec(compile(SOURCE, FILE, "exec"), names)  # noqa: S102 - code of a file with such a name comes no other way
    strange = names["strange"]
    strange.__code__ = strange.__code__.replace(co_name=NAME, co_qualname=NAME)
    held = [strange((3 + 4 * device) * MIB, f"cuda:{device}") for device in DEVICES]
    checkpoint("held", DEVICES, tensors=len(held))


if __name__ == "__main__":
    main()
