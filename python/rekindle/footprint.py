"""What two modules hold in memory, node by node, as the executor will run them.

In: a `Split`. Out: a `Footprint`: the bytes while each node runs, and the peak. A value dies after
its last use; a block of bytes when the last value in it does. What others own (parameters, inputs,
tangents) and what is handed out stays.

This looks at the modules alone and knows nothing of the plan that they were built from: the two
must agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import fx

from rekindle.inject import Block, Half, Split
from rekindle.joint import outputs_of


@dataclass(frozen=True)
class Footprint:
    """The bytes of a step, over its nodes."""

    during: list[int]
    """The bytes while each node runs: the forward's nodes, then the backward's."""
    names: list[str]
    """The names of these nodes."""
    boundary: int
    """How many of them are the forward's."""

    @property
    def peak(self) -> int:
        """The highest."""
        return max(self.during, default=0)


def replay_split(split: Split, owned: int, tangents: int, new_contents: int) -> Footprint:
    """Replays both modules.

    `owned` bytes are there all the time, and `tangents` from the moment between the modules. The
    first `new_contents` outputs of the forward are copied into the inputs that they replace, and
    freed, before the backward begins.
    """
    forward = _Replay(split.forward, owned)
    forward.run()
    backward = _Replay(split.backward, owned + tangents)
    for value in outputs_of(split.forward.graph)[new_contents : split.num_forward_outputs]:
        if isinstance(value, fx.Node):
            backward.hold(split.forward.blocks[value])
    backward.run()
    return Footprint(
        forward.during + backward.during, forward.names + backward.names, len(forward.during)
    )


class _Replay:
    """A module on its way: how many values hold each block."""

    def __init__(self, half: Half, owned: int) -> None:
        self.half = half
        self.now = owned
        self.holders: Counter[Block] = Counter()
        self.during: list[int] = []
        self.names: list[str] = []

    def run(self) -> None:
        last_uses = _last_uses(self.half.graph)
        for node in self.half.graph.nodes:
            if node.op == "output":
                break
            self.hold(self.half.blocks.get(node, ()))
            if node.op == "call_function":
                self.during.append(self.now)
                self.names.append(node.name)
            for value in last_uses.get(node, ()):
                self.release(self.half.blocks.get(value, ()))

    def hold(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            if self.holders[block] == 0 and block.making > 0:
                self.now += block.bytes
            self.holders[block] += 1

    def release(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0 and block.making > 0:
                self.now -= block.bytes


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """The values that die behind each node. One that nobody reads dies behind its own."""
    seen: set[fx.Node] = set()
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for value in [*node.all_input_nodes, node]:
            if value not in seen:
                seen.add(value)
                dying.setdefault(node, []).append(value)
    return dying
