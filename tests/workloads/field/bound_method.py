"""A module keeps one of its own bound methods: a cycle. Each trial builds one, and the collector runs rarely. (pytorch#128211)"""

import gc
import time

import torch
from torch import nn

gc.set_threshold(100_000, 50, 50)


class Policy(nn.Module):
    def __init__(self, is_greedy):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512))
        self.act = self.best if is_greedy else self.sample

    def best(self, state):
        return self.body(state)

    def sample(self, state):
        return self.body(state) + torch.randn(1, 512, device=state.device)


def trial(seed):
    policy = Policy(seed % 2 == 1).cuda()
    with torch.no_grad():
        return policy.act(torch.zeros(1, 512, device="cuda")).shape


SEED = 0
while True:
    trial(SEED)
    SEED += 1
    time.sleep(0.1)
