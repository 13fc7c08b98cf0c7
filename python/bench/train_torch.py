"""The peer of `cargo xtask bench train`: the same data, start, order and settings in PyTorch.

`prepare CASE FOLDER` writes the data and the weights that both sides begin with; `train CASE
FOLDER` trains, and prints what an evaluation on the held-back part found. The digits are those of
scikit-learn, read from its folder; the text is that of the licences in Debian's `base-files`.
"""

import gzip
import importlib.util
import json
import math
import shutil
import sys
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

MASK = (1 << 64) - 1
SEED = 1
SEQUENCE = 64
HELD_BACK = 0.1
LICENCES = Path("/usr/share/common-licenses")
SETTINGS = {
    "digits": {"batch": 32, "epochs": 12, "rate": 0.003, "decay": 0.01, "clip": 1.0, "warmup": 20},
    "text": {"batch": 16, "epochs": 4, "rate": 0.002, "decay": 0.01, "clip": 1.0, "warmup": 20},
}


def mix(state: int) -> int:
    """The output function of SplitMix64, from which both sides draw."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def order(seed: int, epoch: int, count: int) -> list[int]:
    """The order of the samples in an epoch."""
    stream = mix(seed)
    for number in (1, epoch):
        stream = mix(stream ^ mix(number))
    places = list(range(count))
    for last in range(count - 1, 0, -1):
        unit = (mix(stream ^ mix(last)) >> 11) / (1 << 53)
        other = min(int(unit * (last + 1)), last)
        places[last], places[other] = places[other], places[last]
    return places


class Block(nn.Module):
    """Two convolutions beside the identity or a projection."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        else:
            self.downsample = nn.Identity()

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet20(nn.Module):
    """The network for small images of He et al., 2016."""

    def __init__(self, classes: int):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        inputs = 16
        for stage, outputs in enumerate((16, 32, 64), 1):
            blocks = [Block(inputs, outputs, 2 if stage > 1 else 1)]
            blocks += [Block(outputs, outputs, 1) for _ in range(2)]
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            inputs = outputs
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def gpt():
    from transformers import GPT2Config, GPT2LMHeadModel

    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=64, n_layer=3, n_head=2, **none))


def build(case: str) -> nn.Module:
    torch.manual_seed(SEED)
    return ResNet20(10) if case == "digits" else gpt()


def digits() -> tuple[numpy.ndarray, numpy.ndarray]:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        sys.exit("scikit-learn is not installed: pip install scikit-learn")
    path = Path(found.submodule_search_locations[0]) / "datasets/data/digits.csv.gz"
    with gzip.open(path) as file:
        table = numpy.loadtxt(file, delimiter=",")
    images = (table[:, :-1] / 16 - 0.3).reshape(-1, 8, 8, 1).repeat(3, axis=3)
    return images.astype(numpy.float32), table[:, -1].astype(numpy.int64)


def prepare(case: str, folder: Path) -> None:
    if case == "digits":
        inputs, labels = digits()
        shuffled = numpy.random.default_rng(SEED).permutation(len(labels))
        held = round(len(labels) * 0.2)
        for part, rows in (("validate", shuffled[:held]), ("train", shuffled[held:])):
            (folder / part).mkdir()
            numpy.save(folder / part / "inputs.npy", inputs[rows])
            numpy.save(folder / part / "labels.npy", labels[rows])
    else:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        (folder / "text").mkdir()
        for path in sorted(LICENCES.iterdir()):
            if not path.is_symlink():
                shutil.copy(path, folder / "text" / f"{path.name}.txt")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        end = ["<|endoftext|>"]
        trainer = trainers.BpeTrainer(
            vocab_size=1000, special_tokens=end, initial_alphabet=alphabet, show_progress=False
        )
        files = sorted(str(path) for path in (folder / "text").iterdir())
        tokenizer.train(files, trainer)
        tokenizer.save(str(folder / "tokenizer.json"))
    state = {name: value.contiguous() for name, value in build(case).state_dict().items()}
    # The head is the table of the tokens.
    state.pop("lm_head.weight", None)
    save_file(state, folder / "start.safetensors")


def tokens(folder: Path) -> torch.Tensor:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = []
    for path in sorted((folder / "text").iterdir()):
        ids += tokenizer.encode(path.read_text(), add_special_tokens=False).ids
        ids.append(tokenizer.token_to_id("<|endoftext|>"))
    return torch.tensor(ids)


def data(case: str, folder: Path):
    """Inputs and labels to train on, and those that are held back."""
    if case == "digits":
        parts = []
        for part in ("train", "validate"):
            inputs = torch.from_numpy(numpy.load(folder / part / "inputs.npy"))
            labels = torch.from_numpy(numpy.load(folder / part / "labels.npy"))
            parts.append((inputs.permute(0, 3, 1, 2).contiguous(), labels))
        return parts
    ids = tokens(folder)
    count = (len(ids) - 1) // SEQUENCE
    inputs = ids[: count * SEQUENCE].reshape(count, SEQUENCE)
    labels = ids[1 : count * SEQUENCE + 1].reshape(count, SEQUENCE)
    kept = count - math.floor(count * HELD_BACK + 0.5)
    return (inputs[:kept], labels[:kept]), (inputs[kept:], labels[kept:])


def logits_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    result = model(inputs)
    return result if isinstance(result, torch.Tensor) else result.logits


def evaluate(model: nn.Module, inputs, labels, batch: int) -> dict[str, float]:
    model.eval()
    loss, right, rows = 0.0, 0, 0
    with torch.no_grad():
        for first in range(0, len(inputs), batch):
            logits = logits_of(model, inputs[first : first + batch]).flatten(0, -2)
            wanted = labels[first : first + batch].flatten()
            loss += functional.cross_entropy(logits, wanted, reduction="sum").item()
            right += (logits.argmax(-1) == wanted).sum().item()
            rows += len(wanted)
    model.train()
    return {"loss": loss / rows, "accuracy": right / rows, "rows": rows}


def train(case: str, folder: Path) -> dict[str, float]:
    settings = SETTINGS[case]
    model = build(case)
    model.load_state_dict(load_file(folder / "start.safetensors"), strict=case == "digits")
    (inputs, labels), held = data(case, folder)
    batch, epochs = settings["batch"], settings["epochs"]
    per_epoch = len(inputs) // batch
    total, warmup = per_epoch * epochs, settings["warmup"]

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1, (update - warmup) / (total - warmup))))

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["rate"], weight_decay=settings["decay"]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    best = None
    for epoch in range(epochs):
        places = order(SEED, epoch, len(inputs))
        for first in range(0, per_epoch * batch, batch):
            rows = places[first : first + batch]
            logits = logits_of(model, inputs[rows]).flatten(0, -2)
            loss = functional.cross_entropy(logits, labels[rows].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
            optimizer.step()
            schedule.step()
        found = evaluate(model, *held, batch)
        if best is None or found["loss"] < best["loss"]:
            best = found
    return {"last": found, "best": best, "updates": total}


if __name__ == "__main__":
    torch.set_num_threads(2)
    task, case, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if task == "prepare":
        prepare(case, folder)
    else:
        print(json.dumps(train(case, folder)))
