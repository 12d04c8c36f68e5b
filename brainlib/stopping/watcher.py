"""A process that ends the one that started it, if that was told to end (SIGTERM) and does not do so in time.

It runs as a script and knows nothing of brainlib. What it reads from standard input is what the other process heard:

- a byte below 128: this signal has come. The other's signal handler writes it in C, whatever its main thread is doing;
- a byte from 128 on, and a number of eight bytes: an order, with seconds; see the names below.

When the input ends, the other process has ended, and so does this one. It is a process and not a thread, because a
thread would need the interpreter lock, which code that hangs may hold for ever.
"""

from __future__ import annotations

import os
import select
import struct
import sys
import time

__all__ = ["ENDED", "LISTEN", "REACHED", "order"]

LISTEN = 0xF0  # from now on SIGTERM leaves so many seconds until a batch is over
REACHED = 0xF1  # it is over, and the run is being saved: so many seconds are left for that
ENDED = 0xF2  # nobody listens any more: nothing is limited

SIGTERM, SIGKILL = 15, 9
SECONDS_TO_PRINT = 0.5  # for the stacks of all threads, before the process is killed


def order(code: int, seconds: float = 0.0) -> bytes:
    """An order as it is written into the pipe.

    >>> len(order(LISTEN, 10.0))
    9
    """
    return struct.pack("<Bd", code, seconds)


class Watch:
    """What was heard so far, and when the other process has to be gone.

    >>> watch = Watch()
    >>> watch.hear(order(LISTEN, 10.0) + bytes([15]), now=100.0); watch.deadline
    110.0
    >>> watch.hear(order(REACHED, 60.0), now=105.0); watch.deadline
    165.0
    """

    def __init__(self) -> None:
        self.allowed: float | None = None  # seconds; None: no limit
        self.told: float | None = None  # when SIGTERM came
        self.deadline: float | None = None
        self.reached = False
        self._unread = b""

    def hear(self, heard: bytes, now: float) -> None:
        """Take in what came through the pipe."""
        self._unread += heard
        while self._unread:
            code = self._unread[0]
            if code < 128:
                self._unread = self._unread[1:]
                if code == SIGTERM and self.allowed is not None and self.told is None:
                    self.told, self.deadline = now, now + self.allowed
                continue
            if len(self._unread) < 9:
                return
            (seconds,) = struct.unpack("<d", self._unread[1:9])
            self._unread = self._unread[9:]
            self.reached = code == REACHED
            self.allowed = None if code == ENDED else seconds
            if code == REACHED and self.told is not None:
                self.deadline = now + seconds
            elif code != REACHED:
                self.told = self.deadline = None


def main(process: int, print_stacks: int) -> None:
    """Watch over `process`; the signal `print_stacks` makes it print where its threads stand."""
    watch, printing_until = Watch(), None
    while True:
        left = None if watch.deadline is None else max(watch.deadline - time.monotonic(), 0.0)
        if select.select([0], [], [], left)[0]:
            heard = os.read(0, 1 << 16)
            if not heard:
                return
            watch.hear(heard, time.monotonic())
        elif watch.deadline is not None and watch.deadline == printing_until:
            break
        elif watch.deadline is not None:
            os.kill(process, print_stacks)
            # The signal may have set free what hung in a call of the system: it has until then to say so.
            watch.deadline = printing_until = time.monotonic() + SECONDS_TO_PRINT
    seconds = time.monotonic() - (watch.told or 0.0)
    what = "the checkpoint is not written" if watch.reached else "the batch in hand is not over"
    message = f"brainlib: SIGTERM came {seconds:.1f} s ago and {what}: the process ends itself, where it stood is above"
    try:
        os.write(2, message.encode() + b"\n")
    finally:  # also where nobody reads it any more
        os.kill(process, SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
