"""The planner, rewriter and checker. Bytes are whole numbers, times are microseconds, nodes and
storages are indices.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, final

__all__ = [
    "Decision",
    "Graph",
    "Plan",
    "parse_budget",
    "plan",
    "rewrite",
    "smallest",
    "verify",
    "write_profile",
    "__version__",
]

__version__: str
"""The version of the planner."""

@final
class Graph:
    """A checked training step."""

    @staticmethod
    def from_json(text: str) -> Graph:
        """Reads `remat.graph/1`."""
    def to_json(self) -> str:
        """Writes `remat.graph/1`."""
    @property
    def name(self) -> str:
        """The graph's own name."""
    def __len__(self) -> int:
        """How many nodes it has."""
    @property
    def peak(self) -> int:
        """The plain step's peak, in bytes."""
    @property
    def time(self) -> float:
        """The plain step's time, in microseconds."""
    @property
    def floor(self) -> int:
        """Below this many bytes no plan can go."""
    def timeline(self) -> list[int]:
        """The highest bytes while each node of the plain step runs, in order."""

@final
class Decision:
    """What becomes of one activation, and why."""

    @property
    def storage(self) -> int:
        """Which storage."""
    @property
    def name(self) -> str:
        """What a person calls it."""
    @property
    def bytes(self) -> int:
        """Its size."""
    @property
    def recomputed(self) -> int:
        """How often it is made again; 0 if it is kept."""
    @property
    def reason(self) -> str:
        """Why, in a few words."""
    @property
    def recompute_time(self) -> float:
        """Microseconds to rebuild it while everything else is kept."""
    @property
    def spent(self) -> float:
        """Microseconds that the plan spends on making it again."""
    @property
    def created(self) -> int:
        """The node that makes it."""
    @property
    def first_backward(self) -> int:
        """The first backward node that reads it."""

@final
class Plan:
    """A schedule of runs and frees on one graph."""

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads `remat.plan/1`. Nothing is known of its bound and status, and `verify` judges the
        rest.
        """
    def to_json(self) -> str:
        """Writes `remat.plan/1`."""
    @property
    def budget(self) -> int:
        """What the step may use, in bytes."""
    @property
    def peak(self) -> int:
        """The highest sum of live bytes."""
    @property
    def time(self) -> float:
        """The sum of the times of all runs, in microseconds."""
    @property
    def bound(self) -> float | None:
        """No plan under the budget takes less time, in microseconds."""
    @property
    def strategy(self) -> str | None:
        """The strategy that made it."""
    @property
    def status(self) -> Literal["optimal", "feasible", "stopped"] | None:
        """How the planning ended."""
    def steps(self) -> list[tuple[str, int]]:
        """`("run", node)` and `("free", storage)`, in order."""
    def decisions(self, graph: Graph) -> list[Decision]:
        """What becomes of each activation of `graph`, ascending by storage."""
    def timeline(self, graph: Graph) -> list[int]:
        """The highest bytes during each run, in order."""

def parse_budget(text: str, graph: Graph) -> int:
    """The bytes that `text` allows for `graph`: `3GiB`, `800MiB`, plain bytes, or `60%` of the
    plain peak.
    """

def strategies() -> list[tuple[str, str]]:
    """Every strategy by name, with a sentence that says what it does; the default first."""

def plan(
    graph: Graph,
    budget: int,
    *,
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
    progress: Callable[[int, int, float | None, int], object] | None = None,
) -> Plan:
    """Plans `graph` under `budget` bytes.

    `progress(done, total, best, lowest)` is called now and then; after `time_limit` seconds the
    best plan so far is taken. Raises `rekindle.InfeasibleBudget` if no plan fits.
    """

def smallest(graph: Graph, *, strategy: str = "search", effort: int | None = None) -> Plan:
    """The plan with the smallest peak that the strategy knows how to reach."""

def rewrite(graph: Graph, plan: Plan) -> Graph:
    """The plan as an ordinary graph: each recomputation is a node of its own, and nothing is
    written twice.
    """

def verify(graph: Graph, plan: Plan) -> list[str]:
    """Everything that is wrong with `plan` as a plan of `graph`, in words; nothing if it holds."""

def write_profile(
    graph: Graph, folder: str | Path, model: str, batch_size: int, device: str
) -> list[Path]:
    """Writes tables, graph and pictures into a folder, and gives their paths."""
