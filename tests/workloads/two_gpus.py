"""One process on two devices: first with a thread per device, then with one thread that switches between them."""

import threading

import torch
from checkpoint import begin, checkpoint, parser

MIB = 1 << 20
DEVICES = (0, 1)
ROUNDS = 8


def work(device: int, held: list[torch.Tensor]) -> None:
    """Grows on one device in this thread; the devices grow by different amounts, to distinguish them."""
    torch.cuda.set_device(device)
    for round_number in range(ROUNDS):
        size_bytes = (24 + 8 * device + round_number) * MIB
        held.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))


def main() -> None:
    """Grows in threads, frees on one device, grows while switching, and frees everything."""
    begin(parser(__doc__), devices=len(DEVICES))
    held: dict[int, list[torch.Tensor]] = {device: [] for device in DEVICES}
    threads = [threading.Thread(target=work, args=(device, held[device])) for device in DEVICES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checkpoint("two threads", DEVICES)

    held[1].clear()
    with torch.cuda.device(1):
        torch.cuda.empty_cache()
    checkpoint("one device freed", DEVICES)

    for round_number in range(ROUNDS):
        for device in DEVICES:
            size_bytes = (40 + 16 * device + round_number) * MIB
            held[device].append(torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}"))
    checkpoint("one thread", DEVICES)

    held.clear()
    torch.cuda.empty_cache()
    checkpoint("end", DEVICES)


if __name__ == "__main__":
    main()
