"""`cargo xtask bench torch`, one case: ways to train in less memory, side by side.

Contenders: plain eager; `torch.utils.checkpoint` around each block; PyTorch's own
`activation_memory_budget`; and Rekindle with the peak of each of the others as its budget, and
below them all. Compiled contenders run in the same executor, operation by operation. Eager is a
contender as well, so that its time as a multiple of its own shows how exact the times are.

Each contender has a process of its own, trains there (see `contenders.py`), and is then timed
beside eager: in a round both run a step, in turns of `TURN` in which the other process is stopped.
So a machine that is slower for a while is so for both. In all of them malloc keeps the memory that
is freed.

Prints a line of CSV for each contender: its budget, its measured peak, the predicted one, how many
of the numbers of its training differ from eager's, its largest gradient error in the first step,
the seconds of its first call and those of them spent on planning, eager's seconds in every round,
and its own.

A step is forward and backward. Its peak is the sum of all live storages, parameters, gradients and
batch included; scratch inside an operation is not seen. Arguments: the case and the number of
rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from contenders import Kind, Trained, serve

TURN = 0.1
"""Seconds: short beside those for which a machine is busy, long beside the milliseconds in which
data come back to the caches.
"""
UNCACHED = {"REKINDLE_CACHE": "off"}
"""Planning is part of what is measured."""
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_ARENA_MAX": "1",
}
"""glibc keeps what is freed, as a caching allocator does. Otherwise it gives memory back and asks
for it again, at up to a tenth of the step's time and with little reason: the page faults of the
same step go from 50,000 to 180,000.
"""
PEERS = {
    "eager": Kind("eager"),
    "checkpoint per block": Kind("checkpoint"),
    "torch budget 0.7": Kind("torch", 0.7),
    "torch budget 0.5": Kind("torch", 0.5),
    "torch budget 0.3": Kind("torch", 0.3),
}
BELOW = (0.75, 0.85)
"""How far below the lowest of the others Rekindle is asked to go: these shares of what they hold
above the parameters and gradients.
"""
NEAR = 1.01
"""Peaks that are so close together are met by one plan, at the lowest of them."""
FEWEST_BUDGETS = 3
"""Rekindle is asked for so many peaks at least; the second share below is for peaks that are all
close together.
"""


@dataclass
class Entrant:
    """A contender's process, seen from here. It is stopped between its turns."""

    process: SpawnProcess
    orders: Connection
    trained: Trained
    spent: float = 0.0
    """Seconds of its turns in this round."""

    def turn(self) -> bool:
        """Goes on for a turn; whether the step has ended."""
        begin = time.perf_counter()
        self.signal(signal.SIGCONT)
        ended = self.orders.poll(TURN)
        self.signal(signal.SIGSTOP)
        self.spent += time.perf_counter() - begin
        if ended:
            self.orders.recv()
        return ended

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def entrant(
    case: str, kind: Kind, gradients: Path, runs: Callable[..., None] = serve
) -> Iterator[Entrant]:
    """A contender that has trained, and stands still; its process ends with the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=runs, args=(there, case, kind, gradients))
    process.start()
    there.close()
    try:
        ready = Entrant(process, here, here.recv())
        ready.signal(signal.SIGSTOP)
        yield ready
    except EOFError:
        raise SystemExit(f"{case}: the contender {kind} has failed") from None
    finally:
        here.close()  # Which ends it, once it goes on and looks for orders.
        os.kill(process.pid, signal.SIGCONT)
        process.join()


def side_by_side(entrants: list[Entrant]) -> list[float]:
    """A step of each; the seconds that each one took."""
    for each in entrants:
        each.spent = 0.0
        each.orders.send("step")
    running = entrants
    while running:
        running = [each for each in running if not each.turn()]
    return [each.spent for each in entrants]


@dataclass
class Row:
    """What was measured of a contender."""

    name: str
    trained: Trained
    differing: int
    rounds: list[list[float]] = field(default_factory=list)
    """Seconds of eager and of the contender."""

    def csv(self) -> str:
        it = self.trained
        known = [
            "" if value is None else str(value) for value in (it.budget, it.peak, it.predicted)
        ]
        seconds = [" ".join(f"{value:.4f}" for value in side) for side in zip(*self.rounds)]
        measured = [
            str(self.differing),
            f"{it.error:.3g}",
            f"{it.first_call:.2f}",
            f"{it.planning:.2f}",
        ]
        return ",".join([self.name, *known, *measured, *seconds])


def budgets(peaks: dict[str, int], lasting: int) -> dict[str, Kind]:
    """What Rekindle is asked for, named by whose peak it is, the highest first. `lasting` bytes are
    there all the time.
    """
    groups: list[list[str]] = []
    for name in sorted(peaks, key=peaks.__getitem__):
        if groups and peaks[name] <= NEAR * peaks[groups[-1][0]]:
            groups[-1].append(name)
        else:
            groups.append([name])
    found = {
        f"rekindle at {' and '.join(group)}": Kind("rekindle", peaks[group[0]])
        for group in reversed(groups)
    }
    lowest = peaks[groups[0][0]]
    for share in BELOW[: max(1, FEWEST_BUDGETS - len(found))]:
        found[f"rekindle at {share} of the lowest"] = Kind(
            "rekindle", lasting + int(share * (lowest - lasting))
        )
    return found


def main(case: str, rounds: int) -> None:
    os.environ.update(UNCACHED | ALLOCATOR)  # Of the processes that are started from here.
    print(
        "contender,budget,peak,predicted_peak,differing,gradient_error,first_call_s,planning_s,"
        "eager_seconds,seconds"
    )
    with tempfile.TemporaryDirectory() as folder:
        gradients = Path(folder, "gradients.pt")
        with entrant(case, PEERS["eager"], gradients) as eager:

            def measure(name: str, kind: Kind) -> int:
                """Prints a row; its peak."""
                with entrant(case, kind, gradients) as other:
                    row = Row(name, other.trained, other.trained.differing(eager.trained))
                    row.rounds = [side_by_side([eager, other]) for _ in range(rounds)]
                print(row.csv(), flush=True)
                print(
                    f"{case}: {name}, {other.trained.peak / 2**20:.0f} MiB",
                    file=sys.stderr,
                    flush=True,
                )
                return other.trained.peak

            peaks = {name: measure(name, kind) for name, kind in PEERS.items()}
            for name, kind in budgets(peaks, eager.trained.lasting).items():
                measure(name, kind)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
