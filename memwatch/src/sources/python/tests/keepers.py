"""Objects that are kept in every way there is; prints as what each is reached, and stops."""

import collections
import functools
import gc
import json
import os
import sys
import threading
import weakref


class Kept:
    """What is looked for."""

    def __init__(self, name):
        self.name = name


class Slotted:
    __slots__ = ("first", "kept")

    def __init__(self, kept):
        self.first = None
        self.kept = kept


class Plain:
    shared = Kept("of a class")

    def __init__(self, kept):
        self.kept = kept


class Changed(Plain):
    """Its attributes are in a dict of their own."""

    def __init__(self, kept):
        super().__init__(kept)
        self.__dict__["more"] = Kept("of an attribute's dict")


def closure(kept):
    def inner():
        return kept

    return inner


def generate(kept):
    yield
    print(kept.name)


@functools.lru_cache(maxsize=4)
def cached(number):
    return Kept("of a cache")


def fail(kept):
    raise ValueError("kept")


as_global = Kept("global")
in_list = [None] * 7 + [Kept("in a list")]
in_dict = {"req2": {3: Kept("in a dict")}, -5: [Kept("behind a negative key")]}
in_tuple = (1, [2], Kept("in a tuple"))
in_set = {Kept("in a set")}
in_deque = collections.deque([None] * 100)
in_deque.append(Kept("in a deque"))
in_slot = Slotted(Kept("in a slot"))
in_attribute = Plain(Kept("in an attribute"))
in_changed = Changed(Kept("in a changed object"))
in_closure = closure(Kept("in a closure"))
in_partial = functools.partial(print, Kept("in a partial"))
in_default = lambda kept=Kept("as a default"): kept
in_generator = generate(Kept("in a generator"))
next(in_generator)
ended = generate(Kept("in a generator that has ended"))
next(ended)
sys.stdout, devnull = open("/dev/null", "w"), sys.stdout
next(ended, None)
sys.stdout = devnull
cached(1)
try:
    fail(Kept("in a traceback"))
except ValueError as error:
    in_exception = error
in_module = type(sys)("kept")
in_module.value = Kept("in a module")
sys.modules["kept"] = in_module
in_module.__file__ = "/srv/kept.py"
weak_target = [Kept("weakly")]
weak = weakref.ref(weak_target[0])
del weak_target[:]
cycle = [Kept("in a cycle")]
cycle.append(cycle)
gc.disable()
del cycle


def main():
    local = [Kept("in a variable")]
    shared = Kept("in a shared variable")

    def other():
        return shared

    os.read(0, 1)
    return local, other


def expected():
    # Before 3.11 the frame of a generator is an object.
    frame = ".gi_frame" if sys.version_info < (3, 11) else ""
    return {
        "global": "as_global",
        "in a list": "in_list[7]",
        "in a dict": "in_dict['req2'][3]",
        "behind a negative key": "in_dict[-5][0]",
        "in a tuple": "in_tuple[2]",
        "in a set": "in_set{*}",
        "in a deque": "in_deque[100]",
        "in a slot": "in_slot.kept",
        "in an attribute": "in_attribute.kept",
        "in a changed object": "in_changed.kept",
        "of an attribute's dict": "in_changed.more",
        "of a class": "Plain.shared",
        "in a closure": "in_closure.__closure__[0].cell_contents",
        "in a partial": "in_partial.args[0]",
        "as a default": "in_default.__defaults__[0]",
        "in a generator": f"in_generator{frame} → keepers.py:generate: kept",
        "of a cache": "cached[1]",
        "in a traceback": "in_exception.__traceback__.tb_next.tb_frame → keepers.py:fail: kept",
        "in a module": "kept.value",
        "in a variable": "keepers.py:main: local[0]",
        "in a shared variable": "keepers.py:main: shared",
    }


print(json.dumps({"paths": expected(), "objects": len(gc.get_objects()), "tid": threading.get_native_id()}), flush=True)
main()
