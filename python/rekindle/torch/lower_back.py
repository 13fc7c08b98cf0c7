"""The two modules that PyTorch runs → graphs again, and the checker's word on them.

In: a forward and a backward, with the joint graph, the lowered graph and the plan that they were
built from. Out: `Modules`, or an error that names everything that is wrong.

Each operation of the modules is a node, in the order in which they run, with a node for the moment
between them. What it reads is found by following its arguments: a value lies in the storages that
its operation makes, a view in those of what it views, a placeholder of the backward in those of the
value that the forward hands over at its position. Which value of the joint graph a value stands for
is what its `meta` claims; that claim is compared with what the module calls, argument by argument.

Transfers are nodes too: an `offload` writes a token of no bytes, a `fetch` reads one and makes a
new copy, and a `wait` that nobody reads is the last use of what is given back there. A `wait` that
is read gives another name to what it waited for; whoever reads what was fetched under its first
name has not waited.

Two graphs are made of this:
* *as planned*, for the checker: the same storages with the same sizes as in the plan's graph. It
  judges the wires of every run (`verify_rewritten`), as it does for every rewritten graph.
* *as run*, for the bytes: a generator's state takes room where it is kept and nowhere else, a batch
  norm that runs again makes no running statistics, and tangents come when the new contents of
  inputs are gone. Its own order, replayed, is what the executor holds, to the byte.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from rekindle import _native
from rekindle.errors import InvalidInput, RekindleError
from rekindle.torch import effects, randomness, transfers
from rekindle.torch.inject import ORIGIN
from rekindle.torch.joint import Joint, outputs_of
from rekindle.torch.lower import GENERATOR_STATES, Lowered, device_of, generator_state_bytes

TANGENTS = "tangents"


@dataclass
class Modules:
    """A forward and a backward that have been checked, and what they hold in memory."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    as_run: _native.Graph
    """Every operation and every byte, in the order in which they run."""
    saved_bytes: int
    """What the forward hands to the backward and nobody else owns."""
    largest_saved: int | None
    """Which output of the forward is the largest of these; a token where all that is saved is in
    the store, and None if nothing is.
    """
    replaced_bytes: int
    """Outputs of the forward that are copied into inputs, and freed, before the backward begins.
    What is handed out or saved as well is not freed.
    """
    owned_bytes: int
    """What others own all the time: parameters, inputs, what was named as held."""
    tangent_bytes: int
    """What others own from the moment between the modules."""

    @property
    def peak(self) -> int:
        """The most bytes that the allocator hands out: live storages, and the scratch of the
        operation that runs.
        """
        return self.as_run.peak

    @property
    def peak_of_storages(self) -> int:
        """The highest sum of live storages alone."""
        return self.as_run.with_workspaces([0] * len(self.as_run)).peak


def check_modules(
    joint: Joint,
    lowered: Lowered,
    graph: _native.Graph,
    plan: _native.Plan,
    modules: tuple[fx.GraphModule, fx.GraphModule],
) -> Modules:
    """Lowers two modules back and has them checked against the plan. `graph` is the one that was
    planned: the lowered one, with times.
    """
    found = _LowerBack(joint, lowered, graph, *modules)
    try:
        found.walk()
        violations = found.differences + _native.verify_rewritten(
            graph,
            plan,
            found.graph_of(as_run=False),
            [run.step for run in found.runs],
            found.storage_origins,
        )
    except InvalidInput as error:
        violations = [*found.differences, str(error)]
    if violations:
        raise RekindleError(
            "the modules do not run the plan, please report this:\n" + "\n".join(violations)
        )
    return found.summary()


@dataclass
class _Value:
    """What a value of a module is."""

    origin: fx.Node
    """The value of the joint graph that it stands for; of a generator's state, the draw."""
    storages: dict[int, int]
    """The storages in which it lies: the original's number → the copy's."""
    state: int | None = None
    """Which of the states it is, if it is the state of a generator."""
    is_token: bool = False
    """Whether it is a copy in the store."""


@dataclass
class _Run:
    """An operation of a module, a transfer, an input of the step, or the moment between them."""

    step: tuple[str, int]
    """What it stands for, as a plan has it."""
    name: str
    op: str
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    passed_on: list[int] = field(default_factory=list)
    """What it reads in this run and the plan's graph does not say: these stay in a plan."""
    state_read: int | None = None
    state_written: int | None = None

    @property
    def origin(self) -> int | None:
        """The node that it runs; None if it is a transfer."""
        kind, number = self.step
        return number if kind == "run" else None


