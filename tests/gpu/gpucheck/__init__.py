"""What `gpu-check` does on a machine with a GPU: asks the driver, asks memwatch, and writes down what they answered.

Python's standard library only: the machine may have nothing else beside the driver and PyTorch.
"""
