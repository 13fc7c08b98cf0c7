"""`cargo xtask bench inductor`, one case: training in less memory where Inductor compiles the step.

Contenders: `torch.compile` at its `activation_memory_budget` of 1.0, 0.7, 0.5, 0.3 and 0.1, where a
case is about checkpointing that as well, and Rekindle with `inductor=True` in the peak of each of
them, and below them all. Each has a process of its own and is timed beside plain `torch.compile`
(budget 1.0), in turns in which the other process is stopped (`torch_contest.py`), on one thread.

Prints a line of CSV for each: its budget, its peak by the allocator's events (scratch included) on
top of parameters, buffers and batch, the predicted one, the distance of its gradients from those in
double precision as a share of their length, the seconds of its first call and those of them spent
on planning, plain Inductor's seconds in every round, and its own. Arguments: the case and the
number of rounds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from contenders import Kind
from inductor_contenders import HALF, PASSES, serve
from torch_contest import ALLOCATOR, UNCACHED, budgets, entrant, side_by_side

THREADS = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
PLAIN = "torch budget 1.0"
PEERS = {f"torch budget {share}": Kind("torch", share) for share in (1.0, 0.7, 0.5, 0.3, 0.1)}
CHECKPOINTED = {
    "checkpoint, compiled": Kind("checkpoint"),
    "selective checkpoint of compiled blocks": Kind("selective"),
}


def main(case: str, rounds: int) -> None:
    os.environ.update(UNCACHED | ALLOCATOR | THREADS)  # Of the processes started from here.
    peers = PEERS | (CHECKPOINTED if case in PASSES else {})
    print(
        "contender,budget,peak,predicted_peak,gradient_error,first_call_s,planning_s,"
        "plain_seconds,seconds"
    )
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder, "exact.pt")
        with entrant(case.removesuffix(HALF), Kind("exact"), exact, serve):
            pass
        with entrant(case, PEERS[PLAIN], exact, serve) as plain:

            def measure(name: str, kind: Kind) -> int:
                """Prints a row; its peak."""
                with entrant(case, kind, exact, serve) as other:
                    pairs = [side_by_side([plain, other]) for _ in range(rounds)]
                it = other.trained
                known = ["" if v is None else str(v) for v in (it.budget, it.peak, it.predicted)]
                measured = [f"{it.error:.3g}", f"{it.first_call:.2f}", f"{it.planning:.2f}"]
                seconds = [" ".join(f"{value:.4f}" for value in side) for side in zip(*pairs)]
                print(",".join([name, *known, *measured, *seconds]), flush=True)
                print(f"{case}: {name}, {it.peak / 2**20:.0f} MiB", file=sys.stderr, flush=True)
                return it.peak

            peaks = {name: measure(name, kind) for name, kind in peers.items()}
            for name, kind in budgets(peaks, plain.trained.lasting).items():
                measure(name, kind)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
