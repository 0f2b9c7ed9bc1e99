"""A hidden state is carried from batch to batch without detach. (pytorch#2198)"""

import time
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Carried:
    hidden: torch.Tensor


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(512, 512), nn.Linear(512, 32)

    def forward(self, batch, carried):
        carried.hidden = self.cell(batch, carried.hidden)
        return self.head(carried.hidden)


reader = Reader().cuda()
carried = Carried(torch.zeros(64, 512, device="cuda"))
while True:
    reader(torch.randn(64, 512, device="cuda"), carried).detach().sum()
    time.sleep(0.1)
