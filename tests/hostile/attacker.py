"""A user who attacks memwatch on this machine with files and connections.

sparse FOLDER LIBRARY           files with the names of frameworks' libraries, whose tables claim gigabytes
libraries FOLDER LIBRARY COUNT  COUNT driver libraries, each in use
leases FOLDER LIBRARY COUNT     the same, and opening one blocks until a lease is broken
socket PATH                     clients of the agent that send nothing, send nonsense, do not read the replies, or reconnect all the time
http HOST PORT                  the same with HTTP
watches PATH FOLDER PROGRAM     clients that have processes watched: their own, others', with programs that are none
past PATH LIBRARY COUNT         clients that ask for their part of the history, after COUNT live allocations
events PATH PROGRAM COUNT       failing allocations of COUNT processes that stay and of others without end, and clients that follow events

PROGRAM is the compiled attacker.c.

It prints "ready" when this is done or running, and runs until it is killed.
"""

import ctypes
import fcntl
import json
import mmap
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

GIB = 1 << 30
PAGE = 4096
# Library names by which memwatch detects frameworks and languages.
FRAMEWORKS = [
    "libc10_cuda.so",
    "libc10.so",
    "libtorch_python.so",
    "libtorch_cuda.so",
    "libpython3.11.so.1.0",
    "libggml-cuda.so",
    "libonnxruntime_providers_cuda.so",
    "libtensorflow_framework.so.2",
    "librmm.so",
    "libcuda.so.2",
]


def ready():
    print("ready", flush=True)
    while True:
        signal.pause()


def header(sections_at, sections, programs_at=64, programs=1):
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    numbers = (3, machine, 1, 0, programs_at, sections_at, 0, 64, 56, programs, 64, sections, 2)
    return ident + struct.pack("<HHIQQQIHHHHHH", *numbers)


def program(kind, flags, at, size):
    return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, PAGE)


def section(kind, at, size, link=0, entry=0, info=0):
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, info, 8, entry)


def symbols_without_end(file):
    """Writes a symbol table of 3 GiB in a sparse file."""
    size = 3 * GIB // 24 * 24
    file.write(header(PAGE, 3) + program(1, 5, 0, PAGE))
    file.seek(PAGE)
    file.write(section(0, 0, 0) + section(11, 1 << 16, size, 2, 24) + section(3, (1 << 16) + size, GIB))
    file.truncate((1 << 16) + size + GIB)


def names_that_overlap(file):
    """Writes 262,144 symbols whose names, thousands of characters long, overlap in one megabyte."""
    strings, count = 1 << 20, 1 << 18
    file.write(header(PAGE, 3) + program(1, 5, 0, PAGE))
    file.seek(PAGE)
    file.write(section(0, 0, 0) + section(11, 1 << 21, count * 24, 2, 24) + section(3, 1 << 16, strings))
    file.seek(1 << 16)
    file.write((b"A" * 3999 + b"\0") * (strings // 4000))
    file.seek(1 << 21)
    for begin in range(0, count, 1 << 16):
        entries = range(begin, begin + (1 << 16))
        file.write(b"".join(struct.pack("<IBBHQQ", entry * 7 % (strings - 4200), 18, 0, 1, PAGE, 8) for entry in entries))


def programs_without_end(file):
    """Claims 4,294,967,295 program headers through a section header (PN_XNUM)."""
    file.write(header(PAGE, 3, 1 << 16, 0xFFFF))
    file.seek(PAGE)
    file.write(section(0, 0, 0, info=0xFFFFFFFF) + section(11, 0, 0) + section(3, 0, 0))
    file.truncate(64 * GIB)


def notes_without_end(file):
    """Claims notes of 4 GiB, which may contain a build id."""
    file.write(header(0, 0, programs=2) + program(1, 5, 0, PAGE) + program(4, 4, PAGE, 4 * GIB))
    file.truncate(5 * GIB)


SPARSE = [symbols_without_end, names_that_overlap, programs_without_end, notes_without_end]


def map_whole(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)


def sparse(folder, library):
    held = []
    for shape in SPARSE:
        os.mkdir(os.path.join(folder, shape.__name__))
        for name in FRAMEWORKS:
            path = os.path.join(folder, shape.__name__, name)
            with open(path, "wb") as file:
                shape(file)
            held.append(map_whole(path))
    use(library)
    ready()


def use(library):
    """Calls the driver, so that memwatch inspects this process."""
    driver = ctypes.CDLL(library)
    driver.cuInit(0)
    driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20))


