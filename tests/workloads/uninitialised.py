"""Calls functions of the driver library named on the command line, without cuInit: each returns an error for that.

Each line on standard input has a function and a number of bytes; the answer is a line of JSON, as from the simulator's workload.
Arguments fit the function's signature as far as the function reads them. If the library cannot be loaded, every answer is
that error.
"""

import ctypes
import json
import os
import sys

try:
    library, refusal = ctypes.CDLL(sys.argv[1]), None
except OSError as error:
    library, refusal = None, str(error)
# Space for every out-pointer, handle and descriptor that a call may need.
room = ctypes.create_string_buffer(256)
here = ctypes.c_void_p(ctypes.addressof(room))
WORD = ctypes.c_size_t


def call(name, size):
    function = getattr(library, name)
    function.restype = ctypes.c_int
    # The third argument of cuMemCreate and the second of array functions is a descriptor; for all others the second is a size.
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
