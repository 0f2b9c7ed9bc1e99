"""Opens Perfetto traces with Perfetto's own messages, Parquet tables with pandas and scalars with TensorBoard, and prints their contents as JSON.

    read_timelines.py FILE...

For a .pftrace: tracks with parents, units and values, slices and instants, and the number of unknown fields.
For a .parquet: columns and rows. For a .tfevents: each scalar's steps and values, as TensorBoard serves them to its page.
"""

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pandas
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


def unknown(message: Message) -> int:
    """Returns the number of unknown fields in a message and its submessages."""
    count = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = [value] if isinstance(value, Message) else list(value)
            count += sum(unknown(one) for one in inner)
    return count


def trace(path: Path) -> object:
    """Returns the contents of a trace."""
    read = Trace()
    read.ParseFromString(path.read_bytes())
    tracks: dict[int, dict] = {}
    for packet in read.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            tracks[track.uuid] = {
                "name": track.name,
                "parent": track.parent_uuid or None,
                "pid": track.process.pid if track.HasField("process") else None,
                "is_bytes": track.counter.unit == 3,
                "values": [],
                "instants": [],
                "slices": [],
                "open": 0,
            }
        if packet.HasField("track_event"):
            event, track = packet.track_event, tracks[packet.track_event.track_uuid]
            if event.type == TrackEvent.TYPE_COUNTER:
                track["values"].append(event.counter_value)
            elif event.type == TrackEvent.TYPE_INSTANT:
                notes = {note.name: note.uint_value or note.string_value for note in event.debug_annotations}
                track["instants"].append({"name": event.name, **notes})
            elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
                track["slices"].append(event.name)
                track["open"] += 1
            elif event.type == TrackEvent.TYPE_SLICE_END:
                track["open"] -= 1
    return {"tracks": {str(uuid): track for uuid, track in tracks.items()}, "unknown": unknown(read)}


def table(path: Path) -> object:
    """Returns the rows of a table."""
    frame = pandas.read_parquet(path)
    types = {name: str(kind) for name, kind in frame.dtypes.items()}
    return {"types": types, "rows": json.loads(frame.to_json(orient="records"))}


def scalars(path: Path) -> object:
    """Returns what TensorBoard shows of a folder with only this file."""
    folder = path.parent / f"{path.name}-board"
    folder.mkdir()
    (folder / path.name).symlink_to(path)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as board:
        try:
            address = next(line.split(" at ")[1].split()[0] for line in board.stderr if " at http" in line)

            def ask(words: str) -> dict:
                with urllib.request.urlopen(f"{address}data/plugin/scalars/{words}") as answer:
                    return json.load(answer)

            # TensorBoard serves its page before it has read the file.
            until = time.monotonic() + 60
            while not (tags := ask("tags")) and time.monotonic() < until:
                time.sleep(0.1)
            shown = {}
            for run, names in tags.items():
                for tag in names:
                    words = urllib.parse.urlencode({"run": run, "tag": tag})
                    rows = ask(f"scalars?{words}")
                    shown[tag] = {"steps": [row[1] for row in rows], "numbers": [row[2] for row in rows]}
            return shown
        finally:
            board.terminate()


READERS = {".pftrace": trace, ".parquet": table, ".tfevents": scalars}
print(json.dumps({Path(name).name: READERS[Path(name).suffix](Path(name)) for name in sys.argv[1:]}))
