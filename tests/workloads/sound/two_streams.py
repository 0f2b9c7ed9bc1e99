"""Two streams, one to copy and one to compute, used repeatedly."""

import time

import torch

copying, computing = torch.cuda.Stream(), torch.cuda.Stream()
while True:
    with torch.cuda.stream(copying):
        batch = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
    computing.wait_stream(copying)
    with torch.cuda.stream(computing):
        result = batch.float().sum()
        batch.record_stream(computing)
    del batch
    time.sleep(0.2)
