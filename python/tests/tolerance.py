"""How far two correct float32 computations of the same step may lie apart.

The step is computed three times: in float64 (taken as exact), by PyTorch in float32, and by our
engine in float32. Any float32 computation is off by rounding, and how far depends on the model:
batch-norm over few values and the division in Adam enlarge it by orders of magnitude, so no fixed
tolerance is right. But two computations that differ only in the order of their sums have errors of
the same size. So for each tensor

    |ours - exact| <= FACTOR * max(|PyTorch - exact|, typical * |exact|)

in the Euclidean norm, where `typical` is the median over all tensors of PyTorch's relative error (a
tensor of few elements may be close by luck) and at least one unit in the last place of float32.

Over several steps there is one thing more. A ReLU whose input is within rounding of zero is open in
one float32 computation and shut in another, and from the next step on the tensors that depend on it
differ by thousands of roundings, in each computation at other places. So PyTorch computes the steps
several times, from weights that are a rounding apart, and `typical` is the largest relative error
that any of its tensors has.
"""

import torch

FACTOR = 8.0
"""The largest ratio seen in a correct run is 3.5 (a running mean of 64 elements); a wrong term
gives hundreds. Over several steps a wrong term of the update is off by a part of the update itself.
"""
UNIT = 2.0**-23


def excess(
    exact: dict[str, torch.Tensor],
    peers: list[dict[str, torch.Tensor]],
    ours: dict[str, torch.Tensor],
) -> list[str]:
    """A line for each tensor of `ours` that is missing, misshaped or further from `exact` than
    rounding explains. Several `peers` are PyTorch's computations of several steps.
    """
    relative = torch.tensor(
        [
            distance(peer[name], exact[name]) / size(exact[name])
            for peer in peers
            for name in exact
            if size(exact[name]) > 0
        ]
    )
    typical = max(UNIT, (relative.median() if len(peers) == 1 else relative.max()).item())
    lines = []
    for name in sorted(exact):
        if name not in ours:
            lines.append(f"{name}: missing")
        elif ours[name].shape != exact[name].shape:
            lines.append(
                f"{name}: shape {list(ours[name].shape)}, expected {list(exact[name].shape)}"
            )
        else:
            rounding = max(distance(peer[name], exact[name]) for peer in peers)
            allowed = FACTOR * max(rounding, typical * size(exact[name]))
            error = distance(ours[name], exact[name])
            if not error <= allowed:
                lines.append(
                    f"{name}: off by {error:.3g}, allowed {allowed:.3g}, "
                    f"norm {size(exact[name]):.3g}"
                )
    return lines


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return size(left.double() - right.double())


def size(tensor: torch.Tensor) -> float:
    return tensor.double().norm().item()
