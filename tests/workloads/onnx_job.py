"""Uses ONNX Runtime through its C interface, which reports the arena's counts: the program stops at checkpoints and prints them.

Options: --wait waits for a line at each checkpoint; --early adds a stop before anything is allocated; --reserve allocates the weights and a little more
outside the arena's regions.
"""

import ctypes as c
import glob
import json
import os
import sys

# Indices of functions in `OrtApi` (onnxruntime_c_api.h): new versions only append to that table.
GET_ERROR_MESSAGE, CREATE_ENV, CREATE_SESSION, RUN, CREATE_OPTIONS = 2, 3, 8, 9, 10
CREATE_TENSOR, CREATE_MEMORY, CREATE_CPU_MEMORY, ALLOC, FREE = 49, 68, 69, 75, 76
RELEASE_VALUE, ADD_SETTING, CREATE_ALLOCATOR, APPEND_CUDA, GET_PAIRS, RELEASE_PAIRS, GET_STATS = 96, 130, 131, 152, 298, 300, 319
API_VERSION = 23
FLOAT = 1
WIDTH = 256


class Allocator(c.Structure):
    """The part of `OrtAllocator` that is used here."""

    _fields_ = [
        ("version", c.c_uint32),
        ("Alloc", c.c_void_p),
        ("Free", c.c_void_p),
        ("Info", c.c_void_p),
        ("Reserve", c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_size_t)),
    ]


class CudaOptions(c.Structure):
    """`OrtCUDAProviderOptions`."""

    _fields_ = [
        ("device_id", c.c_int),
        ("cudnn_conv_algo_search", c.c_int),
        ("gpu_mem_limit", c.c_size_t),
        ("arena_extend_strategy", c.c_int),
        ("do_copy_in_default_stream", c.c_int),
        ("has_user_compute_stream", c.c_int),
        ("user_compute_stream", c.c_void_p),
        ("default_memory_arena_cfg", c.c_void_p),
        ("tunable_op_enable", c.c_int),
        ("tunable_op_tuning_enable", c.c_int),
        ("tunable_op_max_tuning_duration_ms", c.c_int),
    ]


def field(number, value):
    """Encodes a field of a Protocol Buffers message: a number, or length-prefixed bytes."""
    def varint(number):
        out = b""
        while number > 127:
            out += bytes([number & 127 | 128])
            number >>= 7
        return out + bytes([number])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def model():
    """Encodes a model that computes x · w, then some steps with temporary memory (onnx.proto: `ModelProto`)."""
    def tensor(name):
        shape = field(2, field(1, field(2, "n")) + field(1, field(1, WIDTH)))
        return field(1, name) + field(2, field(1, field(1, FLOAT) + shape))

    def node(kind, inputs, output):
        return field(1, b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind))

    dimensions = field(1, WIDTH) + field(1, WIDTH)
    weights = dimensions + field(2, FLOAT) + field(8, "w") + field(9, b"\0" * (4 * WIDTH * WIDTH))
    nodes = node("MatMul", ["x", "w"], "a") + node("Relu", ["a"], "b") + node("Add", ["b", "x"], "c") + node("Relu", ["c"], "y")
    graph = nodes + field(2, "g") + field(5, weights) + field(11, tensor("x")) + field(12, tensor("y"))
    return field(1, 9) + field(8, field(2, 17)) + field(7, graph)


class Api:
    """`OrtApi`: functions by index."""

    def __init__(self):
        folders = [os.path.join(path, "onnxruntime/capi") for path in sys.path]
        library = c.CDLL(next(name for folder in folders for name in glob.glob(folder + "/libonnxruntime.so.*")))
        library.OrtGetApiBase.restype = c.POINTER(c.c_void_p)
        get = c.CFUNCTYPE(c.c_void_p, c.c_uint32)(library.OrtGetApiBase()[0])
        self.table = c.cast(get(API_VERSION), c.POINTER(c.c_void_p))

    def call(self, number, *words):
        status = c.CFUNCTYPE(c.c_void_p)(self.table[number])(*words)
        if status:
            message = c.CFUNCTYPE(c.c_char_p, c.c_void_p)(self.table[GET_ERROR_MESSAGE])(c.c_void_p(status))
            raise RuntimeError(message.decode())

    def make(self, number, *words):
        made = c.c_void_p()
        self.call(number, *words, c.byref(made))
        return made

    def forget(self, number, made):
        c.CFUNCTYPE(None, c.c_void_p)(self.table[number])(made)