def copies(folder, library, count):
    for number in range(count):
        path = os.path.join(folder, f"libcuda.so.{number}")
        shutil.copyfile(library, path)
        with open(path, "ab") as file:
            file.write(struct.pack("<QQ", os.getpid(), number))
        yield path


def libraries(folder, library, count):
    held = [map_whole(path) for path in copies(folder, library, int(count))]
    use(library)
    ready()
    del held


def leases(folder, library, count):
    """Opening one of the files takes /proc/sys/fs/lease-break-time, 45 seconds, unless O_NONBLOCK is set."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = []
    for path in copies(folder, library, int(count)):
        file = open(path, "rb")
        held.append((file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)))
    print("ready", flush=True)
    while True:
        for file, _ in held:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError:
                # Another process has the file open at the moment.
                pass
        time.sleep(0.1)


def all_descriptors():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def besides(*works):
    """Runs each of these in an endless loop on its own thread."""

    def endlessly(work):
        state = {"held": [], "random": random.Random(7)}
        while True:
            try:
                work(state)
            except OSError:
                time.sleep(0.01)

    for work in works:
        threading.Thread(target=endlessly, args=(work,), daemon=True).start()
    time.sleep(1)
    ready()


def frame(message):
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


HELLO = frame({"hello": {"protocol": {"major": 2, "minor": 4}, "program": "\x1b[2J\n"}})
NONSENSE = [
    b"",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    struct.pack(">I", 1 << 20) + b"A" * 4096,
    frame(b"[" * 4000),
    frame(b'{"a":' * 800),
    HELLO + HELLO,
    HELLO + frame({"follow": {"every_ms": -1}}),
    HELLO + frame(b'{"follow":{"every_ms":1e400}}'),
    HELLO + frame({"reset_peaks": {"pid": 1}}),
    HELLO + frame(b'"history"'),
    HELLO + frame(b"\xff\xfe"),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
]


def changed(state, message):
    """Returns the message with some bytes changed."""
    some, message = state["random"], bytearray(message)
    for _ in range(some.randrange(1, 6)):
        message[some.randrange(len(message))] = some.randrange(256)
    return bytes(message)


def attack_socket(path):
    all_descriptors()

    def connected(seconds=0.2):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(seconds)
        client.connect(path)
        return client

    def mute(state):
        state["held"].append(connected())
        if len(state["held"]) == 500:
            time.sleep(2)
            state["held"].clear()

    def nonsense(state):
        known = state["random"].choice(NONSENSE)
        with connected() as client:
            client.sendall(known if state["random"].randrange(2) else changed(state, HELLO + frame(b'"snapshot"')))
            client.recv(PAGE)

    def deaf(state):
        client = connected()
        client.sendall(HELLO + frame(b'"snapshot"') * 40)
        state["held"].append(client)
        if len(state["held"]) == 16:
            time.sleep(2)
            state["held"].clear()

    def flood(_):
        connected().close()

    besides(mute, nonsense, deaf, flood, flood)


def attack_http(host, port):
    all_descriptors()
    # The agent's host name, and a foreign one.
    hosts = [f"{host}:{port}", "evil.example"]
    paths = ["/metrics", "/", "/healthz", "/web/uplot.js", "/web/../../etc/passwd", "/s/" + "0" * 64 + "/", "/open/" + "f" * 64]

    def connected(seconds=0.5, deaf=False):
        client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        client.settimeout(seconds)
        if deaf:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88)
        client.connect((host, int(port)))
        return client

    def request(state):
        some = state["random"]
        return f"GET {some.choice(paths)} HTTP/1.1\r\nHost: {some.choice(hosts)}\r\nAccept: */*;q=nan\r\n\r\n".encode()

    def half(state):
        client = connected()
        client.sendall(request(state)[: state["random"].randrange(20)])
        state["held"].append(client)
        if len(state["held"]) == 300:
            time.sleep(1)
            state["held"].clear()

    def nonsense(state):
        with connected() as client:
            client.sendall(changed(state, request(state)))
            client.recv(PAGE)

    def deaf(state):
        client = connected(deaf=True)
        client.sendall(request(state))
        state["held"].append(client)
        if len(state["held"]) == 150:
            time.sleep(2)
            state["held"].clear()

    def bytewise(state):
        """Sends one byte at a time, slowly enough to test the time limits."""
        with connected() as client:
            for byte in request(state):
                client.sendall(bytes([byte]))
                time.sleep(0.2)

    def flood(_):
        connected().close()

    besides(half, nonsense, deaf, bytewise, flood)

# Times that a client may send, in nanoseconds since 1970.
TIMES = [None, 0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 60]
DAY_MS = 86_400_000


def connected(path, *messages):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(0.2)
    client.connect(path)
    client.sendall(HELLO + b"".join(frame(message) for message in messages))
    return client


def deaf_clients(path, count, message):
    """Returns work that keeps `count` clients which read nothing, and replaces them after a while."""

    def work(state):
        if len(state["held"]) == count:
            time.sleep(4)
            state["held"].clear()
        state["held"].append(connected(path, message(state["random"])))
        time.sleep(0.05)

    return work


def leaving_clients(path, message):
    """Returns work in which a client leaves at any moment of its answer, or tries to change the request."""

    def work(state):
        some = state["random"]
        with connected(path, message(some)) as client:
            if some.randrange(2):
                time.sleep(some.random())
            if some.randrange(2):
                client.sendall(some.choice([frame(b'"end_watch"'), frame(b'"snapshot"'), frame(b"[" * 4000), b"\0\0\0"]))
            if some.randrange(2):
                client.recv(1 << 16)

    return work


def started(program, *words, count=1):
    """Starts the other attacker this many times in the group of processes of this one."""
    all_of_them = [subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    # Their driver is probed by then, or their first calls are not traced.
    time.sleep(2)
    for process in all_of_them:
        process.stdout.readline()
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
    return all_of_them


def attack_watches(path, folder, program):
    all_descriptors()
    own = started(program, "churn", "1", count=4)
    pipe = os.path.join(folder, "program")
    os.mkfifo(pipe)
    programs = [None, None, [pipe], ["/dev/zero"], ["/proc/kcore"], ["\x1b[2J" * 100], ["/bin/true", "\n" * 800], [folder]]

    def watch(some, pids, duration_ms):
        tensors = {"level": some.choice(["off", "read", "lines", "modules"]), "reports_only": False, "all_stacks": True, "budget_ns": None}
        request = {"pids": pids, "tensors": tensors, "duration_ms": duration_ms, "program": some.choice(programs)}
        return {"watch": request}

    def own_watch(some):
        return watch(some, [some.choice(own).pid], some.choice([0, 1, 500, DAY_MS, (1 << 64) - 1]))

    def lasting_watch(some):
        return watch(some, [some.choice(own).pid], DAY_MS)

    def others_watch(some):
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return watch(some, some.sample(pids, min(len(pids), 64)), 500)

    hold, leave = deaf_clients(path, 3, lasting_watch), leaving_clients(path, own_watch)
    besides(hold, leave, leave, leaving_clients(path, others_watch), leaving_clients(path, lasting_watch))


def attack_past(path, library, count):
    all_descriptors()
    use(library)
    allocate, given = ctypes.CDLL(library).cuMemAlloc_v2, ctypes.c_uint64()
    for _ in range(int(count)):
        allocate(ctypes.byref(given), ctypes.c_size_t(1 << 20))

    def everything(_):
        return {"past": {"since_unix_ns": None, "until_unix_ns": None}}

    def any_period(some):
        return {"past": {"since_unix_ns": some.choice(TIMES), "until_unix_ns": some.choice(TIMES)}}

    def reads(_):
        with connected(path, everything(None)) as client:
            client.settimeout(10)
            while client.recv(1 << 20):
                pass

    besides(deaf_clients(path, 4, everything), leaving_clients(path, any_period), leaving_clients(path, everything), reads)


def attack_events(path, program, count):
    all_descriptors()
    own = started(program, "failures", count)

    def following(some):
        return {"events": {"since_unix_ns": some.choice(TIMES), "follow": True}}

    def once(some):
        return {"events": {"since_unix_ns": some.choice(TIMES), "follow": False}}

    besides(deaf_clients(path, 5, following), leaving_clients(path, following), leaving_clients(path, once))
    del own


ATTACKS = {
    "sparse": sparse,
    "libraries": libraries,
    "leases": leases,
    "socket": attack_socket,
    "http": attack_http,
    "watches": attack_watches,
    "past": attack_past,
    "events": attack_events,
}
ATTACKS[sys.argv[1]](*sys.argv[2:])
