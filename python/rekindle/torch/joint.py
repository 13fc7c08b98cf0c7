"""The joint graph of a training step, as AOTAutograd hands it over, and what its nodes are.

In: an FX graph in which forward and backward stand together, with a fake tensor in each node's
`meta["val"]`. Out: a `Joint` that says which placeholders are parameters, inputs and tangents,
which inputs the forward overwrites, which outputs are gradients, and for each node whether it
computes, only renames storages (a view), or picks one of several results.

Views are found by storage: a node all of whose results share their storages with its arguments
computes nothing. Storages are numbered in the order in which they appear. Their sizes are those of
the fake tensors, but for operations whose results lie in other sizes (`hidden_bytes`).

Bytes are counted where the step runs: in a step on a GPU, a storage in the host's memory has none.

Limits: shapes are numbers, and tensors are plain blocks of them. A graph with symbolic sizes or
with sparse tensors is refused, and so is one that leaves the stream on which it is called.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rekindle.errors import UnsupportedGraph
from rekindle.torch.interfaces import (
    attribute_of,
    is_operation,
    name_of,
    pytree,
    schema_of,
    storage_key,
)
from rekindle.torch.masks import shrink_masks
from rekindle.torch.sizes import settle_sizes


@dataclass(frozen=True, order=True)
class Storage:
    """A block of bytes: its number and its size."""

    index: int
    bytes: int


class Joint:
    """A joint graph with its nodes told apart. Once made, only `adopt` and `copies` change it."""

    def __init__(
        self,
        module: fx.GraphModule,
        num_forward_outputs: int,
        static_inputs: Sequence[int],
        inputs: Sequence[Any] = (),
    ) -> None:
        settle_sizes(module.graph)
        _refuse_layouts(module.graph)
        shrink_masks(module.graph)
        self.module = module
        self.graph = module.graph
        self._storages: dict[int, Storage] = {}
        self._held: dict[fx.Node, tuple[Storage, ...]] = {}
        placeholders = list(self.graph.find_nodes(op="placeholder"))
        kinds = {tensor.device.type for node in placeholders for tensor in tensors_of(node)}
        self.metered = "cuda" if "cuda" in kinds else "cpu"
        """The kind of device whose memory is counted."""
        self.tangents = [node for node in placeholders if node.name.startswith("tangents")]
        self.primals = [node for node in placeholders if not node.name.startswith("tangents")]
        static = set(static_inputs)
        self.parameters = {node for node, at in _positions(placeholders).items() if at in static}
        self.inputs = _tensors_for(self.primals, inputs)
        """The tensors that placeholders stand for, where `inputs` told; they are not kept alive."""
        self.output = self.graph.output_node()
        results = outputs_of(self.graph)
        self.forward_outputs = results[:num_forward_outputs]
        self.gradients = results[num_forward_outputs:]
        self.copies: list[fx.Node] = []
        """Nodes that were added to keep what the backward reads of an overwritten input."""
        self.overwritten, self.new_contents = self._find_overwritten(num_forward_outputs)
        for node in self.graph.nodes:
            self._held[node] = self._find_storages(node)

    def _find_overwritten(self, num_forward_outputs: int) -> tuple[list[fx.Node], list[fx.Node]]:
        """The inputs that the step overwrites after the forward, and the nodes that give what goes
        there.
        """
        inputs, contents = [], []
        described = {node.meta.get("desc"): node for node in self.primals}
        for node, about in zip(
            self.forward_outputs, self.output.meta.get("desc", ()), strict=False
        ):
            target = getattr(about, "mutated_input", None)
            if target is not None:
                inputs.append(described[target])
                contents.append(node)
        return inputs, contents

    def output_of(self, tangent: fx.Node) -> Any:
        """The output of the forward that a tangent is the gradient of."""
        about = getattr(tangent.meta.get("desc"), "output", None)
        described = self.output.meta.get("desc", ())
        found = zip(self.forward_outputs, described, strict=False)
        return next((node for node, its in found if about is not None and its == about), None)

    def _find_storages(self, node: fx.Node) -> tuple[Storage, ...]:
        found: dict[int, Storage] = {}
        for position, tensor in enumerate(tensors_of(node)):
            block = tensor.untyped_storage()
            size = block.nbytes() + hidden_bytes(node, position)
            if self.metered == "cuda" and tensor.device.type == "cpu":
                size = 0
            storage = self._storages.setdefault(
                storage_key(block), Storage(len(self._storages), size)
            )
            found[storage.index] = storage
        return tuple(found.values())

    @property
    def storages(self) -> list[Storage]:
        """All storages, by index."""
        return list(self._storages.values())

    def held(self, node: fx.Node) -> tuple[Storage, ...]:
        """The storages in which the node's results lie."""
        return self._held[node]

    def adopt(self, node: fx.Node) -> None:
        """Takes in a node that was added to the graph."""
        self._held[node] = self._find_storages(node)

    def made(self, node: fx.Node) -> tuple[Storage, ...]:
        """The storages that the node makes anew."""
        read = {
            storage.index for argument in node.all_input_nodes for storage in self.held(argument)
        }
        return tuple(storage for storage in self.held(node) if storage.index not in read)

    def is_view(self, node: fx.Node) -> bool:
        """Whether it only gives another name to what its arguments hold, or picks one of several
        results.
        """
        if node.op != "call_function" or overwrites(node):
            return False
        return node.target is operator.getitem or (bool(self.held(node)) and not self.made(node))

    @property
    def input_gradient_bytes(self) -> int:
        """Bytes of the gradients of inputs that are no parameters."""
        pairs = zip(self.primals, self.gradients, strict=True)
        made = {
            s
            for node, value in pairs
            if isinstance(value, fx.Node) and node not in self.parameters
            for s in self.held(value)
        }
        return sum(storage.bytes for storage in made)

    def computing(self) -> Iterator[fx.Node]:
        """The nodes that do something, in the graph's order."""
        return (
            n
            for n in self.graph.nodes
            if n.op == "call_function" and not self.is_view(n) and not is_idle(n)
        )


