"""Reads a dashboard into Grafana's own types and back, and prints as JSON what was lost: paths and values.

    check_dashboard.py FILE
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(before: object, after: object, path: str) -> list[str]:
    """Returns what is in `before` but not in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        missing = [f"{path}/{key}" for key in before if key not in after]
        return missing + [one for key in before if key in after for one in lost(before[key], after[key], f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [one for index, pair in enumerate(zip(before, after)) for one in lost(*pair, f"{path}/{index}")]
    return [] if before == after else [f"{path}: {before} became {after}"]


register_default_plugins()
given = json.loads(Path(sys.argv[1]).read_text())
read = Dashboard.from_json(given)
print(json.dumps(lost(given, json.loads(JSONEncoder().encode(read)), "")))
