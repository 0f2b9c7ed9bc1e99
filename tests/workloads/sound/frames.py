"""A video is tracked with its last 300 frames: from then on, each new frame replaces the oldest."""

import time

import torch

frames = []
while True:
    frames.append(torch.empty(3, 480, 640, dtype=torch.uint8, device="cuda"))
    if len(frames) > 300:
        del frames[0]
    time.sleep(0.15)
