"""Environment of a step: the paths on this machine, and the form of an answer."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Bench:
    """The machine under test, as passed to every step."""

    root: Path
    python: str
    memwatch: Path
    work: Path
    traces: Path
    libcuda: Path
    nvml: Path
    is_simulated: bool
    # Properties of the machine, for the header of a trace.
    facts: dict[str, object] = field(default_factory=dict)
    # File for the answer of the running step. A partial answer is saved there too, in case the step runs out of time.
    result: Path | None = None

    def workload(self, name: str) -> Path:
        """Returns the path of a workload that the integration tests also run."""
        return self.root / "workloads" / name

    def script(self, name: str) -> Path:
        """Returns the path of a PyTorch script that only this check runs."""
        return self.root / "scripts" / name

    def save(self, answer: Answer) -> None:
        """Writes the present answer."""
        if self.result is not None:
            fresh = self.result.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(answer)))
            os.replace(fresh, self.result)

    def to_json(self) -> str:
        """Serialises the bench for the process of a step."""
        return json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Bench:
        """Reads the bench as written by [`Bench.to_json`]."""
        facts = json.loads(text)
        paths = {"root", "memwatch", "work", "traces", "libcuda", "nvml", "result"}
        return cls(**{key: Path(value) if key in paths and value is not None else value for key, value in facts.items()})


@dataclass
class Answer:
    """The result of a step.

    `state` is one of: answered; differs (measured, but not as expected); not answered (cannot be measured here, for the
    reason in `text`); failed (the step itself failed).
    """

    state: str
    text: str
    evidence: dict = field(default_factory=dict)


def answered(text: str, **evidence: object) -> Answer:
    """The question was measured as expected."""
    return Answer("answered", text, evidence)


def differs(text: str, **evidence: object) -> Answer:
    """The measurement contradicts memwatch's rules."""
    return Answer("differs", text, evidence)


def not_answered(why: str, **evidence: object) -> Answer:
    """The question cannot be measured here."""
    return Answer("not answered", why, evidence)


def mib(size_bytes: int | None) -> str:
    """Formats bytes for a sentence."""
    return "unknown" if size_bytes is None else f"{size_bytes / (1 << 20):.2f} MiB"
