"""What of the check can be tested on any machine: it needs neither a GPU nor the driver nor PyTorch."""

import ctypes
import sys
import tempfile
import unittest
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpucheck import calls, elf, library, machine, overhead, report, tracefs, watcher
from gpucheck.calls import Call
from gpucheck.steps import STEPS

TRACE = """\
# tracer: nop
           <...>-4711    [001] .....   100.000001: cuMemAlloc_v2: (0x7f0000001000) size=2097152
         python3-4711    [001] .....   100.000002: ret_cuMemAlloc_v2: (0x7f1 <- 0x7f0000001000) status=0
   pt_autograd-0-4712    [000] .....   100.000003: cuMemFree_v2: (0x7f0000002000)
         python3-4711    [001] .....   100.000004: cuMemCreate: (0x7f0000003000) size=20971520
   pt_autograd-0-4712    [000] .....   100.000005: ret_cuMemFree_v2: (0x7f1 <- 0x7f0000002000) status=0
         python3-4711    [001] .....   100.000006: ret_cuMemCreate: (0x7f1 <- 0x7f0000003000) status=2
         python3-4711    [001] .....   100.000007: cuMemFree_v2: (0x7f0000002000)
"""


class Elf(unittest.TestCase):
    def test_an_offset_leads_to_the_bytes_that_the_loader_mapped(self) -> None:
        libc = ctypes.CDLL("libc.so.6")
        path = library.mapped("libc.so.6")
        assert path is not None
        offset = elf.function_offsets(path)["fwrite"]
        address = ctypes.cast(libc.fwrite, ctypes.c_void_p).value
        with path.open("rb") as file:
            file.seek(offset)
            self.assertEqual(file.read(16), ctypes.string_at(address, 16))

    def test_what_is_no_library_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            elf.function_offsets(Path(__file__))


class Tracing(unittest.TestCase):
    def test_entries_are_paired_with_the_returns_of_their_own_thread(self) -> None:
        self.assertEqual(
            calls.pair(tracefs.parse(TRACE)),
            [
                Call("cuMemAlloc_v2", 2097152, 0, 0),
                Call("cuMemFree_v2", None, 0, 1),
                Call("cuMemCreate", 20971520, 2, 0),
                Call("cuMemFree_v2", None, None, 0),
            ],
        )

    def test_a_trace_is_read_as_it_was_written_and_equal_calls_share_a_line(self) -> None:
        made = [*calls.pair(tracefs.parse(TRACE)), *[Call("cuMemRelease", None, 0, 0)] * 3]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.tsv"
            calls.write(path, {"script": "oom.py --x 1", "lost": 0}, made)
            self.assertEqual(calls.read(path), ({"script": "oom.py --x 1", "lost": "0"}, made))
            self.assertEqual(path.read_text().splitlines()[-1], "cuMemRelease\t-\t0\t0\t3")

    def test_differences_name_the_calls_and_ignore_threads(self) -> None:
        wanted = [Call("cuMemAlloc_v2", 512, 0, 0), Call("cuMemFree_v2", None, 0, 1)]
        found = [Call("cuMemAlloc_v2", 512, 0, 3), Call("cuMemFree_v2", None, 0, 3)]
        self.assertEqual(calls.differences(wanted, found), [])
        lines = calls.differences(wanted, found[:1])
        self.assertIn("+cuMemFree_v2\t-\t0\t1", lines)

    def test_a_probe_records_the_size_only_where_there_is_one(self) -> None:
        library.load("libc.so.6")
        path = library.mapped("libc.so.6")
        assert path is not None
        lines = tracefs.definitions("g", path, {"malloc": 0, "free": None, "no_such_function": 0}, returns=True)
        self.assertEqual([line.split()[0] for line in lines], ["p:g/malloc", "r:g/ret_malloc", "p:g/free", "r:g/ret_free"])
        self.assertEqual(["size=" in line for line in lines], [True, False, False, False])


class Report(unittest.TestCase):
    def report(self, simulated: bool, no_probes: "str | None" = None) -> dict:
        step = {
            "name": "pool",
            "question": "How?",
            "method": "By asking",
            "seconds": 1.25,
            "state": "differs",
            "text": "it grows",
            "evidence": {"rows": [{"a": 1, "b": "x|y"}, {"a": None, "b": True}], "list": ["p", "q"], "map": {"k": 3}},
        }
        return {
            "date": "2026-01-02",
            "simulated": simulated,
            "machine": {"gpu": "A GPU", "driver": "580.1"},
            "no_probes": no_probes,
            "interrupted": False,
            "steps": [step],
        }

    def test_the_answers_stand_first_and_evidence_becomes_tables(self) -> None:
        text = report.markdown(self.report(simulated=False))
        self.assertTrue(text.startswith("# memwatch on A GPU, 2026-01-02\n"))
        for line in ("| pool | differs | it grows |", "| 1 | x\\|y |", "| - | yes |", "list: p, q", "- k: 3"):
            self.assertIn(f"\n{line}\n", text)

    def test_every_line_from_the_simulated_gpu_says_so(self) -> None:
        lines = report.markdown(self.report(simulated=True)).splitlines()
        self.assertEqual([line for line in lines if not line.startswith("[simulated]")], [])

    def test_a_kernel_without_probes_is_named_with_its_answer(self) -> None:
        self.assertIn("Linux 4.4.0 says no", report.markdown(self.report(simulated=False, no_probes="Linux 4.4.0 says no")))

    def test_a_run_that_was_interrupted_at_once_is_reported(self) -> None:
        empty = {**self.report(simulated=False), "interrupted": True, "steps": []}
        self.assertIn("Interrupted", report.markdown(empty))

    def test_file_names_hold_no_surprises(self) -> None:
        self.assertEqual(report.file_stem("2026-01-02", "NVIDIA H200 (x)", "580.1"), "2026-01-02-nvidia-h200-x-580.1")


class Machine(unittest.TestCase):
    def test_a_missing_check_that_probes_need_is_the_reason(self) -> None:
        checks = [
            {"id": "btf", "state": "missing", "fact": "no /sys/kernel/btf/vmlinux"},
            {"id": "driver", "state": "missing", "fact": "none"},
        ]
        refusal = machine.refusal({"data": {"checks": checks}}, "Linux 4.4.0")
        self.assertEqual(refusal, "Linux 4.4.0 allows no eBPF probes here (btf: no /sys/kernel/btf/vmlinux)")
        self.assertIsNone(machine.refusal({"data": {"checks": checks[1:]}}, "Linux 4.4.0"))


class Numbers(unittest.TestCase):
    def test_the_added_time_is_that_of_the_medians_and_its_spread_that_of_the_rounds(self) -> None:
        found = overhead.summary([[1000, 1000, 9000], [1000, 1000, 1000]], [[1100, 1100, 1100], [1000, 1000, 1000]])
        self.assertEqual((found["unwatched_median_us"], found["lowest_percent"], found["highest_percent"]), (1.0, 0.0, 10.0))

    def test_times_of_reports_are_read_to_the_microsecond(self) -> None:
        want = datetime(2026, 1, 2, 3, 4, 5, 120000, tzinfo=timezone.utc)
        self.assertEqual(watcher.moment("2026-01-02T03:04:05.120000999Z"), want)
        self.assertEqual(watcher.moment("2026-01-02T03:04:05Z"), want.replace(microsecond=0))

    def test_every_step_has_a_name_of_its_own(self) -> None:
        self.assertEqual(len({step.name for step in STEPS}), len(STEPS))


if __name__ == "__main__":
    unittest.main()
