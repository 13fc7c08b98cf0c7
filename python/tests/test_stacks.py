"""Training stacks that others wrote, with a planned module in the place of the module: the numbers
of eager, bit for bit, and the budget held.
"""

import contextlib
import copy
import io
import os
import tempfile
import unittest
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import accelerate
import datasets
import lightning
import peft
import tokenizers
import torch
import transformers
import trl
from torch import nn

import rekindle
from rekindle.torch.module import session_of

QUICK = {"profile": "roofline", "effort": 1}
SHARE = 0.8
ROWS, LENGTH, WORDS = 8, 32, 96


def language_model(dropout: float = 0.1, **options: Any) -> nn.Module:
    """A GPT-2 of one layer: its head is its embedding."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        **options,
    )
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def texts(count: int = 3 * ROWS) -> list[dict[str, torch.Tensor]]:
    words = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in words]


def batch(count: int = ROWS) -> dict[str, torch.Tensor]:
    return {
        name: torch.stack([text[name] for text in texts(count)]) for name in ("input_ids", "labels")
    }


def lora() -> peft.LoraConfig:
    return peft.LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, task_type="CAUSAL_LM")


@contextlib.contextmanager
def measured(model: nn.Module, inputs: Any, peaks: list[int]) -> Iterator[None]:
    """Adds the peak of a step."""
    there = [*model.parameters(), *model.buffers(), *inputs]
    there += [part.grad for part in model.parameters() if part.grad is not None]
    with rekindle.measure_peak(there) as counted:
        yield
    peaks.append(counted.peak)


class Stack(unittest.TestCase):
    def setUp(self) -> None:
        torch._dynamo.reset()
        self.enterContext(unittest.mock.patch.dict(os.environ, REKINDLE_CACHE="off"))
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", rekindle.OverBudget)
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)

    def plan(self, module: nn.Module, budget: float = SHARE, **options: Any) -> nn.Module:
        return rekindle.compile(module, budget, **{**QUICK, **options})

    def assert_same(self, planned: nn.Module, plain: nn.Module) -> None:
        """The numbers are the same, under the same names."""
        ours, theirs = planned.state_dict(), plain.state_dict()
        self.assertEqual(list(ours), list(theirs))
        different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
        self.assertEqual(different, [])

    def assert_held(self, planned: nn.Module, peaks: list[int]) -> None:
        """Something was planned, and no step went above the budget."""
        session = session_of(planned)
        self.assertGreater(len(session.planned), 0)
        self.assertTrue(any(step.plan.time > step.graph.time for step in session.planned))
        self.assertLessEqual(max(peaks), session.largest_budget)


class HuggingFace(Stack):
    def train(self, model: nn.Module, **options: Any) -> list[int]:
        """Trains with the Trainer; gives the peak of each step."""
        peaks: list[int] = []

        class Measured(transformers.Trainer):
            def training_step(self, model: nn.Module, inputs: Any, *args: Any) -> Any:
                with measured(model, inputs.values(), peaks):
                    return super().training_step(model, inputs, *args)

        resume = options.pop("resume", None)
        arguments = transformers.TrainingArguments(
            output_dir=self.folder,
            per_device_train_batch_size=ROWS,
            num_train_epochs=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
            **{"save_strategy": "no", **options},
        )
        data = texts(options.get("gradient_accumulation_steps", 1) * 3 * ROWS - ROWS // 2)
        trainer = Measured(model=model, args=arguments, train_dataset=data)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train(resume_from_checkpoint=resume)
        return peaks

    def check(self, build: Callable[[], nn.Module] = language_model, **options: Any) -> nn.Module:
        plain = build()
        self.train(plain, **options)
        planned = self.plan(build())
        self.assert_held(planned, self.train(planned, **options))
        self.assert_same(planned, plain)
        return planned

    def test_as_it_is_and_with_a_smaller_last_batch(self) -> None:
        planned = self.check()
        self.assertEqual(len(session_of(planned).planned), 2, "the last batch is smaller")

    def test_bf16(self) -> None:
        self.check(lambda: language_model(dropout=0.0), bf16=True)

    def test_accumulation(self) -> None:
        self.check(gradient_accumulation_steps=2)

    def test_saved_resumed_and_loaded(self) -> None:
        whole = language_model()
        self.train(whole)
        planned = self.plan(language_model())
        self.train(planned, save_strategy="steps", save_steps=2)
        checkpoint = next(Path(self.folder).glob("checkpoint-2"))
        resumed = self.plan(language_model())
        self.train(resumed, resume=str(checkpoint))
        self.assert_same(resumed, whole)
        planned.save_pretrained(self.folder)
        loaded = transformers.GPT2LMHeadModel.from_pretrained(self.folder)
        self.assert_same(loaded, planned)
        self.assertIs(loaded.lm_head.weight, loaded.transformer.wte.weight)
        self.assertEqual(loaded.config.architectures, ["GPT2LMHeadModel"])

    def test_inside_an_adapter(self) -> None:
        plain, planned = language_model(), self.plan(language_model())
        for model in (plain, planned):
            torch.manual_seed(0)
            adapted = peft.get_peft_model(model, lora())
            peaks = self.train(adapted)
        self.assert_held(planned, peaks)
        self.assert_same(planned, plain)

    def test_an_adapter_inside(self) -> None:
        def build() -> nn.Module:
            torch.manual_seed(0)
            return peft.get_peft_model(language_model(), lora())

        planned = self.check(build)
        planned.save_pretrained(self.folder)
        again = peft.PeftModel.from_pretrained(language_model(), self.folder)
        self.assert_same(again, planned)


class SupervisedFineTuning(Stack):
    """TRL's trainer, with an adapter."""

    def train(self, model: nn.Module) -> list[int]:
        words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, WORDS)}
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<pad>")),
            pad_token="<pad>",
            eos_token="<eos>",
        )
        peaks: list[int] = []

        class Measured(trl.SFTTrainer):
            def training_step(self, model: nn.Module, inputs: Any, *args: Any) -> Any:
                tensors = [value for value in inputs.values() if torch.is_tensor(value)]
                with measured(model, tensors, peaks):
                    return super().training_step(model, inputs, *args)

        arguments = trl.SFTConfig(
            output_dir=self.folder,
            per_device_train_batch_size=ROWS,
            num_train_epochs=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            logging_strategy="no",
            save_strategy="no",
            max_length=LENGTH,
            gradient_checkpointing=False,
        )
        data = datasets.Dataset.from_list(
            [{"input_ids": text["input_ids"].clamp(min=2).tolist()} for text in texts()]
        )
        torch.manual_seed(3)
        trainer = Measured(
            model=model,
            args=arguments,
            train_dataset=data,
            processing_class=tokenizer,
            peft_config=lora(),
        )
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        return peaks

    def test_an_adapter(self) -> None:
        """The trainer's own loss, in place of the model's, ends a graph: what it takes is said not
        to be counted, and what is planned is held.
        """
        plain, planned = language_model(0.0), self.plan(language_model(0.0))
        eager = self.train(plain)
        warnings.simplefilter("always", rekindle.UnplannedPart)
        with self.assertWarnsRegex(rekindle.UnplannedPart, "graphs: .*its memory is not counted"):
            peaks = self.train(planned)
        self.assertLess(max(peaks), max(eager))
        self.assert_held(planned, [step.peak for step in session_of(planned).planned])
        self.assert_same(planned, plain)


