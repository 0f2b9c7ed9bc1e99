"""A memwatch process that traces a job, and its reports about the job."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from datetime import datetime, timezone

from gpucheck.bench import Bench
from gpucheck.job import Lines, Silent

_ATTACH_LIMIT_S = 60.0
_DETACH_LIMIT_S = 60.0
_REPORT_LIMIT_S = 10.0


class Watcher:
    """A memwatch process; its probes are in place when the `with` block begins."""

    def __init__(self, bench: Bench, tgid: int, interval: str = "200ms") -> None:
        self.tgid = tgid
        self._errors = (bench.work / f"memwatch-{tgid}.stderr").open("w+")
        self.process = subprocess.Popen(
            [bench.memwatch, "--json", "-i", interval, "--pid", str(tgid), *sources(bench)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._lines = Lines(self.process.stdout)

    def __enter__(self) -> Watcher:
        try:
            self.report(_ATTACH_LIMIT_S)
        except Silent as error:
            self.__exit__()
            raise Silent(f"memwatch did not start: {self._printed()}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=_DETACH_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def _printed(self) -> str:
        with open(self._errors.name) as file:
            return " ".join(file.read().split()) or "it reported nothing"

    def report(self, limit_s: float = _REPORT_LIMIT_S) -> dict:
        """Returns the next report."""
        return json.loads(self._lines.next(limit_s))

    def settled(self) -> tuple[dict, dict | None]:
        """Returns the first report with NVML values that are newer than this call, and the job's process in it.

        The process is None while memwatch has no data about it.
        """
        now = datetime.now(timezone.utc)
        end = time.monotonic() + _REPORT_LIMIT_S
        while True:
            report = self.report()
            process = next((row for row in report["data"]["processes"] if row["pid"] == self.tgid), None)
            sampled = [moment(gpu["sampled_time"]) for gpu in report["data"]["gpus"]]
            is_young = moment(report["time"]) > now and all(sample > now for sample in sampled)
            if is_young or time.monotonic() > end:
                return report, process


def sources(bench: Bench) -> list[str]:
    """Returns the options that select the libraries."""
    return ["--libcuda", str(bench.libcuda), "--nvml-lib", str(bench.nvml)]


def moment(text: str) -> datetime:
    """Parses a time of a report, truncated to microseconds."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    whole = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return whole.replace(microsecond=int(f"{fraction:0<6}"[:6]) if fraction else 0)
