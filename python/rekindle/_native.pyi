"""The planner, rewriter and checker. Bytes are whole numbers, times are microseconds, nodes and
storages are indices.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, final

__all__ = [
    "Decision",
    "Footprint",
    "Graph",
    "Node",
    "Plan",
    "Replayed",
    "Transfers",
    "footprint",
    "frontier",
    "parse_budget",
    "parse_store",
    "plan",
    "plan_reserved",
    "replay_history",
    "rewrite",
    "smallest",
    "strategies",
    "verify",
    "verify_rewritten",
    "write_profile",
    "__version__",
]

__version__: str
"""The version of the planner."""

@final
class Node:
    """A piece of work: what it reads and writes, and whether it may run again."""

    def __new__(
        cls,
        name: str,
        op: str,
        phase: str,
        *,
        reads: Sequence[int],
        writes: Sequence[int],
        updates: Sequence[int] = ...,
        effect: str = "pure",
        time: float = 0.0,
        workspace: int = 0,
        flops: int | None = None,
    ) -> Node: ...
    @property
    def name(self) -> str:
        """What a person calls it."""
    @property
    def op(self) -> str:
        """The operation, as its origin names it."""
    @property
    def phase(self) -> str:
        """`input`, `forward`, `backward` or `optimizer`. An input is there from the start."""
    @property
    def reads(self) -> list[int]:
        """Storages that must be live when it runs."""
    @property
    def writes(self) -> list[int]:
        """Storages that it makes."""
    @property
    def updates(self) -> list[int]:
        """Storages, among those that it reads, that it overwrites in place."""
    @property
    def effect(self) -> str:
        """`pure`, `random` (it may run again if it draws the same) or `once`."""
    @property
    def time(self) -> float:
        """Microseconds that one run takes."""
    @property
    def workspace(self) -> int:
        """Scratch bytes while it runs."""
    @property
    def flops(self) -> int | None:
        """Floating-point operations of one run, where known."""

@final
class Graph:
    """A checked training step."""

    def __new__(
        cls,
        name: str,
        *,
        storages: Sequence[tuple[int, str]],
        nodes: Sequence[Node],
        outputs: Sequence[int],
        targets: Sequence[int] = ...,
        origin: str = ...,
    ) -> Graph:
        """Checks the parts. Each storage has its bytes and a role: `parameter`, `input`,
        `constant`, `tangent`, `optimizer_state`, `activation`, `gradient` or `other`. The order of
        the nodes must be a valid one; `outputs` must be live at the end, `targets` must run.
        """
    def __eq__(self, other: object, /) -> bool:
        """Whether everything is equal, times and names included."""
    def __ne__(self, other: object, /) -> bool: ...
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
    def nodes(self) -> list[Node]:
        """Its nodes, in its own order."""
    @property
    def storages(self) -> list[tuple[int, str]]:
        """The bytes and the role of each storage."""
    @property
    def outputs(self) -> list[int]:
        """Storages that must be live at the end."""
    @property
    def digest(self) -> str:
        """Equal for graphs that are the same, times and their own names aside."""
    def with_times(self, times: Sequence[float]) -> Graph:
        """A copy in which node `n` takes `times[n]` microseconds."""
    def with_workspaces(self, bytes: Sequence[int]) -> Graph:
        """A copy in which node `n` takes `bytes[n]` of scratch while it runs."""
    def with_workspace(self, node: int, bytes: int) -> Graph:
        """A copy in which one node has so many bytes of scratch."""
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
        """How often it is made again; 0 if it is kept or moved."""
    @property
    def moved(self) -> int:
        """How often it comes back from the store; 0 if it is not moved."""
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
class Transfers:
    """What a plan moves to a store and back."""

    @property
    def moved_out(self) -> int:
        """Bytes that go to the store."""
    @property
    def moved_in(self) -> int:
        """Bytes that come back."""
    @property
    def hidden(self) -> float:
        """Microseconds in which something is copied while nodes run."""
    @property
    def waited(self) -> float:
        """Microseconds in which something is copied while nothing runs."""
    @property
    def store_peak(self) -> int:
        """The most that the store holds, in bytes."""
    @property
    def between_steps(self) -> int:
        """Bytes that live in the store between training steps."""

@final
class Plan:
    """A schedule on one graph: runs and frees and, with a store, transfers."""

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads `remat.plan/1` or `remat.plan/2`. Nothing is known of its bound and status, and
        `verify` judges the rest.
        """
    def to_json(self) -> str:
        """Writes `remat.plan/1`, or `remat.plan/2` where something is moved."""
    @property
    def budget(self) -> int:
        """What the step may use, in bytes."""
    @property
    def peak(self) -> int:
        """The highest sum of live bytes."""
    @property
    def time(self) -> float:
        """When everything is done, in microseconds."""
    @property
    def bound(self) -> float | None:
        """No plan under the budget takes less time, in microseconds."""
    @property
    def store(self) -> str | None:
        """The store that it moves storages to, as it is typed; None if it moves nothing."""
    @property
    def strategy(self) -> str | None:
        """The strategy that made it."""
    @property
    def status(self) -> Literal["optimal", "feasible", "stopped"] | None:
        """How the planning ended."""
    def steps(self) -> list[tuple[str, int]]:
        """`("run", node)`, and `("free", storage)`, `("offload", storage)` and `("fetch",
        storage)`, in order.
        """
    def decisions(self, graph: Graph) -> list[Decision]:
        """What becomes of each activation of `graph`, ascending by storage."""
    def timeline(self, graph: Graph) -> list[int]:
        """The highest bytes during each run, in order."""
    def carried_over(self, graph: Graph, budget: int) -> Plan:
        """The same steps as a plan of another graph with the same nodes, which may have other sizes
        and times, in `budget` bytes.
        """
    def transfers(self, graph: Graph) -> Transfers | None:
        """What goes to the store and back; None if nothing does."""
    def bytes_by_role(self, graph: Graph) -> list[tuple[str, int]]:
        """What is live at the plan's peak, in bytes by role; the largest first."""

