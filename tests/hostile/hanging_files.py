"""A user's file system whose files never answer reads, and programs of that user that have such files mapped where memwatch would read.

Arguments: an empty folder, the user's number, and for each program what it maps: `library:NAME`, `arguments`, or `lock`. Started as root, which opens
/dev/fuse and mounts as fusermount does. Prints `ready` once all programs have mapped their files, and `read` with the reader's thread id at each read,
which it leaves unanswered. It runs until it is killed, which also ends the file system.
"""

import ctypes
import errno
import mmap
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
FILE_BYTES = 4 << 20
FOREVER = 1 << 30

# include/uapi/linux/fuse.h
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH = 1, 2, 3, 14, 15, 18, 25
INIT, OPENDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 26, 27, 29, 36, 42
# Without this flag, signals do not interrupt a read that the server has accepted.
FUSE_ASYNC_READ = 1
FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE = 1, 2
MOST_REQUEST_BYTES = 1 << 17
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_PDEATHSIG = 1
MAP_PRIVATE, MAP_FIXED = 2, 16


class Server:
    def __init__(self, folder, uid):
        self.uid, self.names, self.opened = uid, {}, {}
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
        if LIBC.mount(b"hanging", folder.encode(), b"fuse", MS_NOSUID | MS_NODEV, options):
            raise OSError(ctypes.get_errno(), "mount")

    def attributes(self, node):
        mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o755
        return struct.pack("<6Q10I", node, FILE_BYTES, FILE_BYTES // 512, 0, 0, 0, 0, 0, 0, mode, 1, self.uid, self.uid, 0, PAGE, 0)

    def answer(self, opcode, node, body, reader):
        """Returns the bytes of the answer, an error number, or None for no answer."""
        if opcode == INIT:
            return struct.pack("<4I2H2I2H8I", 7, 31, 0, FUSE_ASYNC_READ, 16, 12, PAGE, 1, 1, 0, *[0] * 8)
        if opcode == LOOKUP:
            name = body.rstrip(b"\0")
            if not name.startswith(b"lib"):
                return errno.ENOENT
            node = self.names.setdefault(name, len(self.names) + 2)
            return struct.pack("<4Q2I", node, 0, FOREVER, FOREVER, 0, 0) + self.attributes(node)
        if opcode == GETATTR:
            return struct.pack("<Q2I", FOREVER, 0, 0) + self.attributes(node)
        if opcode in (OPEN, OPENDIR):
            # The second open of the file for `lock` bypasses the page cache.
            self.opened[node] = self.opened.get(node, 0) + 1
            is_direct = self.names.get(b"liblock.so") == node and self.opened[node] == 2
            return struct.pack("<Q2I", 1, FOPEN_DIRECT_IO | FOPEN_KEEP_CACHE if is_direct else FOPEN_KEEP_CACHE, 0)
        if opcode == READ:
            print("read", reader, flush=True)
            return None
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        return b"" if opcode in (RELEASE, RELEASEDIR, FLUSH) else errno.ENOSYS

    def serve(self):
        """Answers one request."""
        request = os.read(self.device, MOST_REQUEST_BYTES)
        _, opcode, unique, node, _, _, reader = struct.unpack_from("<2I2Q3I", request)
        answer = self.answer(opcode, node, request[40:], reader)
        if isinstance(answer, int):
            os.write(self.device, struct.pack("<IiQ", 16, -answer, unique))
        elif answer is not None:
            os.write(self.device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


def map_at(address, length, file):
    LIBC.mmap.restype, LIBC.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    place = MAP_PRIVATE | (MAP_FIXED if address else 0)
    mapped = LIBC.mmap(address, length, mmap.PROT_READ | mmap.PROT_EXEC, place, file, 0)
    if mapped == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")


def program(folder, what):
    """Maps a file as a program of the user, without reading from the mapping."""
    kind, _, name = what.partition(":")
    path = os.path.join(folder, name or "liblock.so" if kind == "lock" else name or "libarguments.so")
    file = os.open(path, os.O_RDONLY)
    if kind == "library":
        map_at(None, FILE_BYTES, file)
    elif kind == "arguments":
        # proc_pid_stat(5): arg_start and arg_end are fields 48 and 49; the name may contain spaces.
        with open("/proc/self/stat") as own:
            fields = own.read().rpartition(")")[2].split()
        start, end = -(-int(fields[45]) // PAGE) * PAGE, int(fields[46]) // PAGE * PAGE
        map_at(start, end - start, file)
    elif kind == "lock":
        # A hanging read locks a page of the cache. A thread that maps the file without the cache waits for that page while it holds the lock of the address space.
        threading.Thread(target=os.pread, args=(file, 1, 0), daemon=True).start()
        time.sleep(0.5)
        print("mapped", flush=True)
        map_at(None, FILE_BYTES, os.open(path, os.O_RDONLY))
    print("mapped", flush=True)
    while True:
        signal.pause()


def main():
    if sys.argv[1] == "program":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return program(sys.argv[2], sys.argv[3])
    folder, uid, programs = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    server = Server(folder, uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The arguments of each program fill some pages.
    start = ["python3", os.path.abspath(__file__), "program", folder]
    started = [subprocess.Popen([*start, what, "x" * 4 * PAGE], stdout=subprocess.PIPE) for what in programs]
    waiting = {running.stdout for running in started}
    while True:
        ready, _, _ = select.select([server.device, *waiting], [], [])
        if server.device in ready:
            server.serve()
        for mapped in waiting.intersection(ready):
            if not mapped.readline():
                sys.exit("a program has ended")
            waiting.remove(mapped)
            if not waiting:
                print("ready", flush=True)


main()
