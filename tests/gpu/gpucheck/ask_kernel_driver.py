"""Which part of NVML's numbers the objects of the kernel driver explain, and open questions about them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gpucheck.agent import Agent
from gpucheck.bench import Answer, Bench, answered, differs, mib, not_answered
from gpucheck.cuda import CudaError, Driver
from gpucheck.job import ALLOCATORS, Job
from gpucheck.nvml import LISTS, Nvml, NvmlError

_MIB = 1 << 20
# A program that executes each line of its input.
_STEPPED = """
import sys
from gpucheck.cuda import Driver
driver = Driver()
print("cuInit", flush=True)
for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except Exception as error:
        print(error, flush=True)
"""
# Programs that draw or encode for a few seconds, by the program's name.
_GRAPHICS = {
    "vkcube": ["vkcube", "--c", "400"],
    "ffmpeg": [
        "ffmpeg", "-loglevel", "error", "-f", "lavfi", "-re", "-i", "testsrc=size=1280x720:rate=30", "-t", "6",
        "-c:v", "h264_nvenc", "-f", "null", "-",
    ],
}


class _Stepped:
    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        self.tgid = process.pid

    def do(self, line: str) -> str:
        """Makes the program execute a line; returns `done` or the error."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def _stepped(bench: Bench, **environment: str) -> Iterator[_Stepped]:
    process = subprocess.Popen(
        [sys.executable, "-c", _STEPPED], env={**os.environ, "PYTHONPATH": str(bench.root), **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    try:
        process.stdout.readline()
        yield _Stepped(process)
    finally:
        process.kill()
        process.communicate()


def explained(bench: Bench) -> Answer:
    """Traces a training with each of PyTorch's allocators from its start, and compares at every checkpoint."""
    rows: list[dict] = []
    with Agent(bench) as agent:
        for allocator in ALLOCATORS:
            with Job(bench, bench.workload("transformer.py"), "--steps", "2", "--wait", allocator=allocator) as job:
                for point in job.checkpoints():
                    rows += [{"allocator": allocator, "checkpoint": point["label"], **row} for row in _uses(agent.settled(job.tgid))]
                    bench.save(judge(rows))
    return judge(rows)


def _uses(process: dict | None) -> list[dict]:
    return [
        {
            "trust": use["trust"] if use["reason"] is None else f"{use['trust']}: {use['reason']}",
            "used_bytes": use["used_bytes"],
            "parts_bytes": sum(part["bytes"] for part in use["parts"]),
            "older_bytes": use["older_bytes"],
            "unexplained_bytes": use["unexplained_bytes"],
            "parts": ", ".join(f"{part['owner'] or part['label']} {mib(part['bytes'])}" for part in use["parts"]),
        }
        for use in (process or {"gpus": []})["gpus"]
    ]


def judge(rows: list[dict]) -> Answer:
    """Checks that the parts add up to what NVML charges, wherever both are known."""
    compared = [row for row in rows if row["used_bytes"]]
    wrong = [row for row in compared if row["unexplained_bytes"] != 0 or row["parts_bytes"] != row["used_bytes"]]
    doubted = [row for row in compared if row["trust"] != "trusted"]
    text = f"{len(compared) - len(wrong)} of {len(compared)} points: the parts are NVML's number to the byte"
    if wrong:
        text += "; most unexplained: " + mib(max((abs(row["unexplained_bytes"] or 0) for row in wrong), default=0))
    if doubted:
        text += f"; {len(doubted)} points were not believed"
    return (differs if wrong or doubted or not compared else answered)(text, points=rows)


def context_parts(bench: Bench) -> Answer:
    """Explains a program that only creates a context."""
    with Agent(bench) as agent, _stepped(bench) as program:
        done = program.do("driver.enter()")
        if done != "done":
            return not_answered(f"no context could be made: {done}")
        process = agent.settled(program.tgid)
    if not process or not process["gpus"]:
        return not_answered("memwatch saw no request of it")
    objects = process["gpus"][0]["objects"]
    sizes: Counter[int] = Counter()
    for row in objects:
        sizes[row["granted_bytes"]] += row["objects"]
    listed = ", ".join(f"{count} x {mib(size)}" for size, count in sorted(sizes.items(), reverse=True))
    host = process["host"]
    text = f"a context is {listed}: {mib(process['gpus'][0]['live_bytes'])}; of the host {mib(host['driver_bytes'])} and {mib(host['pinned_bytes'])} pinned"
    return answered(text, objects=objects, host=host)


def host_physical(bench: Bench) -> Answer:
    """Allocates 64 MiB with cuMemCreate in each host location that the driver supports."""
    rows = []
    with Agent(bench) as agent, _stepped(bench) as program:
        program.do("driver.enter()")
        for place, number in (("the host", 2), ("the host's node 0", 3)):
            before = agent.settled(program.tgid)
            done = program.do(f"driver.create_physical(64 << 20, {number}, 0)")
            time.sleep(1.5)
            after = agent.settled(program.tgid)
            if done == "done" and before and after:
                rows.append({"place": place, "answer": done, **_host_growth(before, after)})
            else:
                rows.append({"place": place, "answer": done, "driver_bytes": None, "pinned_bytes": None, "used_bytes": None})
    made = [row for row in rows if row["answer"] == "done"]
    if not made:
        return not_answered("this driver makes no physical memory on the host: " + "; ".join(row["answer"] for row in rows), rows=rows)
    grown = [f"64 MiB on {row['place']}: driver's own {mib(row['driver_bytes'])}, pinned {mib(row['pinned_bytes'])}, of the GPU {mib(row['used_bytes'])}" for row in made]
    return answered("; ".join(grown), rows=rows)


def _host_growth(before: dict, after: dict) -> dict[str, int]:
    use = [sum(gpu["live_bytes"] for gpu in process["gpus"]) for process in (before, after)]
    growth = {key: after["host"][key] - before["host"][key] for key in ("driver_bytes", "pinned_bytes")}
    return {**growth, "used_bytes": use[1] - use[0]}


def two_gpus(bench: Bench) -> Answer:
    """Explains a program with memory on two GPUs that have peer access."""
    driver = Driver()
    if driver.count() < 2:
        return not_answered("there is one GPU here")
    with Agent(bench) as agent, _stepped(bench) as program:
        for line in ("driver.enter()", "driver.alloc(64 << 20)", "driver.use(1)", "driver.enter()", "driver.alloc(32 << 20)"):
            done = program.do(line)
            if done != "done":
                return not_answered(f"{line}: {done}")
        apart = _uses(agent.settled(program.tgid))
        peer = program.do("driver.enable_peer(0)")
        time.sleep(1.5)
        together = _uses(agent.settled(program.tgid))
    grown = [after["parts_bytes"] - before["parts_bytes"] for before, after in zip(apart, together)]
    answer = judge([*apart, *together])
    text = f"{answer.text}; peer access ({peer}) adds {', '.join(map(mib, grown))}"
    return Answer(answer.state, text, {"apart": apart, "with_peer_access": together})


def instances(bench: Bench) -> Answer:
    """Explains a program on the first instance of a MIG GPU."""
    try:
        uuid = Nvml().first_instance()
    except NvmlError as error:
        return not_answered(f"NVML lists no instances: {error}")
    if uuid is None:
        return not_answered("no GPU here is divided into instances")
    with Agent(bench) as agent, _stepped(bench, CUDA_VISIBLE_DEVICES=uuid) as program:
        program.do("driver.enter()")
        program.do("driver.alloc(64 << 20)")
        process = agent.settled(program.tgid)
    answer = judge(_uses(process))
    names = [use["uuid"] for use in (process or {"gpus": []})["gpus"]]
    return Answer(answer.state, f"{answer.text}; NVML's instance {uuid}, memwatch's {', '.join(map(str, names))}", answer.evidence)


def graphics(bench: Bench) -> Answer:
    """Explains programs that draw or encode, if they are installed."""
    there = {name: words for name, words in _GRAPHICS.items() if shutil.which(words[0])}
    if not there:
        return not_answered(f"none of {', '.join(_GRAPHICS)} is installed here")
    rows = []
    with Agent(bench) as agent:
        for name, words in there.items():
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with process:
                time.sleep(3.0)
                charged = {kind: _charged(kind, process.pid) for kind in LISTS}
                rows += [{"program": name, **charged, **row} for row in _uses(agent.settled(process.pid))]
                process.kill()
    if not rows:
        return not_answered(f"memwatch saw no request of {', '.join(there)}: they may not have used the GPU")
    answer = judge(rows)
    return Answer(answer.state, f"{', '.join(there)}: {answer.text}", answer.evidence)


def _charged(kind: str, tgid: int) -> int | None:
    try:
        return Nvml().processes(kind).get(tgid)
    except NvmlError:
        return None
