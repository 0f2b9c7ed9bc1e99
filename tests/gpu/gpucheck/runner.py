"""Runs every step in its own process and writes the reports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path

from gpucheck import ask_probes, library, machine, report, tracefs
from gpucheck.bench import Answer, Bench
from gpucheck.job import Silent
from gpucheck.steps import STEPS, Step

_FINE, _ERROR, _USAGE, _NOT_PERMITTED, _UNSUPPORTED = 0, 1, 2, 4, 5
# A step with less time left than this is not started.
_LEAST_S = 8.0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu-check",
        description="Asks a real GPU what memwatch assumes, compares memwatch with PyTorch and NVML, and writes a report.",
        epilog="Exit codes: 0 every answer agrees, 1 one does not or a step failed, 2 wrong usage, 4 not root, "
        "5 no GPU here or no eBPF.",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-runs"), metavar="DIR", help="where the reports go (default gpu-runs)")
    parser.add_argument("--limit", type=float, default=480.0, metavar="S", help="end after this many seconds (default 480)")
    parser.add_argument("--only", metavar="STEP,STEP", help="ask only these: " + ", ".join(step.name for step in STEPS))
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="the Python that has PyTorch (default: this one)")
    parser.add_argument("--diff", type=Path, metavar="TRACE", help="run what a trace was made of, and list the differences")
    parser.add_argument("--simulated", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(root: Path, words: list[str]) -> int:
    """Runs the whole check and returns the exit code."""
    arguments = _arguments(words)
    if arguments.step:
        return _run_here(arguments.step)
    refused = _refusal(arguments)
    if refused is not None:
        code, sentence = refused
        print(f"gpu-check: {sentence}", file=sys.stderr)
        return code
    wanted = arguments.only.split(",") if arguments.only else [step.name for step in STEPS]
    with tempfile.TemporaryDirectory(prefix="gpucheck-") as folder:
        try:
            bench = _bench(root, arguments, Path(folder))
        except OSError as error:
            print(f"gpu-check: the driver's libraries cannot be loaded: {error}", file=sys.stderr)
            return _UNSUPPORTED
        bench.facts = machine.facts(bench)
        if str(bench.facts["torch"]).startswith("unknown"):
            print(f"gpu-check: {bench.python} has no PyTorch: name the Python that has it with --python", file=sys.stderr)
        if arguments.diff:
            return _diff(bench, arguments.diff)
        return _check(bench, arguments, [step for step in STEPS if step.name in wanted])


def _refusal(arguments: argparse.Namespace) -> tuple[int, str] | None:
    unknown = set((arguments.only or "").split(",")) - {"", *(step.name for step in STEPS)}
    if unknown:
        return _USAGE, f"there is no step {', '.join(sorted(unknown))}"
    if arguments.simulated:
        if not arguments.diff and "gpu-runs" in arguments.out.resolve().parts:
            return _USAGE, "a report from the simulated GPU does not go into gpu-runs: name another folder with --out"
        return None
    why = machine.no_gpu()
    if why:
        return _UNSUPPORTED, f"no NVIDIA GPU here: {why}. Run ./gpu-check on a machine with an NVIDIA GPU and its driver."
    if os.geteuid() != 0:
        return _NOT_PERMITTED, "the probes need root: sudo ./gpu-check"
    return None


def _bench(root: Path, arguments: argparse.Namespace, work: Path) -> Bench:
    traces = work / "traces"
    traces.mkdir()
    return Bench(
        root=root,
        python=shutil.which(arguments.python) or arguments.python,
        memwatch=root / "bin" / "memwatch",
        work=work,
        traces=traces,
        libcuda=library.path_of(library.DRIVER),
        nvml=library.path_of(library.NVML),
        is_simulated=arguments.simulated,
    )


def _check(bench: Bench, arguments: argparse.Namespace, steps: list[Step]) -> int:
    deadline = time.monotonic() + arguments.limit
    found = {
        "schema": report.SCHEMA,
        "simulated": bench.is_simulated,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": bench.facts,
        "no_probes": machine.no_probes(bench),
        "interrupted": False,
        "steps": [],
    }
    # The first Ctrl-C or SIGTERM ends the running step; the reports contain the answers so far.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for step in steps:
            print(f"gpu-check: {step.name} ...", flush=True)
            row = _asked(bench, step, found["no_probes"], deadline)
            print(f"  {row['state']}: {row['text']}", flush=True)
            found["steps"].append({"simulated": bench.is_simulated, **row})
    except KeyboardInterrupt:
        found["interrupted"] = True
        print("gpu-check: interrupted", file=sys.stderr)
    finally:
        tracefs.sweep_run(os.getpid())
    _write(bench, arguments.out, found)
    return _exit_code(found)


def _diff(bench: Bench, trace: Path) -> int:
    try:
        lines = ask_probes.compare_with_trace(bench, trace)
    except (OSError, ValueError, KeyError, RuntimeError, tracefs.NoTracing, Silent) as error:
        print(f"gpu-check: {trace} cannot be compared: {error}", file=sys.stderr)
        return _UNSUPPORTED if isinstance(error, tracefs.NoTracing) else _ERROR
    print("\n".join(lines) or f"gpu-check: {trace.name}: the same calls")
    return _ERROR if lines else _FINE


def _exit_code(found: dict) -> int:
    if found["no_probes"]:
        print(f"gpu-check: {found['no_probes']}", file=sys.stderr)
        return _UNSUPPORTED
    is_fine = not found["interrupted"] and all(step["state"] in ("answered", "not answered") for step in found["steps"])
    return _FINE if is_fine else _ERROR


def _asked(bench: Bench, step: Step, no_probes: str | None, deadline: float) -> dict:
    start = time.monotonic()
    limit_s = min(step.limit_s, deadline - start)
    if step.needs_probes and no_probes:
        answer = Answer("not answered", no_probes)
    elif limit_s < _LEAST_S:
        answer = Answer("not answered", "the time limit of the whole check was over")
    else:
        answer = _run_apart(bench, step, limit_s)
    return {
        "name": step.name,
        "question": step.question,
        "method": step.method,
        "seconds": round(time.monotonic() - start, 2),
        "state": answer.state,
        "text": answer.text,
        "evidence": answer.evidence,
    }


def _run_apart(bench: Bench, step: Step, limit_s: float) -> Answer:
    """Runs a step in a separate process group, so that everything it started ends with it."""
    bench.result = bench.work / f"{step.name}.json"
    command = [sys.executable, str(bench.root / "gpu-check"), "--step", step.name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    in_time = True
    try:
        process.communicate(bench.to_json(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        _end_group(process)
    saved = json.loads(bench.result.read_text()) if bench.result.exists() else None
    if in_time and saved:
        return Answer(**saved)
    why = "it ended without an answer" if in_time else f"its time limit of {limit_s:.0f} s was over"
    if saved:
        return Answer("failed", f"{why}; until then: {saved['text']}", saved["evidence"])
    return Answer("failed", why)


def _end_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _run_here(name: str) -> int:
    """Runs a step in this process: reads the bench from standard input and writes the answer to the bench's result file."""
    bench = Bench.from_json(sys.stdin.read())
    step = next(step for step in STEPS if step.name == name)
    try:
        answer = step.run(bench)
    except tracefs.NoTracing as error:
        answer = Answer("not answered", f"no probes through tracefs: {error}")
    except Exception as error:
        # A failed step must not discard the answers of others; the report shows where it failed.
        trace = traceback.format_exc().splitlines()
        saved = json.loads(bench.result.read_text()) if bench.result and bench.result.exists() else None
        before = f"; until then: {saved['text']}" if saved else ""
        evidence = {**(saved["evidence"] if saved else {}), "traceback": trace}
        answer = Answer("failed", f"{type(error).__name__}: {error}{before}", evidence)
    bench.save(answer)
    return 0


def _write(bench: Bench, out: Path, found: dict) -> None:
    stem = report.file_stem(found["date"], str(found["machine"]["gpu"]), str(found["machine"]["driver"]))
    if bench.is_simulated:
        stem = f"simulated-{stem}"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / f"{stem}.md").write_text(report.markdown(found))
    files = sorted(bench.traces.iterdir())
    if files:
        folder = out / f"{stem}-traces"
        folder.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, folder / file.name)
    print(f"gpu-check: wrote {out / stem}.md and .json" + (f" and {len(files)} traces" if files else ""))
