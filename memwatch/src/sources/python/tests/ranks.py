"""A scheduler whose tensors are in a child process, as with tensor parallelism. Prints the child's PID."""

import subprocess
import sys

import engines

program = "import os; os.read(0, 1)"
child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
scheduler = engines.server(400)
print(child.pid, flush=True)
sys.modules["vllm.v1.engine.core"].EngineCoreProc(scheduler).run_busy_loop()
