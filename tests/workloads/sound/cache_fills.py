"""A cache of the last 200 answers fills up."""

import random
import time
from collections import OrderedDict

import torch

answers = OrderedDict()
while True:
    key = random.randrange(100_000)
    answers[key] = torch.empty(512 << 10, dtype=torch.uint8, device="cuda")
    if len(answers) > 200:
        answers.popitem(last=False)
    time.sleep(0.3)
