"""Programs that a step starts and communicates with, line by line."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpucheck.bench import Bench

# Delays the script until it reads a line, so that a tracer can attach before the program loads anything.
_GATE = (
    "import runpy, sys; sys.stdin.readline(); sys.argv = sys.argv[1:]; "
    "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); runpy.run_path(sys.argv[0], run_name='__main__')"
)
ALLOCATORS = {
    "native": "",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
START_LIMIT_S = 120.0


class Silent(Exception):
    """A program exited, or printed nothing for too long."""


class Lines:
    """Reads lines from a pipe, each with a time limit."""

    def __init__(self, pipe: object) -> None:
        self._descriptor = pipe.fileno()
        self._rest = b""

    def next(self, limit_s: float) -> str:
        """Returns the next line. Raises Silent if none arrives in time."""
        end = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._descriptor], [], [], max(end - time.monotonic(), 0))
            data = os.read(self._descriptor, 1 << 16) if ready else b""
            if not data:
                raise Silent("nothing came in time" if not ready else "the output has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")


class Job:
    """A PyTorch script that waits for a line before its start and at each of its checkpoints; killed when the `with` block ends."""

    def __init__(self, bench: Bench, script: Path, *arguments: str, allocator: str = "native") -> None:
        environment = dict(os.environ)
        for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            environment.pop(variable, None)
        if ALLOCATORS[allocator]:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = ALLOCATORS[allocator]
        self._errors = (bench.work / f"{script.stem}-{allocator}.stderr").open("w+")
        self.process = subprocess.Popen(
            [bench.python, "-c", _GATE, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._lines = Lines(self.process.stdout)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self._errors.close()

    @property
    def tgid(self) -> int:
        """Returns the process id."""
        return self.process.pid

    def say(self, line: str = "") -> None:
        """Sends a line: starts the script, ends the wait at a checkpoint, or is a script's next command."""
        try:
            os.write(self.process.stdin.fileno(), line.encode() + b"\n")
        except BrokenPipeError as error:
            raise Silent(self._last_words()) from error

    def hear(self, limit_s: float = START_LIMIT_S) -> dict:
        """Returns the next line of JSON that the script prints."""
        while True:
            try:
                line = self._lines.next(limit_s)
            except Silent as error:
                raise Silent(f"{error}: {self._last_words()}") from error
            if line.startswith("{"):
                return json.loads(line)

    def checkpoints(self) -> Iterator[dict]:
        """Iterates over the checkpoints; the script waits at each until the next iteration."""
        self.say()
        while True:
            try:
                point = self.hear()
            except Silent:
                if self.end() != 0:
                    raise
                return
            yield point
            self.say()

    def end(self, limit_s: float = 30.0) -> int:
        """Closes the script's input, waits until it exits, and returns the exit status."""
        self.process.stdin.close()
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _last_words(self) -> str:
        self._errors.flush()
        text = Path(self._errors.name).read_text(errors="replace")
        return " / ".join(text.strip().splitlines()[-4:]) or "it reported nothing on standard error"
