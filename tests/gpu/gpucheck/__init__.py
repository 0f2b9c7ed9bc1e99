"""The parts of `gpu-check`, which runs on a machine with a GPU: they query the driver and memwatch and record the answers.

They use Python's standard library only, since the machine may have nothing else beside the driver and PyTorch.
"""