class Accelerate(Stack):
    def train(self, model: nn.Module, accelerator: accelerate.Accelerator) -> list[int]:
        torch.manual_seed(5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer = accelerator.prepare(model, optimizer)
        peaks: list[int] = []
        for _ in range(2):
            inputs = batch()
            with measured(model, inputs.values(), peaks):
                loss = model(**inputs).loss
                accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return peaks

    def check(self, **options: Any) -> nn.Module:
        dropout = 0.0 if options else 0.1
        plain, planned = language_model(dropout), self.plan(language_model(dropout))
        self.train(plain, accelerate.Accelerator(cpu=True, **options))
        accelerator = accelerate.Accelerator(cpu=True, **options)
        self.assert_held(planned, self.train(planned, accelerator))
        self.assert_same(planned, plain)
        unwrapped = accelerator.unwrap_model(planned, keep_fp32_wrapper=False)
        self.assertIs(unwrapped, planned)
        return planned

    def test_around_a_planned_module(self) -> None:
        self.check()

    def test_in_bf16(self) -> None:
        planned = self.check(mixed_precision="bf16")
        before = len(session_of(planned).planned)
        planned(**batch()).loss.backward()
        self.assertEqual(
            len(session_of(planned).planned), before + 1, "what is unwrapped runs by plan, too"
        )

    def test_inside_a_planned_module(self) -> None:
        plain, inner = language_model(0.0), language_model(0.0)
        self.train(plain, accelerate.Accelerator(cpu=True, mixed_precision="bf16"))
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        planned = self.plan(accelerator.prepare(inner))
        torch.manual_seed(5)
        optimizer = accelerator.prepare(torch.optim.AdamW(planned.parameters(), lr=1e-3))
        peaks: list[int] = []
        for _ in range(2):
            inputs = batch()
            with measured(planned, inputs.values(), peaks):
                accelerator.backward(planned(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()
        self.assert_held(planned, peaks)
        self.assert_same(planned, plain)

    def test_a_state_is_saved_and_loaded(self) -> None:
        accelerator = accelerate.Accelerator(cpu=True)
        planned = accelerator.prepare(self.plan(language_model()))
        accelerator.save_state(self.folder)
        with torch.no_grad():
            planned.transformer.wte.weight.zero_()
        accelerator.load_state(self.folder)
        self.assert_same(planned, language_model())


class Network(lightning.LightningModule):
    """A language model that Lightning trains."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.peaks: list[int] = []

    def training_step(self, inputs: dict[str, torch.Tensor], _number: int) -> torch.Tensor:
        return self.net(**inputs).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Counted(lightning.Callback):
    """Measures each step, from its batch to the end of its backward."""

    def on_train_batch_start(self, _trainer: Any, module: Network, inputs: Any, _at: int) -> None:
        self.steps = contextlib.ExitStack()
        self.steps.enter_context(measured(module, inputs.values(), module.peaks))

    def on_after_backward(self, _trainer: Any, _module: Network) -> None:
        self.steps.close()


class Lightning(Stack):
    def train(self, module: Network, **options: Any) -> Network:
        torch.manual_seed(5)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[Counted()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        loader = torch.utils.data.DataLoader(texts(), batch_size=ROWS)
        trainer.fit(module, loader)
        self.trainer = trainer
        return module

    def test_a_planned_part(self) -> None:
        plain = self.train(Network(language_model()))
        planned = self.train(Network(self.plan(language_model())))
        self.assert_held(planned, planned.peaks)
        self.assert_same(planned, plain)
        names = [name for name, _ in planned.named_parameters()]
        self.assertEqual(names, [name for name, _ in plain.named_parameters()])
        self.assertLessEqual(set(names), set(planned.state_dict()))

    def test_bf16_with_accumulation(self) -> None:
        options = {"precision": "bf16-mixed", "accumulate_grad_batches": 2}
        plain = self.train(Network(language_model(0.0)), **options)
        planned = self.train(Network(self.plan(language_model(0.0))), **options)
        self.assert_held(planned, planned.peaks)
        self.assert_same(planned, plain)

    def test_a_checkpoint_is_that_of_the_module(self) -> None:
        planned = self.train(Network(self.plan(language_model())))
        file = Path(self.folder) / "network.ckpt"
        self.trainer.save_checkpoint(file)
        plain = Network(language_model(dropout=0.0))
        plain.load_state_dict(torch.load(file, weights_only=True)["state_dict"])
        self.assert_same(planned, plain)


class Scaling(Stack):
    def test_a_gradient_scaler(self) -> None:
        peaks: list[int] = []
        plain = language_model(0.0)
        planned = self.plan(copy.deepcopy(plain))
        for model in (plain, planned):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
            scaler = torch.amp.GradScaler("cpu")
            for _ in range(2):
                inputs = batch()
                peaks.clear()
                with measured(model, inputs.values(), peaks):
                    with torch.autocast("cpu", torch.float16):
                        loss = model(**inputs).loss
                    scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        self.assert_held(planned, peaks)
        self.assert_same(planned, plain)


if __name__ == "__main__":
    unittest.main()
