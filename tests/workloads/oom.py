"""Requests more memory than the device has, survives the refusal, and continues."""

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20


def ask(size_bytes: int) -> torch.Tensor | None:
    """Allocates a tensor of this size; returns None if the device lacks memory."""
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return None


def main() -> None:
    """Exits with 0 if the device refused an impossible allocation."""
    begin(parser(__doc__))
    held = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    checkpoint("before")
    _, total_bytes = torch.cuda.mem_get_info()
    if ask(total_bytes) is not None:
        raise SystemExit("the device gave more than it has")
    checkpoint("refused", requested_bytes=total_bytes)
    held.append(torch.empty(128 * MIB, dtype=torch.uint8, device="cuda"))
    checkpoint("after")
    held.clear()
    torch.cuda.empty_cache()
    checkpoint("end")


if __name__ == "__main__":
    main()
