"""Creates the Markdown report from the JSON report."""

from __future__ import annotations

import re

SCHEMA = "memwatch.gpu-check/1"
# Longer tables are in the JSON report only.
_LONGEST_TABLE = 60
_SIMULATED = "[simulated] "


def file_stem(date: str, gpu: str, driver: str) -> str:
    """Returns the prefix of the report's file names: `<date>-<gpu>-<driver>`."""
    return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in (date, gpu, driver))


def markdown(report: dict) -> str:
    """Returns the whole report. With a simulated GPU, every line has a label that says so."""
    lines = [f"# memwatch on {report['machine'].get('gpu', 'an unknown GPU')}, {report['date']}", ""]
    lines += _facts(report["machine"])
    if report["no_probes"]:
        lines += ["", f"**No probes: {report['no_probes']}.** Only the questions that need none were asked."]
    if report["interrupted"]:
        lines += ["", "**Interrupted: the questions that are missing were not asked.**"]
    lines += ["", "## Answers", "", *_table([_summary(step) for step in report["steps"]])]
    for step in report["steps"]:
        lines += ["", f"## {step['name']}: {step['question']}", "", f"**{_answer(step)}**", ""]
        lines += [f"How: {step['method']}. Took {step['seconds']:.1f} s."]
        for name, value in step["evidence"].items():
            lines += ["", *_evidence(name, value)]
    if report["simulated"]:
        lines = [(_SIMULATED + line).rstrip() for line in lines]
    return "\n".join(lines) + "\n"


def _answer(step: dict) -> str:
    return step["text"] if step["state"] == "answered" else f"{step['state']}: {step['text']}"


def _summary(step: dict) -> dict:
    return {"step": step["name"], "state": step["state"], "answer": step["text"]}


def _facts(values: dict) -> list[str]:
    return [f"- {name}: {_cell(value)}" for name, value in values.items()]


def _evidence(name: str, value: object) -> list[str]:
    heading = f"{name}:"
    if isinstance(value, dict):
        return [heading, "", *_facts(value)]
    if not isinstance(value, list) or not value:
        return [f"{name}: {_cell(value)}"]
    if not isinstance(value[0], dict):
        return [f"{name}: {', '.join(_cell(item) for item in value)}"]
    if len(value) > _LONGEST_TABLE:
        return [f"{name}: {len(value)} rows, in the JSON report"]
    return [heading, "", *_table(value)]


def _table(rows: list[dict]) -> list[str]:
    if not rows:
        return ["nothing"]
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)] + [[_cell(row.get(column)) for column in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(value: object) -> str:
    if value is None or value == "" or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("|", "\\|").replace("\n", " ")
