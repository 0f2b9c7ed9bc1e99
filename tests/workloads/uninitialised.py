"""Calls functions of the driver library named on the command line, without cuInit: each answers that it is not initialised.

Each line on standard input is a function and how many bytes to ask for; the answer is a line of JSON, as the simulator's workload
gives. Arguments are what the function's signature wants, as far as it looks at them at all. A library that cannot be loaded answers
everything with an error.
"""

import ctypes
import json
import os
import sys

try:
    library, refusal = ctypes.CDLL(sys.argv[1]), None
except OSError as error:
    library, refusal = None, str(error)
# Room for every out-pointer, handle and descriptor that a call may be given.
room = ctypes.create_string_buffer(256)
here = ctypes.c_void_p(ctypes.addressof(room))
WORD = ctypes.c_size_t


def call(name, size):
    function = getattr(library, name)
    function.restype = ctypes.c_int
    # cuMemCreate has its properties third, arrays their descriptor second: a size is the second argument of all others.
    second = here if name.startswith(("cuArray", "cuMipmapped")) else WORD(size)
    third = here if name == "cuMemCreate" else WORD(1)
    return function(here, second, third, WORD(1), WORD(4), WORD(0))


for line in sys.stdin:
    name, size = line.split()
    if refusal:
        print(json.dumps({"error": refusal}), flush=True)
    elif name == "tgid":
        print(json.dumps({"result": 0, "tgid": os.getpid()}), flush=True)
    else:
        print(json.dumps({"command": line.strip(), "result": call(name, int(size))}), flush=True)
