"""Stops in code objects that come and go, each in a file of its own; places are named after their addresses."""
import json
import os
import sys
import threading


def stop(code):
    frame, frames = sys._getframe(1), []
    while frame is not None:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        frames.append([frame.f_code.co_filename, name, frame.f_lineno])
        frame = frame.f_back
    place = {"place": str(id(code)), "thread": threading.get_ident(), "tid": threading.get_native_id(), "frames": frames}
    os.write(1, (json.dumps(place) + "\n").encode())
    os.read(0, 1)


for number in range(20):
    code = compile("\n" * number + "stop(code)", "file_%d.py" % number, "exec")
    exec(code)
    del code
os.write(1, b"\n")
