"""Clients beside an attack: how long their requests take with it and without it, in turns."""

import multiprocessing
import os
import statistics
import time

HONEST, ATTACKER = "127.1.2.3", "127.66.6.6"
FORK = multiprocessing.get_context("fork")


class Times:
    """Response times of a turn, in seconds, and requests that failed."""

    def __init__(self, times, failed):
        self.failed = failed
        # A turn in which nothing was answered took at least that long.
        self.median = statistics.median(times) if times else float("inf")
        self.mean = statistics.fmean(times) if times else float("inf")
        self.longest = max(times, default=float("inf"))
        self.count = len(times)


def measure(asks, seconds):
    """Asks in turn, one request after the other. An `ask` returns whether the answer was right."""
    times, failed, at = [], 0, 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        since = time.perf_counter()
        try:
            is_right = asks[at % len(asks)]()
        except (OSError, EOFError):
            is_right = False
        took = time.perf_counter() - since
        at += 1
        if is_right:
            times.append(took)
        else:
            failed += 1
            time.sleep(0.01)
    return Times(times, failed)


class Attack:
    """A process that attacks until it is stopped. It gives way to the server and to honest clients, as
    one on another machine would."""

    def __init__(self, function, *arguments):
        # What the attacker counts, without a lock, which it would keep when it is stopped.
        self.counts = FORK.Array("d", 8, lock=False)
        self.process = FORK.Process(target=self.run, args=(function, arguments), daemon=True)
        self.process.start()

    def run(self, function, arguments):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            function(self.counts, *arguments)
        except (OSError, EOFError) as error:
            print(f"# the attack ended: {error!r}", flush=True)

    def stop(self):
        self.process.kill()
        self.process.join()


class Comparison:
    """Turns without an attack and with it, alternately."""

    def __init__(self):
        self.without, self.beside = [], []

    def run(self, asks, begin, turns, seconds, warm_s=0.0, settle_s=0.3):
        """`begin` starts an attack. Returns the counts of all of them."""
        counted = [0.0] * 8
        measure(asks, 0.3)
        for _ in range(turns):
            self.without.append(measure(asks, seconds))
            attack = begin()
            time.sleep(warm_s)
            self.beside.append(measure(asks, seconds))
            attack.stop()
            counted = [sum(pair) for pair in zip(counted, attack.counts)]
            time.sleep(settle_s)
        return counted

    def text(self):
        """The figures of the turns: medians of the medians and of the means."""
        def of(turns, key):
            return statistics.median(getattr(turn, key) for turn in turns)

        median, mean = (of(self.beside, key) / of(self.without, key) for key in ("median", "mean"))
        failed = sum(turn.failed for turn in self.beside)
        longest = max(turn.longest for turn in self.beside)
        alone = max(turn.longest for turn in self.without)
        line = (f"honest {median:.2f} (mean {mean:.2f}) of {of(self.without, 'median') * 1e6:.0f} us, "
                f"longest {longest * 1e3:.1f} ms (alone {alone * 1e3:.1f})")
        return line + (f", {failed} of {failed + sum(turn.count for turn in self.beside)} failed" if failed else "")
