"""A few training steps in PyTorch, recorded tensor by tensor."""

import copy

import torch
from torch import nn

from tolerance import UNIT
from torch_models import Case, loss_of

STEPS = 3


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers under their names; a tied tensor once, and only what a checkpoint
    holds.
    """
    first_names = {}
    for name, tensor in module.state_dict().items():
        first_names.setdefault(tensor.data_ptr(), (name, tensor))
    return {name: tensor.detach().clone().contiguous() for name, tensor in first_names.values()}


def train(
    case: Case,
    module: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
    dtype: torch.dtype,
    nudge: int = 0,
) -> dict[str, torch.Tensor]:
    """Trains a copy of `module` in `dtype`; gives the losses, the first step's gradients, and the
    final state. With a `nudge`, a seed, the weights begin a rounding away.
    """
    module = copy.deepcopy(module).to(dtype)
    if nudge:
        generator = torch.Generator().manual_seed(nudge)
        with torch.no_grad():
            for weights in module.parameters():
                weights *= 1 + UNIT * torch.randn(weights.shape, generator=generator)
    inputs, labels = batch
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    optimizer = case.make_optimizer(module)
    losses, record = [], {}
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(module, (inputs, labels))
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            record |= {f"gradient/{name}": p.grad.clone() for name, p in module.named_parameters()}
        optimizer.step()
    record["loss"] = torch.stack(losses)
    return record | {f"final/{name}": tensor for name, tensor in state(module).items()}
