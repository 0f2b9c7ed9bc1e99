"""What a step gets: where things are on this machine, and what an answer looks like."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Bench:
    """The machine under the check, as every step sees it."""

    root: Path
    python: str
    memwatch: Path
    work: Path
    traces: Path
    libcuda: Path
    nvml: Path
    is_simulated: bool
    # What the machine is, for a trace's head.
    facts: dict[str, object] = field(default_factory=dict)
    # Where the answer of the running step goes, also half-way: a step that runs out of time has then reported something.
    result: Path | None = None

    def workload(self, name: str) -> Path:
        """One of the workloads that the integration tests run, too."""
        return self.root / "workloads" / name

    def script(self, name: str) -> Path:
        """One of the PyTorch scripts that only the check runs."""
        return self.root / "scripts" / name

    def save(self, answer: Answer) -> None:
        """Writes the answer as it stands."""
        if self.result is not None:
            fresh = self.result.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(answer)))
            os.replace(fresh, self.result)

    def to_json(self) -> str:
        """The bench for a step's own process."""
        return json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Bench:
        """The bench as [`Bench.to_json`] wrote it."""
        facts = json.loads(text)
        paths = {"root", "memwatch", "work", "traces", "libcuda", "nvml", "result"}
        return cls(**{key: Path(value) if key in paths and value is not None else value for key, value in facts.items()})


@dataclass
class Answer:
    """What a step found out.

    `state` is one of: answered; differs (it was measured, and is not what it should be); not answered (it cannot be measured
    here, `text` says why); failed (the step itself broke).
    """

    state: str
    text: str
    evidence: dict = field(default_factory=dict)


def answered(text: str, **evidence: object) -> Answer:
    """It was measured."""
    return Answer("answered", text, evidence)


def differs(text: str, **evidence: object) -> Answer:
    """It was measured, and is not what memwatch's rules say."""
    return Answer("differs", text, evidence)


def not_answered(why: str, **evidence: object) -> Answer:
    """It cannot be measured here."""
    return Answer("not answered", why, evidence)


def mib(size_bytes: int | None) -> str:
    """Bytes for a sentence."""
    return "unknown" if size_bytes is None else f"{size_bytes / (1 << 20):.2f} MiB"
