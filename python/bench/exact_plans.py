"""A small graph solved by a general solver, OR-tools' CP-SAT: `exact_plans.py GRAPH BYTES SECONDS`.

Prints a table with one row: the fastest plan that was found, the solver's own bound on it, both in
percent of the plain step's time, and whether it was proved to be the fastest.

The model is that of the MOCCASIN paper with the order left free. Each node has two runs, the second
of them optional; a run stands in a slot of its own, and what it writes stays live from there to an
end. Whatever a run reads is live in its slot. The bytes that are live in a slot are within the
budget, and the time of all runs is as small as possible.

Limits: a node runs twice at most, so the solver's bound is one for such plans alone. Each node
writes one storage and has no scratch, as in a random layered graph.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

HEAD = "overhead,solver_bound,status,seconds"
RUNS = 2


class Model:
    """The variables of one graph under a budget."""

    def __init__(self, nodes: list[dict[str, Any]], size: list[int], budget: int) -> None:
        self.nodes = nodes
        self.solver_model = cp_model.CpModel()
        self.start: dict[tuple[int, int], Any] = {}
        self.end: dict[tuple[int, int], Any] = {}
        self.runs: dict[tuple[int, int], Any] = {}
        self.budget = budget
        self.size = size
        self._add_runs()
        self._add_reads()

    def _add_runs(self) -> None:
        model, slots = self.solver_model, RUNS * len(self.nodes)
        lives, places, bytes_of = [], [], []
        for v in range(len(self.nodes)):
            for k in range(RUNS):
                start = model.new_int_var(0, slots - 1, f"start{v}.{k}")
                end = model.new_int_var(1, slots, f"end{v}.{k}")
                length = model.new_int_var(1, slots, f"length{v}.{k}")
                runs = model.new_bool_var(f"runs{v}.{k}")
                self.start[v, k], self.end[v, k], self.runs[v, k] = start, end, runs
                lives.append(
                    model.new_optional_interval_var(start, length, end, runs, f"life{v}.{k}")
                )
                places.append(
                    model.new_optional_fixed_size_interval_var(start, 1, runs, f"run{v}.{k}")
                )
                bytes_of.append(self.size[self.nodes[v]["writes"][0]])
            model.add(self.runs[v, 0] == 1)
            # The first life is over where the second begins.
            model.add(self.end[v, 0] <= self.start[v, 1]).only_enforce_if(self.runs[v, 1])
        model.add_no_overlap(places)
        model.add_cumulative(lives, bytes_of, self.budget)
        time = [round(1000 * node["time_us"]) for node in self.nodes]
        model.minimize(sum(time[v] * runs for (v, _), runs in self.runs.items()))

    def _add_reads(self) -> None:
        model = self.solver_model
        writer = {node["writes"][0]: v for v, node in enumerate(self.nodes)}
        for u, node in enumerate(self.nodes):
            for w in (writer[s] for s in node["reads"]):
                for j in range(RUNS):
                    served = []
                    for k in range(RUNS):
                        by = model.new_bool_var(f"{w}.{k} serves {u}.{j}")
                        model.add_implication(by, self.runs[w, k])
                        model.add(self.start[w, k] < self.start[u, j]).only_enforce_if(by)
                        model.add(self.end[w, k] > self.start[u, j]).only_enforce_if(by)
                        served.append(by)
                    model.add_bool_or(served).only_enforce_if(self.runs[u, j])

    def order(self, solver: cp_model.CpSolver) -> list[int]:
        """The runs of the solution in their order."""
        taken = [at for at in self.runs if solver.value(self.runs[at])]
        runs = [(solver.value(self.start[at]), at[0]) for at in taken]
        return [v for _, v in sorted(runs)]


def peak(nodes: list[dict[str, Any]], size: list[int], order: list[int]) -> int:
    """The most bytes of a sequence whose storages are freed after their last use."""
    live: set[int] = set()
    most = 0
    for v in reversed(order):
        live.update(nodes[v]["reads"], nodes[v]["writes"])
        most = max(most, sum(size[s] for s in live))
        live.difference_update(nodes[v]["writes"])
    return most


def main() -> None:
    """See the module's documentation."""
    path, budget, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    graph = json.loads(path.read_text())
    nodes, size = graph["nodes"], [storage["bytes"] for storage in graph["storages"]]
    model = Model(nodes, size, budget)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    status = solver.solve(model.solver_model)
    least = sum(node["time_us"] for node in nodes)
    overhead = ""
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        order = model.order(solver)
        assert peak(nodes, size, order) <= budget, "the solver's plan is above the budget"
        overhead = f"{100 * (sum(nodes[v]['time_us'] for v in order) / least - 1):.4f}"
    bound = 100 * (solver.best_objective_bound / 1000 / least - 1)
    print(HEAD)
    print(f"{overhead},{bound:.4f},{solver.status_name(status)},{solver.wall_time:.1f}")


if __name__ == "__main__":
    main()