def parse_budget(text: str, plain_peak: int | None = None) -> int:
    """The bytes that `text` allows: `3GiB`, `800MiB`, plain bytes, or `60%` of `plain_peak`."""

def parse_store(text: str) -> str:
    """The store that `text` describes (`out=25GB/s,in=25GB/s,latency=10us`), as Rekindle writes
    it.
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
    store: str | None = None,
) -> Plan:
    """Plans `graph` under `budget` bytes; with a `store`, storages may be moved to it and back.

    `progress(done, total, best, lowest)` is called now and then; after `time_limit` seconds the
    best plan so far is taken. Raises `rekindle.InfeasibleBudget` if no plan fits.
    """

def smallest(
    graph: Graph,
    *,
    strategy: str = "search",
    effort: int | None = None,
    store: str | None = None,
) -> Plan:
    """The plan with the smallest peak that the strategy knows how to reach."""

def frontier(
    graph: Graph,
    points: int = 20,
    *,
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
    progress: Callable[[int, int, float | None, int], object] | None = None,
    store: str | None = None,
) -> list[Plan]:
    """Plans at `points` budgets, from the plain step's peak down to the smallest peak known."""

def rewrite(graph: Graph, plan: Plan) -> Graph:
    """The plan as an ordinary graph: each recomputation is a node of its own, and nothing is
    written twice.
    """

def verify(graph: Graph, plan: Plan) -> list[str]:
    """Everything that is wrong with `plan` as a plan of `graph`, in words; nothing if it holds."""

def verify_rewritten(
    graph: Graph,
    plan: Plan,
    rewritten: Graph,
    nodes: Sequence[tuple[str, int]],
    storages: Sequence[int],
) -> list[str]:
    """Likewise, with everything that is wrong with `rewritten` as a graph that runs the plan. Each
    of its nodes stands for a step on `graph`, as `Plan.steps` gives them, a `wait` for a free; each
    of its storages for one of `graph`.
    """

def write_profile(
    graph: Graph, folder: str | Path, model: str, batch_size: int, device: str
) -> list[Path]:
    """Writes tables, graph and pictures into a folder, and gives their paths."""

@final
class Footprint:
    """What a device's caching allocator has handed out and taken at most; a prediction."""

    @property
    def allocated(self) -> int:
        """`max_memory_allocated`, in bytes."""
    @property
    def reserved(self) -> int:
        """`max_memory_reserved`, in bytes."""
    @property
    def fragmentation(self) -> int:
        """What is reserved and never handed out at once, in bytes."""
    @property
    def given_back(self) -> int:
        """How often a step gives cached memory back to the device because its limit is met."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def footprint(
    graph: Graph, plan: Plan | None = None, *, expandable: bool = False, limit: int | None = None
) -> Footprint:
    """The footprint of a plan, or of the plain step, that is repeated. Raises `DoesNotFit` at the
    limit.
    """

def plan_reserved(
    graph: Graph,
    budget: int,
    *,
    expandable: bool = False,
    strategy: str = "search",
    effort: int | None = None,
    time_limit: float | None = None,
    progress: Callable[[int, int, float | None, int], object] | None = None,
    store: str | None = None,
    is_any: bool = False,
) -> tuple[Plan, Footprint]:
    """A plan for which the allocator reserves at most `budget`; if `is_any`, the first that does,
    whatever the effort.
    """

@final
class Replayed:
    """A recorded history as our allocator has it."""

    @property
    def footprint(self) -> Footprint:
        """What was handed out and taken at most."""
    @property
    def blocks(self) -> int:
        """Blocks that were handed out."""
    @property
    def elsewhere(self) -> int:
        """Those of them that are not at their recorded address."""
    @property
    def otherwise(self) -> int:
        """Segments that were taken or given back in another way than the recorded one."""

def replay_history(
    history: Sequence[tuple[str, int, int]],
    *,
    there: Sequence[tuple[int, int, bool, Sequence[tuple[int, int]]]] = ...,
    expandable: bool = False,
    limit: int | None = None,
) -> Replayed:
    """A recorded history of `alloc`, `free`, `segment_alloc` and `segment_free`, each with an
    address and bytes, that begins with segments which are there: their addresses, bytes, whether
    they belong to the small pool, and addresses and bytes of their blocks.
    """
