"""Has a state for a thread that never begins, as programs have that embed Python."""
import ctypes
import os

ctypes.pythonapi.PyInterpreterState_Get.restype = ctypes.c_void_p
ctypes.pythonapi.PyThreadState_New.restype = ctypes.c_void_p
interpreter = ctypes.c_void_p(ctypes.pythonapi.PyInterpreterState_Get())
assert ctypes.pythonapi.PyThreadState_New(interpreter)
os.write(1, b"begun\n"); os.read(0, 1)
