"""Reads a memory snapshot with PyTorch's own tools, and prints its number of segments and whether it has frames of a script.

    read_snapshot.py FILE SCRIPT

prints the number of segments in the trace, and whether any frame is in SCRIPT.
"""

import pickle
import sys
from pathlib import Path

from torch.cuda import _memory_viz


def main() -> None:
    """Reads the snapshot and creates all of PyTorch's reports."""
    snapshot = pickle.loads(Path(sys.argv[1]).read_bytes())
    for report in (_memory_viz.trace_plot, _memory_viz.segment_plot, _memory_viz.segsum, _memory_viz.trace):
        report(snapshot)
    events = snapshot["device_traces"][0]
    segments = sum(event["action"] == "segment_alloc" for event in events)
    files = {frame["filename"] for event in events for frame in event["frames"]}
    print(segments, any(file.endswith(sys.argv[2]) for file in files))


if __name__ == "__main__":
    main()
