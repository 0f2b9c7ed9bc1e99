"""Stops at places that it prints as JSON, one a line: the thread, and its frames from inside out.

At each it waits for a byte on its standard input. The module is run with its own name as argument 1.
"""
import asyncio
import functools
import json
import os
import sys
import threading

# Threads wait here until its other end is closed; the number is the one that the test waits to see.
WAITING = 100


def letters(text):
    # Half a surrogate pair is no letter, and no JSON.
    return "".join("\ufffd" if 0xD800 <= ord(letter) < 0xE000 else letter for letter in text)


def frames_of(frame):
    found = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append([letters(code.co_filename), letters(name), frame.f_lineno])
        frame = frame.f_back
    return found


def say(name, frame):
    place = {"place": name, "thread": threading.get_ident(), "tid": threading.get_native_id(), "frames": frames_of(frame)}
    os.write(1, (json.dumps(place) + "\n").encode())


def stop(name):
    say(name, sys._getframe()); os.read(0, 1)


def recursion(depth):
    if depth == 0:
        stop("recursion")
    else:
        recursion(
            depth - 1
        )


def comprehension():
    return [
        stop("comprehension")
        for _ in range(1)
        if True
    ]


def nested():
    return {key: [stop("nested") for _ in (1,)] for key in (1,)}


def generator():
    yield 1
    try:
        stop("generator")
    finally:
        yield 2


def delegating():
    yield from generator()


async def coroutine():
    await asyncio.sleep(0)
    stop("coroutine")


async def outer_coroutine():
    await asyncio.gather(coroutine())


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(
            *arguments
        )
    return wrapper


@decorated
def in_a_decorator():
    stop("decorator")


def class_body():
    class Outer:
        class Inner:
            stop("class body")
    return Outer


class Thing:
    def __init__(self, name):
        self.name = name
        stop(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop("exit")

    @property
    def property(self):
        return stop("property")

    def __lt__(self, other):
        stop("less")
        return True

    def __del__(self):
        if self.name == "deleted":
            stop("del")


def make(name):
    return Thing(name)


def exceptions():
    try:
        raise ValueError
    except ValueError:
        try:
            1 / 0
        except ZeroDivisionError:
            stop("except")
        finally:
            stop("finally")


def long_lines():
    value = (1
             + 2); stop("semicolon")
    return stop("one line") if value else \
        None


def ünïcödé_名前():
    stop("names")


def far():
    exec(compile("\n" * 70000 + "def far_away(stop):\n" + "    pass\n" * 300 + "    stop('far')\n" + "\n" * 200 + "    stop('farther')\n", "far.py", "exec"), globals())
    far_away(stop)


def executed():
    exec(compile("def f():\n\n\n    stop('exec')\nf()", "<строка \N{snake}>", "exec"), globals())
    eval("stop('eval')")
    exec(compile("stop('control')", "/tmp/\x1b[31mred\udc80", "exec"), globals())


def warm():
    # Often enough that 3.11 and later specialize what they run.
    class Small:
        def __init__(self, number):
            if number == 199:
                stop("specialized")
    for number in range(200):
        Small(number)


def in_threads():
    inner, outer = os.pipe()
    os.dup2(inner, WAITING)
    spoken = threading.Semaphore(0)

    def work(number):
        say("thread %d" % number, sys._getframe()); spoken.release(); os.read(WAITING, 1)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        spoken.acquire()
    stop("with threads")
    os.close(outer)
    for thread in threads:
        thread.join()


def main():
    stop("first")
    recursion(100)
    recursion(140)
    comprehension()
    nested()
    list(generator())
    list(delegating())
    asyncio.run(outer_coroutine())
    in_a_decorator()
    class_body()
    with make("init") as thing:
        thing.property
        sorted([thing, thing])
        max([1], key=lambda _: stop("lambda"))
    thing = Thing("deleted")
    del thing
    exceptions()
    long_lines()
    ünïcödé_名前()
    far()
    executed()
    warm()
    in_threads()
    os.write(1, b"\n")


main()