def main():
    api = Api()
    if "--early" in sys.argv:
        print(json.dumps({"label": "library"}), flush=True)
        sys.stdin.readline()
    env = api.make(CREATE_ENV, c.c_int(3), b"job")
    options = api.make(CREATE_OPTIONS)
    cuda = CudaOptions(gpu_mem_limit=2**64 - 1, arena_extend_strategy=1)
    api.call(APPEND_CUDA, options, c.byref(cuda))
    if "--reserve" in sys.argv:
        api.call(ADD_SETTING, options, b"session.use_device_allocator_for_initializers", b"1")
    bytes_of_model = model()
    session = api.make(CREATE_SESSION, env, bytes_of_model, c.c_size_t(len(bytes_of_model)), options)
    memory = api.make(CREATE_MEMORY, b"Cuda", c.c_int(1), c.c_int(0), c.c_int(0))
    host = api.make(CREATE_CPU_MEMORY, c.c_int(0), c.c_int(0))
    allocator = api.make(CREATE_ALLOCATOR, session, memory)

    def stats():
        pairs = api.make(GET_STATS, allocator)
        names, values, count = c.POINTER(c.c_char_p)(), c.POINTER(c.c_char_p)(), c.c_size_t()
        get = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p)(api.table[GET_PAIRS])
        get(pairs, c.byref(names), c.byref(values), c.byref(count))
        found = {names[i].decode(): int(values[i]) for i in range(count.value)}
        api.forget(RELEASE_PAIRS, pairs)
        return found

    def checkpoint(label):
        print(json.dumps({"label": label, "stats": stats()}), flush=True)
        if "--wait" in sys.argv:
            sys.stdin.readline()

    def run(rows):
        data = (c.c_float * (rows * WIDTH))()
        shape = (c.c_int64 * 2)(rows, WIDTH)
        sized = (c.byref(data), c.c_size_t(c.sizeof(data)), shape, c.c_size_t(2), c.c_int(FLOAT))
        value = api.make(CREATE_TENSOR, host, *sized)
        inputs, outputs, inside, outside = ((c.c_void_p * 1)(value.value), (c.c_void_p * 1)(), (c.c_char_p * 1)(b"x"), (c.c_char_p * 1)(b"y"))
        api.call(RUN, session, None, inside, inputs, c.c_size_t(1), outside, c.c_size_t(1), outputs)
        api.forget(RELEASE_VALUE, c.c_void_p(outputs[0]))
        api.forget(RELEASE_VALUE, value)

    checkpoint("loaded")
    run(8)
    checkpoint("first run")
    for rows in (1024, 4096, 1024):
        run(rows)
    checkpoint("runs")
    kept = [api.make(ALLOC, allocator, c.c_size_t(size)) for size in (1_000_000, 100, 3 << 20)]
    reserved = []
    if "--reserve" in sys.argv:
        reserve = c.cast(allocator, c.POINTER(Allocator)).contents.Reserve
        reserved = [c.c_void_p(reserve(allocator, size)) for size in (12_345, 1 << 20)]
    checkpoint("kept")
    if reserved:
        api.call(FREE, allocator, reserved.pop(0))
    api.call(FREE, allocator, kept.pop(0))
    run(16)
    checkpoint("freed")
    api.call(FREE, allocator, kept.pop(1))
    checkpoint("end")
    # Skips the regular exit of the library, which calls functions that the stand-ins lack.
    os._exit(0)


main()
