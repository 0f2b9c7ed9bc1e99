"""no_grad is per thread: the generating thread runs with gradients enabled, and its state keeps the whole graph. (pocket-tts#16)"""

import threading
import time

import torch
from torch import nn


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.GRUCell(768, 768), nn.Linear(768, 768)


def frames(voice):
    state = torch.zeros(32, 768, device="cuda")
    while True:
        state = voice.mix(torch.randn(32, 768, device="cuda"), state)
        yield voice.out(state).detach()


def speak(voice):
    for _ in frames(voice):
        time.sleep(0.1)


@torch.no_grad()
def main():
    speaker = threading.Thread(target=speak, args=(Voice().cuda().eval(),), name="speaker")
    speaker.start()
    speaker.join()


main()
