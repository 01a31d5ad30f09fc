"""Sound trainings whose loop is a library's; they can only be watched as scripts are."""

from __future__ import annotations

import copy
import logging
import tempfile
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planted.sound.catalogue import STEPS, Loop, Parts, digits, epochs, images, sentences, sound

_WORDS = 40
_QUIET: dict[str, Any] = {
    "report_to": [],
    "save_strategy": "no",
    "logging_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "seed": 3,
}


def _quiet() -> None:
    for name in ("transformers", "datasets", "pytorch_lightning", "lightning_fabric", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _data(ids: torch.Tensor, labels: torch.Tensor) -> Any:
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]


@sound("transformers' Trainer: BERT that classifies, evaluated now and then", library=True)
def trainer_bert() -> Loop:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    _quiet()
    ids = sentences(480, 12, _WORDS)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    model = BertForSequenceClassification(BertConfig(vocab_size=_WORDS, num_labels=3, **sizes))
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "max_steps": 150,
            "per_device_train_batch_size": 8,
            "learning_rate": 5e-4,
            "eval_strategy": "steps",
            "eval_steps": 50,
        }
        args = TrainingArguments(folder, **options, **_QUIET)
        Trainer(
            model,
            args,
            train_dataset=_data(ids, ids[:, 0] % 3),
            eval_dataset=_data(ids[:16], ids[:16, 0] % 3),
        ).train()
    yield from ()


@sound(
    "transformers' Trainer: GPT-2 in bfloat16 autocast, two micro-batches, warm-up and cosine",
    library=True,
)
def trainer_gpt2() -> Loop:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    _quiet()
    ids = sentences(480, 12, _WORDS)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=_WORDS,
            n_positions=16,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=1,
            eos_token_id=1,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "max_steps": 120,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
        }
        args = TrainingArguments(
            folder, bf16=True, lr_scheduler_type="cosine", warmup_steps=20, **options, **_QUIET
        )
        Trainer(model, args, train_dataset=_data(ids, ids)).train()
    yield from ()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(3, _WORDS))]
    words = Tokenizer(
        WordLevel({word: number for number, word in enumerate(names)}, unk_token="<unk>")
    )
    words.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens: dict[str, Any] = {
        "vocab_size": _WORDS,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    return GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=32, n_layer=2, n_head=2, **tokens))


def _text(ids: torch.Tensor) -> str:
    return " ".join(f"w{int(each)}" for each in ids)


@sound("TRL's SFT", library=True)
def trl_sft() -> Loop:
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig, SFTTrainer

    _quiet()
    disable_progress_bars()
    texts = [_text(row[: int(torch.randint(5, 13, ()))]) for row in sentences(320, 12, _WORDS, 3)]
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            folder,
            max_steps=120,
            per_device_train_batch_size=8,
            max_length=32,
            bf16=False,
            learning_rate=1e-3,
            **_QUIET,
        )
        SFTTrainer(
            _gpt2(),
            args,
            train_dataset=Dataset.from_dict({"text": texts}),
            processing_class=_tokenizer(),
        ).train()
    yield from ()


@sound("TRL's DPO", library=True)
def trl_dpo() -> Loop:
    from datasets import Dataset, disable_progress_bars
    from trl import DPOConfig, DPOTrainer

    _quiet()
    disable_progress_bars()
    ids = sentences(160, 12, _WORDS, 3)
    data = {
        "prompt": [_text(row[:5]) for row in ids],
        "chosen": [" " + _text(row[5:]) for row in ids],
        "rejected": [" " + _text(torch.randint(3, _WORDS, (7,))) for _ in ids],
    }
    with tempfile.TemporaryDirectory() as folder:
        args = DPOConfig(folder, max_steps=100, per_device_train_batch_size=4, bf16=False, **_QUIET)
        model = _gpt2()
        options: dict[str, Any] = {
            "train_dataset": Dataset.from_dict(data),
            "processing_class": _tokenizer(),
        }
        DPOTrainer(model, ref_model=copy.deepcopy(model), args=args, **options).train()
    yield from ()


def _fit(module: Any, loader: Any, steps: int) -> None:
    import pytorch_lightning as lightning

    options: dict[str, Any] = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, **options).fit(
        module, loader
    )


@sound("Lightning: an autoencoder whose parts are called apart", library=True)
def lightning_autoencoder() -> Loop:
    import pytorch_lightning as lightning

    _quiet()

    class Auto(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 3))
            self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 144))

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            (x,) = batch
            x = x.flatten(1)
            return functional.mse_loss(self.decoder(self.encoder(x)), x)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(digits()), batch_size=16, shuffle=True
    )
    _fit(Auto(), loader, 150)
    yield from ()


@sound("Lightning: a GAN, optimized by hand", library=True)
def lightning_gan() -> Loop:
    import pytorch_lightning as lightning

    from planted.sound.adversaries import _Judge, _Maker

    _quiet()

    class GAN(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.maker, self.judge = _Maker(), _Judge()

        def forward(self, noise: torch.Tensor) -> Any:
            return self.maker(noise)

        def training_step(self, batch: Any, number: int) -> None:
            (real,) = batch
            made, judged = self.optimizers()  # type: ignore[misc]
            self.toggle_optimizer(made)
            loss = functional.binary_cross_entropy_with_logits(
                self.judge(self(torch.randn(len(real), 12, 1, 1))), torch.ones(len(real))
            )
            made.zero_grad()
            self.manual_backward(loss)
            made.step()
            self.untoggle_optimizer(made)
            self.toggle_optimizer(judged)
            fake = self(torch.randn(len(real), 12, 1, 1)).detach()
            loss = functional.binary_cross_entropy_with_logits(
                self.judge(real), torch.ones(len(real))
            )
            loss = loss + functional.binary_cross_entropy_with_logits(
                self.judge(fake), torch.zeros(len(real))
            )
            judged.zero_grad()
            self.manual_backward(loss)
            judged.step()
            self.untoggle_optimizer(judged)

        def configure_optimizers(self) -> Any:
            return [
                torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.999))
                for each in (self.maker, self.judge)
            ]

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(2 * digits() - 1), batch_size=16, shuffle=True
    )
    _fit(GAN(), loader, 200)
    yield from ()


@sound("diffusers: a UNet, by accelerate", library=True)
def unet() -> Loop:
    from accelerate import Accelerator
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.optimization import get_cosine_schedule_with_warmup

    _quiet()
    sizes: dict[str, Any] = {
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "norm_num_groups": 4,
    }
    blocks: dict[str, Any] = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    model = UNet2DModel(
        sample_size=12, in_channels=1, out_channels=1, attention_head_dim=8, **sizes, **blocks
    )
    noises = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = 80
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, steps)
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for (x,) in epochs(2 * digits() - 1, size=8, steps=steps):
        noise, times = torch.randn_like(x), torch.randint(0, 1000, (len(x),))
        with accelerator.accumulate(model):
            loss = functional.mse_loss(
                model(noises.add_noise(x, noise, times), times, return_dict=False)[0], noise
            )
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    yield from ()


@sound("a model that is compiled, with its loss inside")
def compiled() -> Loop:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 6)
            )

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.layers(x), y)

    x, y = images()
    model = Whole()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    compiled = torch.compile(model, backend="eager")
    yield Parts(model, optimizer)
    for a, b in epochs(x, y, steps=STEPS):
        optimizer.zero_grad()
        compiled(a, b).backward()
        optimizer.step()
        yield None
