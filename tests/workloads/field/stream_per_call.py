"""Each transfer of weights creates a stream; blocks freed on that stream are not reused on others. (vllm#52951)"""

import time

import torch


def send(megabytes):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda").zero_()
    stream.synchronize()


weights = torch.empty(8 << 20, device="cuda")
while True:
    send(64)
    time.sleep(1.5)
