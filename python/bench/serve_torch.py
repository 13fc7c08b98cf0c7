"""PyTorch's side of `cargo xtask bench engine`: eager training steps on demand, timed.

Prints the peak in bytes of one step when ready; then, for each line of standard input, runs one
step and prints its seconds and its loss. Arguments: the case's name and the number of threads. The
optimizers are PyTorch's fused ones, its fastest.
"""

import sys
import time
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_models import Case, bert, image_batch, loss_of, masked_token_batch, resnet

CASES = {
    case.name: case
    for case in (
        Case("resnet152", lambda: resnet(152), image_batch, "images", "sgd", 1e-3, batch=4),
        Case(
            "bert-base", lambda: bert(0.1), masked_token_batch, "input_ids", "adam", 1e-4, batch=8
        ),
    )
}
OPTIMIZERS = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9, fused=True),
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate, fused=True),
}


class StorageAccount(TorchDispatchMode):
    """Counts the bytes of all live storages, op by op. Scratch inside an op is not seen."""

    def __init__(self):
        super().__init__()
        self.known = {}
        self.live = self.peak = 0

    def add(self, tensor: torch.Tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.known:
            self.known[key] = size = storage.nbytes()
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self.drop, key)

    def drop(self, key: int):
        self.live -= self.known.pop(key, 0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result


class Trainer:
    def __init__(self, case: Case):
        self.module, self.batch = case.build()
        self.optimizer = OPTIMIZERS[case.optimizer](self.module.parameters(), case.learning_rate)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.module, self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def resident(self):
        """What is there before a step begins: parameters, buffers, optimizer state, the batch."""
        yield from self.module.parameters()
        yield from self.module.buffers()
        yield from self.batch
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def peak(self) -> int:
        """The peak of a step that is not the first: the optimizer's state is there."""
        self.step()
        self.optimizer.zero_grad(set_to_none=True)
        account = StorageAccount()
        for tensor in self.resident():
            account.add(tensor)
        with account:
            self.step()
        return account.peak


def main():
    name, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    trainer = Trainer(CASES[name])
    print(trainer.peak(), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = trainer.step()
        seconds = time.perf_counter() - start
        print(seconds, loss.item(), flush=True)


if __name__ == "__main__":
    main()
