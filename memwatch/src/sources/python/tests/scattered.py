"""Many small objects in another order than that of their addresses; prints how many, and stops."""

import json
import random
import sys
import threading

COUNT = 250_000
lists = [[[number]] for number in range(COUNT)]
random.Random(1).shuffle(lists)

print(json.dumps({"objects": 2 * COUNT, "tid": threading.get_native_id()}), flush=True)
sys.stdin.buffer.raw.read(1)
