"""The history of a drawing is a linked list with one node and one tensor per stroke."""

import time

import torch


class Edit:
    __slots__ = ("before", "earlier")

    def __init__(self, before, earlier):
        self.before, self.earlier = before, earlier


class Canvas:
    def __init__(self):
        self.pixels, self.history = torch.zeros(256, 1024, device="cuda"), None

    def stroke(self):
        self.history = Edit(self.pixels.clone(), self.history)


def draw(canvas):
    while True:
        canvas.stroke()
        time.sleep(0.1)


draw(Canvas())