def _positions(placeholders: list[fx.Node]) -> dict[fx.Node, int]:
    """Which of the inputs, as the model has them, each placeholder is or is a part of: a tensor
    that is spread over processes is several placeholders.
    """
    known: dict[Any, int] = {}
    found: dict[fx.Node, int] = {}
    for node in placeholders:
        about = node.meta.get("desc", node)
        while hasattr(about, "base"):
            about = about.base
        found[node] = known.setdefault(about, len(known))
    return found


def _tensors_for(
    primals: list[fx.Node], inputs: Sequence[Any]
) -> dict[fx.Node, weakref.ref[torch.Tensor]]:
    """Which of the values that the captured graph is called with each placeholder stands for."""
    found = {}
    for node in primals:
        about: Any = node.meta.get("desc")
        while hasattr(about, "base"):
            about = about.base
        at = getattr(about, "idx", len(inputs))
        if at < len(inputs) and isinstance(inputs[at], torch.Tensor):
            found[node] = weakref.ref(inputs[at])
    return found


REDUCED_IN_PLACE = {"mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss"}
"""Losses that are reduced in the storage of the losses of all elements, which the scalar keeps."""


NORMS = {
    "native_layer_norm": (2,),
    "native_group_norm": (1,),
    "_native_batch_norm_legit_functional": (1, 3),
    "_native_batch_norm_legit": (1,),
    "native_group_norm_backward": (4,),
}
"""Norms, and which arguments their weights are, or their averages where they have no weights. Where
autocast leaves these in single precision and gives half precision to be normed, the host keeps
statistics as wide as the weights and gives a gradient as wide as the input; PyTorch's meta
functions say the other one of both.
"""


def _norm_bytes(node: fx.Node, result: torch.Tensor, weights_at: tuple[int, ...]) -> int:
    """Likewise, of a result of a norm on the host."""
    weights = [node.args[at] for at in weights_at]
    weight = next((weight for weight in weights if isinstance(weight, fx.Node)), None)
    if weight is None or result.device.type != "cpu":
        return 0
    is_backward, values = "backward" in name_of(node.target), node.meta["val"]
    if not any(result is value for value in (values[:1] if is_backward else values[1:3])):
        return 0
    source = node.args[1 if is_backward else 0]
    assert isinstance(source, fx.Node)
    like = (source if is_backward else weight).meta["val"]
    return int(result.numel() * (like.element_size() - result.element_size()))


def hidden_bytes(node: fx.Node, position: int) -> int:
    """By how many bytes the storage of a result is larger than a fake tensor shows."""
    name = name_of(node.target)
    result = tensors_of(node)[position]
    if name in REDUCED_IN_PLACE:
        shapes = [
            operand.meta["val"].shape for operand in node.args[:2] if isinstance(operand, fx.Node)
        ]
        elements = torch.broadcast_shapes(*shapes).numel()
        return int((elements - result.numel()) * result.element_size())
    if name in NORMS:
        return _norm_bytes(node, result, NORMS[name])
    if (
        name in {"_embedding_bag", "_embedding_bag_forward_only"}
        and position == 1
        and result.device.type == "cpu"
    ):
        # The bag of each index is found in one element more, where it is asked for at all.
        return result.element_size() if result.numel() else 0
    return 0


def outputs_of(graph: fx.Graph) -> list[Any]:
    """What a graph gives: FX nodes, and None where there is no gradient."""
    (results,) = graph.output_node().args
    assert isinstance(results, (list, tuple))
    return list(results)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node gives; fake ones, or a real constant."""
    value = node.meta.get("val")
    if node.op == "get_attr" and value is None:
        assert node.graph.owning_module is not None
        value = attribute_of(node.graph.owning_module, str(node.target))
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def overwrites(node: fx.Node) -> bool:
    """Whether the operation changes one of its arguments."""
    return is_operation(node.target) and schema_of(node.target).is_mutable


IDLE = {
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range_for_size",
}
"""Checks that tracing leaves behind. With shapes that are numbers they have been made already."""


def is_idle(node: fx.Node) -> bool:
    """Whether it is a check that tracing left behind."""
    return name_of(node.target) in IDLE


STREAMS = {"streams"}
"""Namespaces of operations that go to another stream, or wait for one."""
STREAM_OPERATIONS = {"record_stream"}


def _refuse_streams(node: fx.Node) -> None:
    """What runs on a stream of its own is freed when that stream says so, which no plan knows."""
    if is_operation(node.target) and (
        node.target.namespace in STREAMS or name_of(node.target) in STREAM_OPERATIONS
    ):
        raise UnsupportedGraph(
            f"{node.name} ({node.target}) leaves the stream on which the step is called: a plan "
            "needs all of a step on one stream, whichever it is"
        )


def _refuse_layouts(graph: fx.Graph) -> None:
    for node in graph.nodes:
        _refuse_streams(node)
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
                raise UnsupportedGraph(
                    f"{node.name} gives a tensor whose layout is {leaf.layout}, and how many bytes "
                    "it takes is known only when it runs; use dense tensors, and sparse=False in "
                    "nn.Embedding"
                )
