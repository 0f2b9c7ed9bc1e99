"""A pool of pages keeps storages but no tensors."""

import time

import torch


class PagePool:
    def __init__(self, count):
        self.pages = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda").untyped_storage() for _ in range(count)]


pool = PagePool(6)
while True:
    time.sleep(1)
