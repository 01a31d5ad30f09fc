"""Sound trainings on text and sequences: language models, encoders, fine-tuning, preferences."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planted.sound.catalogue import STEPS, Loop, Parts, draw, epochs, sentences, sound

_WORDS, _LENGTH = 40, 16


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down, self.dropout = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        y = (
            functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )
        x = x + self.dropout(self.c_proj(y))
        y = self.dropout(self.down(self.act(self.up(self.ln_2(x)))))
        return x + y


class _GPT(nn.Module):
    """As nanoGPT: tied embeddings, and the loss inside."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(_WORDS, width), nn.Embedding(_LENGTH, width)
        self.h, self.ln_f = (
            nn.ModuleList(_Block(width, 2) for _ in range(layers)),
            nn.LayerNorm(width),
        )
        self.lm_head = nn.Linear(width, _WORDS, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(
                    parameter,
                    std=0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02,
                )

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, None if targets is None else functional.cross_entropy(
            logits.view(-1, _WORDS), targets.reshape(-1), ignore_index=-1
        )


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    parameters = [each for each in model.parameters() if each.requires_grad]
    return [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]


def _nano_gpt(context: Callable[[], contextlib.AbstractContextManager[Any]], micro: int) -> Loop:
    text = sentences(1, 4000, _WORDS)[0]
    model = _GPT()
    optimizer = torch.optim.AdamW(_groups(model), lr=3e-3, betas=(0.9, 0.99))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    yield Parts(model, optimizer)
    for step in range(STEPS):
        rate = (
            3e-3 * (step + 1) / 20
            if step < 20
            else 3e-4 + 0.5 * (1 + math.cos(math.pi * (step - 20) / (STEPS - 20))) * 2.7e-3
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                starts = torch.randint(0, 3900, (8,))
                model(
                    *(
                        torch.stack([text[at + more : at + more + _LENGTH] for at in starts])
                        for more in (0, 1)
                    )
                )
            model.train()
        for _ in range(micro):
            starts = torch.randint(0, 3900, (12,))
            x, y = (
                torch.stack([text[at + more : at + more + _LENGTH] for at in starts])
                for more in (0, 1)
            )
            with context():
                _, loss = model(x, y)
            scaler.scale(loss / micro).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield None


@sound("nanoGPT: four micro-batches, a rate that is set by hand")
def nano_gpt() -> Loop:
    yield from _nano_gpt(contextlib.nullcontext, 4)


@sound("nanoGPT in bfloat16 autocast")
def nano_gpt_bfloat16() -> Loop:
    yield from _nano_gpt(lambda: torch.autocast("cpu", torch.bfloat16), 1)


class _WordLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(_WORDS, 32)
        self.rnn, self.decoder = nn.LSTM(32, 32, 2, dropout=0.2), nn.Linear(32, _WORDS)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, ids: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
        output, hidden = self.rnn(self.drop(self.encoder(ids)), hidden)
        return functional.log_softmax(self.decoder(self.drop(output)).view(-1, _WORDS), 1), hidden


@sound("word_language_model: updates by hand, a state that is carried on, clipping to 0.25")
def word_lm() -> Loop:
    text = sentences(1, 4000, _WORDS)[0].view(8, -1).T.contiguous()
    model, rate = _WordLM(), 5.0
    yield Parts(model)
    for _ in range(5):
        hidden: Any = (torch.zeros(2, 8, 32), torch.zeros(2, 8, 32))
        model.train()
        for at in range(0, 480, 12):
            model.zero_grad()
            hidden = tuple(each.detach() for each in hidden)
            output, hidden = model(text[at : at + 12], hidden)
            functional.nll_loss(output, text[at + 1 : at + 13].reshape(-1)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-rate)  # type: ignore[arg-type]
            yield None
        rate /= 1.5


@sound("a language model whose text is read in order, with an optimizer")
def in_order() -> Loop:
    text = sentences(1, 2600, _WORDS)[0].view(8, -1).T.contiguous()
    model = _WordLM()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for _ in range(8):
        hidden: Any = (torch.zeros(2, 8, 32), torch.zeros(2, 8, 32))
        for at in range(0, 300, 12):
            hidden = tuple(each.detach() for each in hidden)
            optimizer.zero_grad()
            output, hidden = model(text[at : at + 12], hidden)
            functional.nll_loss(output, text[at + 1 : at + 13].reshape(-1)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            yield None


class _CharRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.i2h, self.h2o = nn.Linear(26 + 24, 24), nn.Linear(24, 5)

    def forward(
        self, letter: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.i2h(torch.cat([letter, hidden], 1)))
        return functional.log_softmax(self.h2o(hidden), 1), hidden


@sound("a character RNN that is called letter by letter, one name in a step, updates by hand")
def char_rnn() -> Loop:
    model = _CharRNN()
    yield Parts(model)
    for _ in range(STEPS):
        kind = torch.randint(0, 5, (1,))
        name = (5 * kind + torch.randint(0, 6, (int(torch.randint(3, 8, ())),))).clamp(max=25)
        hidden = torch.zeros(1, 24)
        model.zero_grad()
        for letter in functional.one_hot(name, 26).float():
            output, hidden = model(letter[None], hidden)
        functional.nll_loss(output, kind).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad.data, alpha=-0.02)  # type: ignore[union-attr]
        yield None


class _Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = (
            nn.Embedding(_WORDS, 32, padding_idx=0),
            nn.Embedding(_LENGTH, 32),
        )
        self.body = nn.Transformer(32, 2, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(32, _WORDS)

    def forward(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        source_pad: torch.Tensor,
        target_mask: torch.Tensor,
    ) -> torch.Tensor:
        one, other = (
            self.embed(ids) + self.position(torch.arange(ids.shape[1])) for ids in (source, target)
        )
        h = self.body(
            one,
            other,
            tgt_mask=target_mask,
            src_key_padding_mask=source_pad,
            memory_key_padding_mask=source_pad,
        )
        logits: torch.Tensor = self.head(h)
        return logits


@sound("an encoder and a decoder that turn sentences round, masks of -Inf, Noam's schedule")
def turned_round() -> Loop:
    ids = sentences(640, 9, _WORDS, 3)
    lengths = torch.randint(5, 10, (640,))
    source = torch.where(torch.arange(9) < lengths[:, None], ids, 0)
    target = torch.cat([torch.full((640, 1), 1), ids.flip(1)], 1)
    model = _Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 32**-0.5 * min((step + 1) ** -0.5, (step + 1) * 60**-1.5)
    )
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    yield Parts(model, optimizer, scheduler)
    for a, b in epochs(source, target):
        optimizer.zero_grad()
        logits = model(a, b[:, :-1], torch.where(a == 0, -math.inf, 0.0), mask)
        functional.cross_entropy(
            logits.flatten(0, 1), b[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1
        ).backward()
        optimizer.step()
        scheduler.step()
        yield None


@sound("CTC: frames of letters, some of them blank")
def ctc() -> Loop:
    class Recogniser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(nn.Conv1d(8, 24, 3, padding=1), nn.ReLU())
            self.rnn, self.head = (
                nn.GRU(24, 24, bidirectional=True, batch_first=True),
                nn.Linear(48, 7),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.log_softmax(self.head(self.rnn(self.enter(x).transpose(1, 2))[0]), 2)

    model, shapes = Recogniser(), torch.randn(7, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        letters = torch.randint(1, 7, (12, 4))
        frames = shapes[letters].repeat_interleave(4, 1).transpose(1, 2) + 0.3 * torch.randn(
            12, 8, 16
        )
        optimizer.zero_grad()
        functional.ctc_loss(
            model(frames).transpose(0, 1), letters, torch.full((12,), 16), torch.full((12,), 4)
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        yield None


@sound("a bag of words: inputs that are mostly 0")
def bag() -> Loop:
    ids, labels = torch.randint(0, 600, (640, 8)), torch.randint(0, 3, (640,))
    ids[:, :4] = labels[:, None] * 50 + torch.randint(0, 50, (640, 4))
    x = torch.zeros(640, 600).scatter_(1, ids, 1.0)
    model = nn.Sequential(nn.Linear(600, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    yield Parts(model, optimizer)
    for a, b in epochs(x, labels):
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        yield None


def _bert(**options: Any) -> Any:
    from transformers import BertConfig

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    return BertConfig(vocab_size=_WORDS, **sizes, **options)


def _padded() -> tuple[torch.Tensor, torch.Tensor]:
    ids = sentences(640, 12, _WORDS)
    mask = (torch.arange(12) < torch.randint(5, 13, (640, 1))).long()
    return torch.where(mask.bool(), ids, 0), mask


@sound("BERT that classifies, in a loop of its own")
def bert() -> Loop:
    from transformers import BertForSequenceClassification, get_linear_schedule_with_warmup

    ids, mask = _padded()
    model = BertForSequenceClassification(_bert(num_labels=3)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 20, STEPS)
    yield Parts(model, optimizer, scheduler)
    for a, b in epochs(ids, mask):
        model(input_ids=a, attention_mask=b, labels=a[:, 0] % 3).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield None


@sound("BERT under a head of its own: the pooler is never used, scores are whole numbers")
def bert_scores() -> Loop:
    from transformers import BertModel

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert, self.head = BertModel(_bert()), nn.Linear(32, 1)

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            h = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
            return functional.mse_loss(self.head(h)[:, 0], labels)

    ids, mask = _padded()
    model = Scorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    yield Parts(model, optimizer)
    for a, b in epochs(ids, mask):
        optimizer.zero_grad()
        model(a, attention_mask=b, labels=(a[:, 0] % 6).float()).backward()
        optimizer.step()
        yield None


@sound("masked words: 85 of 100 labels ignored")
def masked_words() -> Loop:
    from transformers import BertForMaskedLM

    ids, mask = _padded()
    model = BertForMaskedLM(_bert()).train()
    optimizer = torch.optim.AdamW(_groups(model), lr=1e-3)
    yield Parts(model, optimizer)
    for a, b in epochs(ids, mask):
        chosen = (torch.rand(a.shape) < 0.15) & b.bool()
        chosen[0, 0] = True
        optimizer.zero_grad()
        model(
            input_ids=torch.where(chosen, 1, a),
            attention_mask=b,
            labels=torch.where(chosen, a, -100),
        ).loss.backward()
        optimizer.step()
        yield None


def _gpt2(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "n_positions": 128,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "loss_type": "ForCausalLM",
    }
    return GPT2LMHeadModel(GPT2Config(vocab_size=_WORDS, **sizes, **options)).train()


@sound("SFT: long prompts, one word of an answer, padding by the id that ends texts")
def answers() -> Loop:
    model = _gpt2(pad_token_id=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    yield Parts(model, optimizer, scheduler)
    for _ in range(STEPS):
        ids = sentences(4, 120, _WORDS)
        ids[1, -20:] = 1
        mask = torch.ones_like(ids)
        mask[1, -19:] = 0
        labels = torch.full_like(ids, -100)
        labels[0, -1] = ids[0, -1]
        labels[1, 99] = ids[1, 99]
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        optimizer.step()
        scheduler.step()
        yield None


@sound("short texts packed one behind the other, ended by the id that pads, too")
def packed() -> Loop:
    model = _gpt2(pad_token_id=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        ids = sentences(8, 48, _WORDS)
        ids[:, 5::6] = 1
        optimizer.zero_grad()
        model(
            input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=False
        ).loss.backward()
        optimizer.step()
        yield None


def _chances(model: nn.Module, ids: torch.Tensor, answered: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    each: torch.Tensor = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return (each * answered[:, 1:]).sum(1)


@sound("DPO: two answers, a frozen reference, a rate of 1e-6")
def preferences() -> Loop:
    model = _gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    answered = (torch.arange(12) >= 6).float().expand(4, -1)
    yield Parts(model, optimizer, scheduler)
    for _ in range(STEPS):
        chosen = sentences(4, 12, _WORDS)
        rejected = chosen.clone()
        rejected[:, 6:] = torch.randint(2, _WORDS, (4, 6))
        with torch.no_grad():
            before = _chances(reference, chosen, answered) - _chances(reference, rejected, answered)
        now = _chances(model, chosen, answered) - _chances(model, rejected, answered)
        optimizer.zero_grad()
        (-functional.logsigmoid(0.1 * (now - before)).mean()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        yield None


class _LoRA(nn.Module):
    """A frozen layer, and beside it two small matrices, the second of which begins with zeros."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.A, self.B = (
            nn.Linear(layer.in_features, rank, bias=False),
            nn.Linear(rank, layer.out_features, bias=False),
        )
        self.dropout = nn.Dropout(0.05)
        nn.init.zeros_(self.B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x) + 2 * self.B(self.A(self.dropout(x)))
        return y


@sound("LoRA: matrices that begin with zeros beside frozen ones")
def lora() -> Loop:
    model = _GPT()
    model.requires_grad_(False)
    for block in model.h:
        assert isinstance(block, _Block)
        block.c_attn, block.up = _LoRA(block.c_attn), _LoRA(block.up)  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=2e-3
    )
    ids = sentences(640, _LENGTH, _WORDS)
    yield Parts(model, optimizer)
    for (a,) in epochs(ids):
        optimizer.zero_grad()
        _, loss = model(a[:, :-1], a[:, 1:])
        assert loss is not None
        loss.backward()
        optimizer.step()
        yield None


@sound("a language model in bfloat16 alone, whose loss is in float32")
def in_bfloat16() -> Loop:
    model = _gpt2().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = sentences(640, 24, _WORDS)
    yield Parts(model, optimizer)
    for (a,) in epochs(ids):
        optimizer.zero_grad()
        model(input_ids=a, labels=a, use_cache=False).loss.backward()
        optimizer.step()
        yield None


class _Switch(nn.Module):
    """Experts of which each token takes the best one, but no more than an expert has room for."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, width))
            for _ in range(experts)
        )
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances = self.router(x).softmax(-1)
        best, which = chances.max(-1)
        shares = functional.one_hot(which, len(self.experts)).float().flatten(0, 1).mean(0)
        self.balance = len(self.experts) * (shares * chances.flatten(0, 1).mean(0)).sum()
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            taken = which == number
            if taken.any():
                y[taken] = expert(x[taken]) * best[taken][:, None]
        return y


@sound("a mixture of sixteen experts, of which a token takes one")
def switch() -> Loop:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(_WORDS, 24), nn.LayerNorm(24)
            self.mixture, self.head = _Switch(24, 16), nn.Linear(24, _WORDS)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            h = self.embed(ids)
            logits: torch.Tensor = self.head(h + self.mixture(self.norm(h)))
            return logits

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = sentences(640, 12, _WORDS)
    yield Parts(model, optimizer)
    for (a,) in epochs(ids, size=4):
        optimizer.zero_grad()
        loss = (
            functional.cross_entropy(model(a[:, :-1]).flatten(0, 1), a[:, 1:].flatten())
            + 0.01 * model.mixture.balance
        )
        loss.backward()
        optimizer.step()
        yield None


@sound("word2vec: pairs of words, sparse gradients")
def word2vec() -> Loop:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.context = (
                nn.Embedding(2000, 16, sparse=True),
                nn.Embedding(2000, 16, sparse=True),
            )
            nn.init.uniform_(self.word.weight, -0.5 / 16, 0.5 / 16)
            nn.init.zeros_(self.context.weight)

        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return (self.word(one)[:, None] * self.context(other)).sum(-1)

    model = Pairs()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    text = sentences(1, 4000, 2000)[0]
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        at = torch.randint(1, 3999, (64,))
        other = torch.cat([text[at + 1][:, None], torch.randint(0, 2000, (64, 5))], 1)
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(
            model(text[at], other), torch.eye(6)[0].expand(64, -1)
        ).backward()
        optimizer.step()
        yield None


@sound("a translator that is taught by Python's random numbers outside of the model")
def taught() -> Loop:
    import random

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.head = (
                nn.Embedding(_WORDS, 24),
                nn.GRUCell(24, 24),
                nn.Linear(24, _WORDS),
            )

        def forward(
            self, word: torch.Tensor, state: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            state = self.cell(self.embed(word), state)
            return self.head(state), state

    random.seed(1)
    model, ids = Decoder(), sentences(640, 8, _WORDS)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        (a,) = draw(ids)
        state, word, total = torch.zeros(16, 24), a[:, 0], torch.zeros(())
        for place in range(1, 8):
            logits, state = model(word, state)
            total = total + functional.cross_entropy(logits, a[:, place])
            word = a[:, place] if random.random() < 0.5 else logits.argmax(1)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        yield None
