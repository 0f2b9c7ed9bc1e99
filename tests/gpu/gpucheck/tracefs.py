"""Entry and return probes on a library's functions through tracefs: without eBPF and without a compiler."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gpucheck import elf

_RETURN = "ret_"
_PLACES = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_REGISTERS = {
    "x86_64": ("%di", "%si", "%dx", "%cx", "%r8", "%r9"),
    "aarch64": tuple(f"%x{index}" for index in range(6)),
}
# Location of the return address before a function's first instruction.
_CALLER = {"x86_64": "+0(%sp)", "aarch64": "%x30"}
_LINE = re.compile(r"^.*?-(?P<tid>\d+)\s+\[\d+\]\s+\S+\s+(?P<time>[\d.]+): (?P<name>\w+): \([^)]*\)(?P<rest>.*)$")


class NoTracing(Exception):
    """This kernel offers no probes through tracefs; the text is its error."""


@dataclass(frozen=True)
class Hit:
    """One line of the trace."""

    tid: int
    seconds: float
    symbol: str
    is_return: bool
    values: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> list[Hit]:
    """Returns the hits in the kernel's text, in order; skips comments and unknown lines."""
    hits = []
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.match(line)
        if found:
            name = found["name"]
            values = dict(pair.split("=", 1) for pair in found["rest"].split() if "=" in pair)
            numbers = {key: int(value, 0) for key, value in values.items()}
            is_return = name.startswith(_RETURN)
            hits.append(
                Hit(int(found["tid"]), float(found["time"]), name.removeprefix(_RETURN), is_return, numbers)
            )
    return hits


def definitions(
    group: str, library: Path, wanted: dict[str, int | None], returns: bool, callers: bool = False
) -> list[str]:
    """Returns one line for uprobe_events per probe. `wanted` has the index of the size argument from 0; None records no size.

    `callers` also records the return address of each call.
    """
    registers = _REGISTERS[platform.machine()]
    caller = f" caller={_CALLER[platform.machine()]}:x64" if callers else ""
    offsets = elf.function_offsets(library)
    lines = []
    for symbol, argument in wanted.items():
        if symbol in offsets:
            size = "" if argument is None else f" size={registers[argument]}:u64"
            lines.append(f"p:{group}/{symbol} {library}:{offsets[symbol]:#x}{size}{caller}")
            if returns:
                lines.append(f"r:{group}/{_RETURN}{symbol} {library}:{offsets[symbol]:#x} status=$retval:s32")
    return lines


class Probes:
    """Probes that exist during the `with` block; they fire for every process that uses the library file."""

    def __init__(
        self, library: Path, wanted: dict[str, int | None], returns: bool = True, callers: bool = False
    ) -> None:
        self.group = f"{group_of(os.getppid())}{os.getpid()}"
        self._wanted = (library, wanted, returns, callers)
        self._mounted: Path | None = None

    def __enter__(self) -> Probes:
        self._root = self._find()
        self._instance = self._root / "instances" / self.group
        try:
            for line in definitions(self.group, *self._wanted):
                _append(self._root / "uprobe_events", line)
            self._instance.mkdir()
            (self._instance / "trace_clock").write_text("mono")
            (self._instance / "buffer_size_kb").write_text("4096")
        except OSError as error:
            self.__exit__()
            raise NoTracing(f"the kernel refuses a probe: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        sweep(self._root, self.group)
        if self._mounted:
            subprocess.run(["umount", str(self._mounted)], check=False)
            self._mounted.rmdir()

    def _find(self) -> Path:
        for place in _PLACES:
            if (Path(place) / "uprobe_events").exists():
                return Path(place)
        folder = Path(tempfile.mkdtemp(prefix=f"{group_of(os.getppid())}tracefs_"))
        answer = subprocess.run(["mount", "-t", "tracefs", "tracefs", str(folder)], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            self._mounted = folder
        if not (folder / "uprobe_events").exists():
            if self._mounted:
                subprocess.run(["umount", str(folder)], check=False)
            folder.rmdir()
            raise NoTracing(answer.stderr.strip() or "tracefs has no uprobe_events: CONFIG_UPROBE_EVENTS is off")
        return folder

    def follow(self, tgid: int) -> None:
        """Limits the trace to this process and the processes that it starts from now on."""
        (self._instance / "options" / "event-fork").write_text("1")
        (self._instance / "set_event_pid").write_text(str(tgid))

    def start(self) -> None:
        """Enables the probes."""
        self._switch("1")

    def stop(self) -> None:
        """Disables the probes; the recorded hits are kept."""
        self._switch("0")

    def _switch(self, value: str) -> None:
        try:
            (self._instance / "events" / self.group / "enable").write_text(value)
        except OSError as error:
            raise NoTracing(f"the kernel refuses to switch the probes: {error}") from error

    def hits(self) -> list[Hit]:
        """Returns the hits recorded so far."""
        return parse((self._instance / "trace").read_text(errors="replace"))

    def lost(self) -> int:
        """Returns the number of lines that the kernel overwrote or dropped."""
        stats = [path.read_text() for path in self._instance.glob("per_cpu/cpu*/stats")]
        return sum(int(number) for text in stats for number in re.findall(r"(?:overrun|dropped events): (\d+)", text))

    def counts(self) -> dict[str, int]:
        """Returns the hits per probe over all processes, whether recorded or not."""
        counts = {}
        for line in (self._root / "uprobe_profile").read_text().splitlines():
            fields = line.split()
            if len(fields) >= 3 and fields[-2] in self._wanted[1]:
                counts[fields[-2]] = int(fields[-1])
        return counts


def _append(path: Path, line: str) -> None:
    # Python's mode "a" seeks to the end, which these files refuse.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def group_of(run_tgid: int) -> str:
    """Returns the prefix of all names that the steps of one run create in tracefs."""
    return f"gpucheck_{run_tgid}_"


def sweep(root: Path, beginning: str) -> None:
    """Removes the probes of every group whose name has this prefix."""
    for instance in (root / "instances").glob(f"{beginning}*"):
        for switch in instance.glob(f"events/{beginning}*/enable"):
            switch.write_text("0")
        instance.rmdir()
    for line in (root / "uprobe_events").read_text().splitlines():
        event = line.split()[0].partition(":")[2]
        if event.startswith(beginning):
            _append(root / "uprobe_events", f"-:{event}")


def sweep_run(run_tgid: int) -> None:
    """Removes what killed steps of a run left in tracefs, wherever that is mounted, and the mounts that they made."""
    beginning = group_of(run_tgid)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " tracefs " in line]
    for place in {*mounts, *_PLACES}:
        if (Path(place) / "uprobe_events").exists():
            sweep(Path(place), beginning)
    for mount in mounts:
        if f"{beginning}tracefs_" in mount:
            subprocess.run(["umount", mount], check=False)
            Path(mount).rmdir()
