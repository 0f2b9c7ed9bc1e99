"""Writes what Python says of the lines of its own library: one code object a line, as JSON."""
import argparse
import ast
import asyncio.base_events
import collections
import dataclasses
import dis
import enum
import inspect
import json
import sys
import tokenize
import typing

STRANGE = """
def far_apart(
    value
):
    if value:""" + "\n" * 1000 + """
        return [value
                for _ in value""" + "\n" * 40000 + """
                ]
    try:
        with value as other: other(); value(
            other)
    finally:
        value() if value else """ + " " * 300 + """value(
""" + "\n" * 300 + """
        value)
    return (lambda: 1, {1: value}, f"{value}")
"""


def ranges(code):
    if hasattr(code, "co_lines"):
        return [list(part) for part in code.co_lines()]
    starts = list(dis.findlinestarts(code))
    ends = [start for start, _ in starts[1:]] + [len(code.co_code)]
    return [[start, end, line] for (start, line), end in zip(starts, ends)]


def say(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    minor = sys.version_info[1]
    print(json.dumps({"minor": minor, "table": list(table), "first": code.co_firstlineno, "ranges": ranges(code)}))
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            say(inner)


say(compile(STRANGE, "strange", "exec"))
for module in [argparse, ast, asyncio.base_events, collections, dataclasses, enum, inspect, tokenize, typing]:
    with open(module.__file__, encoding="utf-8") as source:
        say(compile(source.read(), module.__name__, "exec"))
print()
