"""A video is tracked: the last 300 frames are there, then the oldest goes for each that comes."""

import time

import torch

frames = []
while True:
    frames.append(torch.empty(3, 480, 640, dtype=torch.uint8, device="cuda"))
    if len(frames) > 300:
        del frames[0]
    time.sleep(0.15)
