"""Tests of the parts of the check that run on any machine: they need neither a GPU nor the driver nor PyTorch."""

import ctypes
import json
import sys
import tempfile
import unittest
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpucheck import ask_kernel_driver, ask_probes, calls, compare, elf, library, machine, outside, overhead, report, tracefs, watcher
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


    def test_a_probe_records_where_a_call_returns_to_if_that_is_asked_for(self) -> None:
        library.load("libc.so.6")
        path = library.mapped("libc.so.6")
        assert path is not None
        first, second = tracefs.definitions("g", path, {"malloc": 0}, returns=True, callers=True)
        self.assertIn(" caller=", first)
        self.assertNotIn(" caller=", second)
        hit = "python3-4711 [001] ..... 100.000001: malloc: (0x7f0000001000) size=16 caller=0x7f0000000042\n"
        self.assertEqual(calls.pair(tracefs.parse(hit))[0].caller, 0x7F0000000042)


MAPS = """\
100000-200000 r-xp 00000000 fe:01 11 /venv/lib/libcudart.so.13
200000-300000 r-xp 00000000 fe:01 12 /venv/lib/libc10_cuda.so
300000-400000 r-xp 00001000 fe:01 13 /venv/lib/libcublas.so.13
400000-500000 rw-p 00000000 00:00 0
500000-600000 rw-p 00000000 00:00 0 [heap]
"""


class Outside(unittest.TestCase):
    def taken(self, *made: Call) -> tuple[list[dict], int]:
        return outside.taken(made, outside.code_of(MAPS))

    def test_what_other_libraries_take_is_named_by_library_and_size(self) -> None:
        of_pytorch = [Call("cuMemAlloc_v2", 2 << 20, 0, 0, 0x100010), Call("cuMemCreate", 20 << 20, 0, 0, 0x200010)]
        handle = [Call("cuMemAlloc_v2", size, 0, 0, 0x300010) for size in (1024, 131072, 67108864)]
        rows, frees = self.taken(*of_pytorch, *handle, *handle)
        self.assertEqual([(row["library"], row["size_bytes"], row["times"]) for row in rows],
                         [("libcublas.so.13", size, 2) for size in (1024, 131072, 67108864)])
        self.assertEqual((outside.total_bytes(rows), frees), (134481920, 0))

    def test_a_refused_call_took_nothing_and_freeing_nothing_gave_nothing_back(self) -> None:
        refused, unfinished = Call("cuMemAlloc_v2", 512, 2, 0, 0x300010), Call("cuMemAlloc_v2", 512, None, 0, 0x300010)
        self.assertEqual(self.taken(refused, unfinished, Call("cuMemFree_v2", 0, 0, 0, 0x300010)), ([], 0))
        self.assertEqual(self.taken(Call("cuMemFree_v2", 0x7F0000000000, 0, 0, 0x300010)), ([], 1))

    def test_code_that_is_of_no_file_is_not_pytorchs(self) -> None:
        rows, _ = self.taken(Call("cuMemAlloc_v2", 512, 0, 0, 0x400010), Call("cuMemAlloc_v2", 512, 0, 0, None))
        self.assertEqual([(row["library"], row["times"]) for row in rows], [("code of no file", 2)])


class AgainstTorch(unittest.TestCase):
    def row(self, **more: object) -> dict:
        same = {"torch_live_bytes": 100, "memwatch_live_bytes": 100, "torch_peak_bytes": 120, "memwatch_peak_bytes": 120}
        fixed = {"allocator": "native", "failures": 0, "lost": 0, "used_minus_live_bytes": 7}
        return {**same, **fixed, "outside_torch_bytes": 0, **more}

    def test_live_bytes_are_pytorchs_and_what_other_libraries_took(self) -> None:
        more = self.row(memwatch_live_bytes=130, memwatch_peak_bytes=150)
        self.assertFalse(compare.agrees(more))
        self.assertTrue(compare.agrees({**more, "outside_torch_bytes": 30}))
        self.assertFalse(compare.agrees({**more, "outside_torch_bytes": 29}))
        self.assertFalse(compare.agrees({**more, "outside_torch_bytes": None}), "a kernel that records no callers excuses nothing")

    def test_a_peak_from_before_others_took_memory_agrees_and_a_higher_one_does_not(self) -> None:
        taken = {"memwatch_live_bytes": 130, "outside_torch_bytes": 30}
        self.assertTrue(compare.agrees(self.row(**taken, memwatch_peak_bytes=120)))
        self.assertFalse(compare.agrees(self.row(**taken, memwatch_peak_bytes=151)))
        self.assertFalse(compare.agrees(self.row(**taken, memwatch_peak_bytes=119)))

    def test_every_checkpoint_on_an_h100_agrees_with_pytorch_and_two_cublas_handles(self) -> None:
        run = Path(__file__).resolve().parents[2] / "docs/project/gpu-runs/2026-11-22-nvidia-h100-80gb-hbm3-580.159.04.json"
        steps = json.loads(run.read_text())["steps"]
        rows = next(step for step in steps if step["name"] == "against_torch")["evidence"]["checkpoints"]
        handles = 2 * (1024 + 131072 + 67108864)
        has_handles = {id(row): row["script"] == "transformer" and row["checkpoint"] != "model" for row in rows}
        full = [{**row, "outside_torch_bytes": handles if has_handles[id(row)] else 0} for row in rows]
        self.assertEqual((len(full), [row for row in full if not compare.agrees(row)]), (48, []))

    def test_the_answer_names_what_is_outside_pytorch(self) -> None:
        taken = [{"library": "libcublas.so.13", "symbol": "cuMemAlloc_v2", "size_bytes": size, "times": 1} for size in (30, 8)]
        answer = compare.judge([self.row(memwatch_live_bytes=138, memwatch_peak_bytes=158, outside_torch_bytes=38)], taken)
        self.assertEqual(answer.state, "answered")
        self.assertIn("outside PyTorch: libcublas.so.13 8 + 30 bytes", answer.text)


class KernelDriver(unittest.TestCase):
    def _row(self, **changed: object) -> dict:
        return {"trust": "trusted", "used_bytes": 540, "parts_bytes": 540, "older_bytes": 0, "unexplained_bytes": 0, **changed}

    def test_parts_that_are_all_of_it_agree_wherever_nvml_charges_anything(self) -> None:
        answer = ask_kernel_driver.judge([self._row(), self._row(used_bytes=0, parts_bytes=0), self._row(used_bytes=None)])
        self.assertEqual((answer.state, answer.text), ("answered", "1 of 1 points: the parts are NVML's number to the byte"))

    def test_what_is_unexplained_or_not_believed_differs(self) -> None:
        short = ask_kernel_driver.judge([self._row(), self._row(parts_bytes=538, unexplained_bytes=2 << 20)])
        self.assertEqual(short.state, "differs")
        self.assertIn("1 of 2 points", short.text)
        self.assertIn("most unexplained: 2.00 MiB", short.text)
        self.assertEqual(ask_kernel_driver.judge([self._row(trust="refused: lost")]).state, "differs")
        self.assertEqual(ask_kernel_driver.judge([]).state, "differs", "nothing was compared")


class Sites(unittest.TestCase):
    def test_a_function_newer_than_the_driver_is_not_missing(self) -> None:
        rows = [{"symbol": "cuMulticastBindMem_v2", "since": "13.1"}, {"symbol": "cuMemCreate", "since": "10.2"}]
        self.assertEqual(ask_probes.absent(rows, (13, 0)), (["cuMemCreate"], ["cuMulticastBindMem_v2"]))


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