class _LowerBack:
    """The walk over both modules, and what it finds."""

    def __init__(
        self,
        joint: Joint,
        lowered: Lowered,
        graph: _native.Graph,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
    ) -> None:
        self.joint, self.lowered, self.graph = joint, lowered, graph
        self.forward, self.backward = forward, backward
        self.nodes, self.storages = graph.nodes, graph.storages
        self.number_of = lowered.index
        self.named = {node.name: node for node in joint.graph.nodes}
        self.writer_of = {s: at for at, node in enumerate(self.nodes) for s in node.writes}
        self.outputs = outputs_of(forward.graph)
        self.gradients = outputs_of(backward.graph)
        self.runs: list[_Run] = []
        self.values: dict[fx.Node, _Value] = {}
        self.states: dict[fx.Node, _Value] = {}
        """The generator's state that each draw gives beside its result."""
        self.state_sizes: list[int] = []
        self.storage_origins: list[int] = []
        """The original of each copy."""
        self.inputs: dict[int, int] = {}
        """The copy of each storage that is there from the start."""
        self.not_made: set[int] = set()
        """Copies that the plan counts and that nothing makes."""
        self.tokens: set[int] = set()
        """Copies that are in the store."""
        self.arriving: set[int] = set()
        """Copies that were fetched and that nobody has waited for."""
        self.last_token: dict[effects.Effect, dict[int, int]] = {}
        self.differences: list[str] = []
        """Where the modules do not do what they claim."""

    def walk(self) -> None:
        """Takes in both modules."""
        self.take_inputs()
        for node, original in zip(_placeholders(self.forward), self.joint.primals, strict=True):
            self.values[node] = _Value(original, self.among(original, [self.inputs]))
        self.take_calls("forward", self.forward)
        self.take_boundary()
        self.take_calls("backward", self.backward)
        count = len(self.joint.forward_outputs)
        self.refuse_early("the backward", self.lying_under(self.gradients))
        self.compare("the forward gives", self.outputs[:count], self.joint.forward_outputs)
        self.compare("the backward gives", self.gradients, self.joint.gradients)

    def copy_of(self, storage: int) -> int:
        """A new copy of a storage."""
        self.storage_origins.append(storage)
        return len(self.storage_origins) - 1

    def take_inputs(self) -> None:
        for number, node in enumerate(self.nodes):
            if node.phase != "input":
                continue
            copies = {storage: self.copy_of(storage) for storage in node.writes}
            self.inputs.update(copies)
            made = list(copies.values())
            self.runs.append(_Run(("run", number), node.name, node.op, writes=made))
            if node.name == GENERATOR_STATES and self.lowered.nodes[number] is None:
                self.not_made.update(copies.values())

    def among(self, original: fx.Node, known: Iterable[dict[int, int]]) -> dict[int, int]:
        """The copies of an original's storages, among those that are known."""
        copies = {storage: copy for some in known for storage, copy in some.items()}
        wanted = [storage.index for storage in self.joint.held(original)]
        if not copies.keys() >= set(wanted):
            raise InvalidInput(f"a value that stands for {original.name} lies somewhere else")
        return {storage: copies[storage] for storage in wanted}

    def lying_under(self, values: Iterable[Any]) -> list[int]:
        """The copies that some values lie in."""
        nodes = [value for value in values if isinstance(value, fx.Node)]
        return list(dict.fromkeys(c for n in nodes for c in self.values[n].storages.values()))

    def take_boundary(self) -> None:
        """The moment between the modules: outputs are handed out, inputs overwritten, tangents
        come, and what was saved arrives where the backward takes it.
        """
        number, count = self.lowered.boundary, len(self.joint.forward_outputs)
        about = self.nodes[number]
        updates = [self.inputs[storage] for storage in about.updates]
        reads = list(dict.fromkeys([*self.lying_under(self.outputs[:count]), *updates]))
        made = {storage: self.copy_of(storage) for storage in about.writes}
        self.refuse_early("the forward", reads)
        step = "run", number
        self.runs.append(_Run(step, about.name, about.op, reads, list(made.values()), updates))
        placeholders, saved = _placeholders(self.backward), self.outputs[count:]
        arriving, tangents = placeholders[: len(saved)], placeholders[len(saved) :]
        if len(tangents) != len(self.joint.tangents):
            raise InvalidInput(
                f"the forward saves {len(saved)} values, and the backward takes "
                f"{len(placeholders) - len(self.joint.tangents)}"
            )
        for node, value in zip(arriving, saved, strict=True):
            self.values[node] = self.values[value]
            if not node.users:
                self.differences.append(f"the backward takes {node.name} and never reads it")
        for node, original in zip(tangents, self.joint.tangents, strict=True):
            self.values[node] = _Value(original, self.among(original, [self.inputs, made]))

    def take_calls(self, half: str, module: fx.GraphModule) -> None:
        for node in module.graph.nodes:
            picks_from = node.args[0] if node.target is operator.getitem else None
            if picks_from in self.states:
                # A draw gives the state before it, and its result.
                self.values[node] = (self.states, self.values)[node.args[1]][picks_from]
            elif node.target in transfers.NODES:
                self.take_transfer(f"{half}.{node.name}", node)
            elif node.op in ("get_attr", "call_function"):
                self.take_value(f"{half}.{node.name}", node)

    def original_of(self, name: str, node: fx.Node) -> fx.Node:
        original: fx.Node | None = self.named.get(node.meta.get(ORIGIN, ""))
        if original is None:
            raise InvalidInput(f"{name} stands for nothing in the joint graph")
        return original

    def take_transfer(self, name: str, node: fx.Node) -> None:
        """Adds an offload, a fetch or a wait."""
        original = self.original_of(name, node)
        given = [self.values[value] for value in _nodes_in(node.args)]
        # Whole storages move, each by the one value that it was made for.
        is_right = all(value.origin is original for value in given) and not node.kwargs
        what = transfers.name_of(node)
        is_right = is_right and [value.is_token for value in given] in FORMS[what]
        if not is_right or len(self.joint.held(original)) != 1:
            raise InvalidInput(f"{name} is no {what} of {original.name}")
        (storage,) = self.joint.held(original)
        reads = [value.storages[storage.index] for value in given]
        if node.target is not transfers.wait:
            made = self.copy_of(storage.index)
            is_token = node.target is transfers.offload
            (self.tokens if is_token else self.arriving).add(made)
            self.values[node] = _Value(original, {storage.index: made}, is_token=is_token)
            self.add_transfer(name, node, storage.index, reads, [made])
            return
        self.arriving.discard(reads[0])
        self.values[node] = given[0]
        if not node.users:
            self.add_transfer(name, node, storage.index, reads, [])

    def add_transfer(
        self, name: str, node: fx.Node, storage: int, reads: list[int], writes: list[int]
    ) -> None:
        if node.target is transfers.offload:
            self.refuse_early(name, reads)
        what = transfers.name_of(node)
        step = "free" if node.target is transfers.wait else what
        self.runs.append(_Run((step, storage), name, what, reads, writes))

    def refuse_early(self, name: str, reads: Iterable[int]) -> None:
        """Whatever is read has arrived."""
        for copy in reads:
            if copy in self.arriving:
                what = self.nodes[self.writer_of[self.storage_origins[copy]]].name
                self.differences.append(f"{name} reads {what}, and nobody has waited for it")

    def take_value(self, name: str, node: fx.Node) -> None:
        original = self.original_of(name, node)
        target, args, state = _unwrapped(node)
        self.compare_call(name, original, target, args, node.kwargs)
        known = [self.values[value].storages for value in _nodes_in((args, node.kwargs))]
        if node.op == "get_attr":
            known.append(self.inputs)
        elif not self.joint.is_view(original):
            known.append(self.take_run(name, node, original, state))
        self.values[node] = _Value(original, self.among(original, known))

    def take_run(
        self, name: str, node: fx.Node, original: fx.Node, state: fx.Node | None
    ) -> dict[int, int]:
        """Adds an operation that computes; gives the storages that it makes."""
        target, args, _ = _unwrapped(node)
        number, effect = self.number_of[original], effects.effect_of(original)
        is_same = target is original.target
        ignored = effects.unread(original) if is_same else ()
        read = [value for position, value in enumerate(args) if position not in ignored]
        made = {s.index: self.copy_of(s.index) for s in self.joint.made(original)}
        again, _, count = effects.again(original)
        if target is again and count is not None:
            kept = {storage.index for storage in self.joint.held(original)[:count]}
            self.not_made.update(copy for index, copy in made.items() if index not in kept)
        run = _Run(
            ("run", number),
            name,
            self.nodes[number].op if is_same or target is again else str(target),
            self.lying_under(_nodes_in((read, node.kwargs))),
            list(made.values()),
            passed_on=self.lying_under([args[position] for position in ignored]),
        )
        self.refuse_early(name, [*run.reads, *run.passed_on])
        if effect is not effects.Effect.PURE:
            self.take_order(run, node, original, state)
        self.runs.append(run)
        return made

    def take_order(
        self, run: _Run, node: fx.Node, original: fx.Node, state: fx.Node | None
    ) -> None:
        """A node with an effect comes behind the one before it, and so does a draw that is repeated
        from the state that it had.
        """
        effect, token = effects.effect_of(original), self.nodes[run.step[1]].writes[-1]
        before = self.last_token.get(effect, {}) if state is None else self.values[state].storages
        run.reads += before.values()
        run.writes.append(self.copy_of(token))
        if state is None:
            self.last_token[effect] = {token: run.writes[-1]}
        else:
            run.state_read = self.values[state].state
            if self.values[state].origin is not original or run.state_read is None:
                self.differences.append(f"{run.name} does not draw from the state of its own draw")
        if node.target is randomness.draw:
            run.state_written = len(self.state_sizes)
            self.state_sizes.append(generator_state_bytes(device_of(original)))
            self.states[node] = _Value(original, before, run.state_written)

    def compare_call(
        self, name: str, original: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        """An operation does what it stands for, to the values that stand for the same."""
        given = fx.map_arg((args, kwargs), lambda value: self.values[value].origin)
        forms = [(original.target, effects.without_unread(original)), effects.again(original)[:2]]
        if not any(target == wanted for wanted, _ in forms):
            self.differences.append(f"{name} calls {target}, {original.name} {original.target}")
        elif not any((target, *given) == (*form, original.kwargs) for form in forms):
            self.differences.append(
                f"{name} takes {given[0]} {given[1]}, where {original.name} takes "
                f"{original.args} {original.kwargs}"
            )

    def compare(self, what: str, values: list[Any], originals: list[Any]) -> None:
        """What a module gives stands for what the joint graph gives, one by one."""
        given = [self.values[v].origin if isinstance(v, fx.Node) else v for v in values]
        if given != originals:
            self.differences.append(f"{what} {given}, the joint graph {originals}")

    def graph_of(self, *, as_run: bool) -> _native.Graph:
        """The graph as it is run, or as it is planned."""
        nodes: list[_native.Node] = []
        first: dict[int, int] = {}
        for run in self.runs:
            is_late = self.lowered.boundary in first
            phase = "backward" if is_late or run.origin == self.lowered.boundary else "forward"
            if run.origin is None:
                nodes.append(
                    _native.Node(
                        run.name, run.op, phase, reads=run.reads, writes=run.writes, effect="once"
                    )
                )
                continue
            about, writes = self.nodes[run.origin], run.writes
            first.setdefault(run.origin, len(nodes))
            if as_run and run.origin == self.lowered.boundary:
                writes = []
            reads = [*run.reads, *self.state_copies(run.state_read, as_run)]
            if as_run:
                reads += [copy for copy in run.passed_on if copy not in reads]
            made = [*writes, *self.state_copies(run.state_written, as_run)]
            node = _native.Node(
                run.name,
                run.op,
                "input" if about.phase == "input" else phase,
                reads=reads,
                writes=made,
                updates=run.updates,
                effect=about.effect,
                time=about.time,
                workspace=self.scratch(run.origin) if as_run else about.workspace,
            )
            nodes.append(node)
            if len(writes) < len(run.writes):
                nodes.append(_native.Node(TANGENTS, TANGENTS, phase, reads=[], writes=run.writes))
        handed_out = self.outputs[len(self.joint.new_contents) : len(self.joint.forward_outputs)]
        handed_on = self.lowered.handed_on
        kept = [value for at, value in enumerate(handed_out) if at not in handed_on]
        once = [
            at for at, node in enumerate(self.nodes) if node.effect == effects.Effect.ONCE.value
        ]
        states = [(size, "other") for size in self.state_sizes] if as_run else []
        return _native.Graph(
            self.graph.name,
            storages=[*self.sizes_and_roles(as_run), *states],
            nodes=nodes,
            outputs=self.lying_under([*kept, *self.gradients]),
            targets=[] if as_run else [first[at] for at in once if at in first],
        )

    def scratch(self, number: int) -> int:
        """What a node takes and gives back inside. The moment between the modules takes nothing:
        what a graph says of it is room that is kept for other graphs.
        """
        return 0 if number == self.lowered.boundary else self.nodes[number].workspace

    def state_copies(self, state: int | None, as_run: bool) -> list[int]:
        """The storage of a generator's state. It stands behind all others."""
        return [len(self.storage_origins) + state] if as_run and state is not None else []

    def sizes_and_roles(self, as_run: bool) -> list[tuple[int, str]]:
        """A later copy of what stays for good must go: the first one is still there."""
        found, seen = [], set()
        there = set(self.inputs.values())
        for copy, storage in enumerate(self.storage_origins):
            size, role = self.storages[storage]
            is_again = storage in seen and role not in ("activation", "gradient")
            is_again |= copy in self.tokens
            # What a plan must not drop dies like all else when it has been read.
            is_again |= as_run and role == "constant" and copy not in there
            seen.add(storage)
            size = self.size(copy) if as_run or copy in self.tokens else size
            found.append((size, "other" if is_again else role))
        return found

    def size(self, copy: int) -> int:
        is_nothing = copy in self.not_made or copy in self.tokens
        return 0 if is_nothing else self.storages[self.storage_origins[copy]][0]

    def made_under(self, values: list[Any]) -> dict[tuple[str, int], int]:
        """The bytes that some values lie in and the modules have made, by block."""
        nodes = [self.values[value] for value in values if isinstance(value, fx.Node)]
        owned = set(self.inputs.values())
        copies = {copy for value in nodes for copy in value.storages.values()} - owned
        states = {value.state for value in nodes if value.state is not None}
        found = {("storage", copy): self.size(copy) for copy in sorted(copies)}
        return found | {("state", state): self.state_sizes[state] for state in sorted(states)}

    def summary(self) -> Modules:
        new, count = len(self.joint.new_contents), len(self.joint.forward_outputs)
        positions = range(count, len(self.outputs))
        sizes = {at: sum(self.made_under([self.outputs[at]]).values()) for at in positions}
        tokens = [at for at in positions if self.values[self.outputs[at]].is_token]
        largest = max(positions, key=lambda at: (sizes[at], at in tokens), default=None)
        staying = self.made_under(self.outputs[new:])
        replaced = self.made_under(self.outputs[:new])
        boundary = next(run for run in self.runs if run.origin == self.lowered.boundary)
        return Modules(
            self.forward,
            self.backward,
            self.graph_of(as_run=True),
            saved_bytes=sum(self.made_under(self.outputs[count:]).values()),
            largest_saved=largest if largest is not None and (sizes[largest] or tokens) else None,
            replaced_bytes=sum(size for block, size in replaced.items() if block not in staying),
            owned_bytes=sum(self.size(copy) for copy in self.inputs.values()),
            tangent_bytes=sum(self.size(copy) for copy in boundary.writes),
        )


FORMS = {"offload": ([False],), "fetch": ([True],), "wait": ([False], [False, True])}
"""Which of the arguments of a transfer are tokens."""


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _nodes_in(arguments: Any) -> list[fx.Node]:
    """The FX nodes among some arguments, in order and each once."""
    found: dict[fx.Node, None] = {}
    fx.map_arg(arguments, lambda value: found.setdefault(value))
    return list(found)


def _unwrapped(node: fx.Node) -> tuple[Any, tuple[Any, ...], fx.Node | None]:
    """The operation and arguments of a call; of a draw or a replay, those of the operation that
    draws, and the state that is replayed.
    """
    if node.target is randomness.draw:
        return node.args[1], node.args[2:], None
    if node.target is randomness.replay:
        state = node.args[1]
        assert isinstance(state, fx.Node)
        return node.args[2], node.args[3:], state
    return node.target, node.args, None
