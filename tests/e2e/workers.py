"""Worker processes, each of which runs one test at a time.

What a test prints goes to a file that the worker's parent has open, so that it comes in one piece, and is there also if the
worker dies. Then a new worker takes its place, and what the test had started is ended and removed.
"""

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time

from rig.process import end_on_signals, end_with_parent, remove_leftovers

_fork = multiprocessing.get_context("fork")


class Worker:
    """A process that runs those of the `tests` whose numbers it is sent, by `run`, and answers with what `run` returns."""

    def __init__(self, tests, run):
        self._tests, self._run = tests, run
        self._output = tempfile.TemporaryFile()
        self._start()

    def _start(self):
        sys.stdout.flush()
        self.pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(target=self._work, args=(theirs,))
        self._process.start()
        # Nobody but the worker has this end now, so that its end is noticed.
        theirs.close()

    def _work(self, pipe):
        end_with_parent(signal.SIGTERM)
        end_on_signals(signal.SIGINT)
        # This end is the parent's.
        self.pipe.close()
        for stream in (1, 2):
            os.dup2(self._output.fileno(), stream)
        faulthandler.enable()
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                answer = self._run(self._tests[pipe.recv()])
                sys.stdout.flush()
                sys.stderr.flush()
                pipe.send(answer)

    def begin(self, number):
        self.number, self._begun = number, time.monotonic()
        self._output.seek(0)
        self._output.truncate()
        self.pipe.send(number)

    def end(self):
        """After its pipe has become readable: what `run` returned (None if the worker has died), what was printed, and the
        seconds that it took."""
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            answer = None
            self._process.join()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        if answer is None:
            output += f"the worker has died (exit code {self._process.exitcode})\n"
            output += "".join(f"removed: {thing}\n" for thing in remove_leftovers(self._process.pid))
            self._start()
        return answer, output, time.monotonic() - self._begun

    def stop(self):
        """Ends the worker, and the test that it runs, if any."""
        self.pipe.close()
        self._process.terminate()
        self._process.join(30)
        self._process.kill()
        self._process.join()
        remove_leftovers(self._process.pid)


# Guests that run at a time, at most: each has a processor emulated by two threads, and with more of them its timers come
# so late that its kernel stops waiting.
GUESTS = 2


def side_by_side(workers, numbers, guests=frozenset()):
    """Has the workers run the tests of these numbers, each as soon as one is idle; yields the number of each test that has
    ended and what `Worker.end` says of it. Of those that have `guests`, few run at a time."""
    todo, idle, busy = list(numbers), list(workers), {}

    def first():
        booted = sum(worker.number in guests for worker in busy.values())
        return next((number for number in todo if number not in guests or booted < GUESTS), None)

    while todo or busy:
        while idle and (number := first()) is not None:
            todo.remove(number)
            worker = idle.pop()
            worker.begin(number)
            busy[worker.pipe] = worker
        for pipe in multiprocessing.connection.wait(list(busy)):
            worker = busy.pop(pipe)
            number = worker.number
            ended = worker.end()
            idle.append(worker)
            yield number, *ended
