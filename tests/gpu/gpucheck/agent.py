"""A memwatch agent that traces processes from their start, and its explanation of their memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

from gpucheck.bench import Bench
from gpucheck.job import Silent
from gpucheck.watcher import sources

_START_LIMIT_S = 60.0
_SETTLE_LIMIT_S = 15.0
_ASK_LIMIT_S = 30.0


class Agent:
    """Runs during the `with` block; its probes are in place when the block begins."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._socket = bench.work / f"agent-{os.getpid()}.socket"
        self._errors = (bench.work / "agent.stderr").open("w+")
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Agent:
        command = [self._bench.memwatch, "agent", "--socket", str(self._socket), *sources(self._bench)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors)
        end = time.monotonic() + _START_LIMIT_S
        while "answering on" not in self._printed():
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise Silent(f"the agent did not start: {self._printed()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _printed(self) -> str:
        with open(self._errors.name) as file:
            return " ".join(file.read().split())

    def explained(self, tgid: int) -> dict | None:
        """Returns the output of `memwatch explain` for a process; None if there is none."""
        command = [self._bench.memwatch, "--agent", str(self._socket), "--json", "explain", "--by=part", "--pid", str(tgid)]
        asked = subprocess.run(
            [*command, "--duration", "100ms"], capture_output=True, text=True, check=False, timeout=_ASK_LIMIT_S
        )
        try:
            processes = json.loads(asked.stdout)["data"]["processes"]
        except (ValueError, KeyError):
            return None
        return next((row for row in processes if row["pid"] == tgid), None)

    def settled(self, tgid: int) -> dict | None:
        """Returns the explanation once memwatch has decided for each GPU whether to trust it, and nothing has changed since NVML was read. After the time
        limit, returns the last explanation."""
        end = time.monotonic() + _SETTLE_LIMIT_S
        while True:
            found = self.explained(tgid)
            if found and found["gpus"] and all(map(_is_settled, found["gpus"])):
                return found
            if time.monotonic() > end:
                return found
            time.sleep(0.2)


def _is_settled(use: dict) -> bool:
    return use["trust"] != "settling" and use["since_reading_bytes"] in (0, None)
