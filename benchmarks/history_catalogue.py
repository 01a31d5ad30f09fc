"""Real bugs of public libraries: the two releases, what was wrong, and where, as the fix has it;
and changes that are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.history_environments import Environment, beside, transformers

CASES = Path(__file__).resolve().parent / "history_cases"


@dataclass(frozen=True)
class Bug:
    """A bug that one release has and another has not.

    Attributes:
        name: of its case, ``history_cases/NAME.py``.
        right, wrong: the environments without and with the bug.
        what: what was wrong, in one line.
        fix: where it was mended.
        places: globs of the modules that may be named, decided from the fix's diff; any of them is
            right.
        maps: ``--map`` options, golden's name first, where the wrong release has other names.
        stages: the parts of a step that may be named, as ``Stage`` has them; any if it is empty.
        step: the first step in which the two releases differ, by plain torch; ``None`` if there is
            but one.
    """

    name: str
    right: Environment
    wrong: Environment
    what: str
    fix: str
    places: tuple[str, ...]
    maps: tuple[str, ...] = field(default=())
    stages: tuple[str, ...] = field(default=())
    step: int | None = None

    @property
    def environments(self) -> tuple[Environment, Environment]:
        """Golden's and the candidate's."""
        return self.right, self.wrong

    def is_at(self, found: Found) -> bool:
        """Whether what was named is where the bug is, in the right part of the right step."""
        there = any(fnmatchcase(found.module, place) for place in self.places)
        in_part = not self.stages or found.stage in self.stages
        return there and in_part and (self.step is None or found.step == self.step)

    @property
    def case(self) -> Path:
        return CASES / f"{self.name}.py"

    def targets(self) -> tuple[str, str]:
        """Golden's case and the candidate's."""
        return str(self.case), str(self.case)


@dataclass(frozen=True)
class Refactor:
    """Two ways to compute the same: releases without a bug between them, or two models of one
    release. Both must be cleared.

    Attributes:
        name: of its case, ``history_cases/NAME.py``.
        right, other: the environments; golden is made in the first.
        what: what is written otherwise, in one line.
        functions: the functions that build the case for golden and for the candidate.
        maps: as of a ``Bug``.
    """

    name: str
    right: Environment
    other: Environment
    what: str
    functions: tuple[str, str] = ("case", "case")
    maps: tuple[str, ...] = field(default=())

    @property
    def environments(self) -> tuple[Environment, Environment]:
        """Golden's and the candidate's."""
        return self.right, self.other

    @property
    def case(self) -> Path:
        return CASES / f"{self.name}.py"

    def targets(self) -> tuple[str, str]:
        """Golden's case and the candidate's."""
        golden, candidate = (f"{self.case}:{function}" for function in self.functions)
        return golden, candidate


@dataclass(frozen=True)
class Found:
    """What a comparison names first: a module (empty if none), and the part of a step and the step,
    where it tells them.
    """

    module: str
    stage: str = ""
    step: int | None = None

    def __str__(self) -> str:
        return ", ".join(
            [
                self.module,
                *filter(None, [self.stage]),
                *([] if self.step is None else [f"step {self.step}"]),
            ]
        )


_PEFT = ("accelerate==1.11.0", "psutil==7.2.2")
_DIFFUSERS = ("pillow==13.0.0", "importlib_metadata==10.2.0", "zipp==4.1.2")
_EINOPS = (
    "einops==0.8.1",
    "einx==0.3.0",
    "frozendict==2.5.1",
    "loguru==0.7.3",
    "torch-einops-utils==0.2.0",
)

#: This environment itself, in a folder as the others.
_HERE = Environment("this", ())


def _vq(version: str) -> Environment:
    return Environment(
        f"vector-quantize-pytorch-{version}", (f"vector-quantize-pytorch=={version}", *_EINOPS)
    )


def _optimizers(version: str) -> Environment:
    return Environment(f"pytorch_optimizer-{version}", (f"pytorch_optimizer=={version}",))


def _timm(version: str) -> Environment:
    return Environment(f"timm-{version}", (f"timm=={version}", "pillow==13.0.0"))


BUGS = [
    Bug(
        name="mamba2",
        right=transformers("4.52.1"),
        wrong=transformers("4.51.3"),
        what=(
            "Mamba2 with several groups: B and C are repeated in the wrong order, in the mixer's"
            " own code"
        ),
        fix="transformers PR 37533",
        places=("layers.*.mixer",),
    ),
    Bug(
        name="peft_embed_scale",
        right=beside("peft", "0.18.0", transformers("4.57.1"), *_PEFT),
        wrong=beside("peft", "0.17.1", transformers("4.57.1"), *_PEFT),
        what="LoRA on Gemma 3's embedding: the adapter's part is not scaled as the embedding is",
        fix="peft PR 2825",
        places=("*embed_tokens",),
    ),
    Bug(
        name="llama_rope_theta",
        right=transformers("5.4.0"),
        wrong=transformers("4.57.1"),
        what="a Llama config of v5 read by v4: rope_theta is 10000, not 500000",
        fix="transformers v5, rope_parameters",
        places=("*rotary_emb",),
    ),
    Bug(
        name="mistral3_eps",
        right=transformers("4.52.1"),
        wrong=transformers("4.51.3"),
        what=(
            "Mistral 3: the projector's norm has its own eps, not the config's; modules have other"
            " names"
        ),
        fix="transformers PR 38026",
        places=("*multi_modal_projector.norm",),
        maps=(
            "model.language_model.*=language_model.model.*",
            "lm_head=language_model.lm_head",
            "model.*=*",
        ),
    ),
    Bug(
        name="gemma2_softcap",
        right=transformers("4.42.4"),
        wrong=transformers("4.42.0"),
        what=(
            "Gemma 2, eager: attention scores are not soft-capped, and the sliding window is on the"
            " odd layers, not the even"
        ),
        fix="transformers 4.42.1 and 4.42.2",
        places=("*layers.?", "*layers.?.self_attn"),
    ),
    Bug(
        name="roformer_rope",
        right=transformers("4.54.1"),
        wrong=transformers("4.54.0"),
        what="RoFormer: queries and keys of self-attention are not rotated, positions are ignored",
        fix="transformers 4.54.1",
        places=("*encoder.layer.*.attention.self",),
    ),
    Bug(
        name="gpt_bigcode_scale",
        right=transformers("4.55.4"),
        wrong=transformers("4.55.0"),
        what=(
            "GPT BigCode: attention scores are multiplied by the root of the head's size, not"
            " divided by it"
        ),
        fix="transformers 4.55.1",
        places=("*.h.*.attn",),
    ),
    Bug(
        name="llama4_router",
        right=transformers("4.56.2"),
        wrong=transformers("4.56.0"),
        what="Llama 4: what goes into the experts is weighted by the scores of other tokens",
        fix="transformers 4.56.1",
        places=("*.feed_forward",),
    ),
    Bug(
        name="llama4_qk_eps",
        right=transformers("4.51.3"),
        wrong=transformers("4.51.0"),
        what="Llama 4: the norm of queries and keys has its own eps, 1e-6, not the config's 1e-5",
        fix="transformers 4.51.1",
        places=("*.self_attn.qk_norm",),
    ),
    Bug(
        name="gemma3n_altup",
        right=transformers("4.53.3"),
        wrong=transformers("4.53.0"),
        what=(
            "Gemma 3n: the eps below the magnitude of the embeddings' copies is the smallest float,"
            " not 1e-5"
        ),
        fix="transformers 4.53.1",
        places=("model",),
    ),
    Bug(
        name="peft_rslora",
        right=beside("peft", "0.18.0", transformers("4.57.1"), *_PEFT),
        wrong=beside("peft", "0.17.1", transformers("4.57.1"), *_PEFT),
        what="LoRA with rank stabilisation: set_scale takes alpha / r, not alpha / sqrt(r)",
        fix="peft 0.18.0",
        places=("*.v_proj",),
    ),
    Bug(
        name="diffusers_sd3_control",
        right=beside("diffusers", "0.32.0", transformers("4.49.0"), *_DIFFUSERS),
        wrong=beside("diffusers", "0.31.0", transformers("4.49.0"), *_DIFFUSERS),
        what=(
            "Stable Diffusion 3: what the control net adds is added behind other blocks, where"
            " their number is no multiple of it"
        ),
        fix="diffusers 0.32.0",
        places=("(root)",),
    ),
    Bug(
        name="x_transformers_qk_scale",
        right=Environment("x-transformers-2.25.5", ("x-transformers==2.25.5", *_EINOPS)),
        wrong=Environment("x-transformers-2.25.4", ("x-transformers==2.25.4", *_EINOPS)),
        what="x-transformers: the learned scales of normalised queries and keys are not applied",
        fix="x-transformers issue 352",
        places=("attn_layers.layers.[024].1",),
    ),
    Bug(
        name="optimizer_adopt",
        right=_optimizers("3.4.1"),
        wrong=_optimizers("3.4.0"),
        what=(
            "ADOPT divides by a second moment that the step's own gradient is already in; forward,"
            " the modules it trains show it"
        ),
        fix="pytorch_optimizer PR 347",
        places=("0", "2"),
        stages=("update",),
        step=1,
    ),
    Bug(
        name="vq_codebook",
        right=_vq("0.10.14"),
        wrong=_vq("0.10.12"),
        what=(
            "VectorQuantize: the codebook's running sums, of which the codebook is made, are never"
            " updated"
        ),
        fix="vector-quantize-pytorch 0.10.14",
        places=("quantize._codebook",),
        step=0,
    ),
    Bug(
        name="vq_learnable",
        right=_vq("1.6.26"),
        wrong=_vq("1.6.12"),
        what=(
            "VectorQuantize with a codebook that learns: it is detached where its loss is taken,"
            " and has no gradient"
        ),
        fix="vector-quantize-pytorch issue 47",
        places=("quantize", "quantize._codebook"),
        stages=("loss", "backward", "update"),
        step=0,
    ),
    Bug(
        name="optimizer_qhadam",
        right=_optimizers("4.0.0"),
        wrong=_optimizers("3.11.0"),
        what="QHAdam: both running averages are weighted wrongly, and the second is one too much",
        fix="pytorch_optimizer 4.0.0",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="optimizer_diffgrad",
        right=_optimizers("4.0.0"),
        wrong=_optimizers("3.11.0"),
        what=(
            "diffGrad: the step is not corrected for the second moment's bias, and its friction is"
            " computed and not used"
        ),
        fix="pytorch_optimizer 4.0.0",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="optimizer_adams",
        right=_optimizers("4.0.0"),
        wrong=_optimizers("3.11.0"),
        what=(
            "AdamS: the second moment is corrected for its bias in place, so that the next step"
            " starts from the corrected one"
        ),
        fix="pytorch_optimizer 4.0.0",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="optimizer_schedulefree_radam",
        right=_optimizers("3.5.0"),
        wrong=_optimizers("3.4.2"),
        what=(
            "Schedule-free RAdam: the second moment is corrected by another power than its own,"
            " once it is used"
        ),
        fix="pytorch_optimizer PR 354",
        places=("0", "2"),
        stages=("update",),
        step=4,
    ),
    Bug(
        name="optimizer_adamg",
        right=_optimizers("3.3.1"),
        wrong=_optimizers("3.3.0"),
        what=(
            "AdamG: one minus beta to the step is taken from one again in both corrections of a"
            " bias"
        ),
        fix="pytorch_optimizer PR 308",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="optimizer_came",
        right=Environment("came-pytorch-0.1.3", ("came-pytorch==0.1.3",)),
        wrong=Environment("came-pytorch-0.1.2", ("came-pytorch==0.1.2",)),
        what=(
            "CAME: the update of a bias is its momentum itself, which the learning rate then is"
            " multiplied into"
        ),
        fix="came-pytorch 0.1.3",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="schedulefree_adamw",
        right=Environment("schedulefree-1.3", ("schedulefree==1.3",)),
        wrong=Environment("schedulefree-1.2.7", ("schedulefree==1.2.7",)),
        what=(
            "schedule-free AdamW: the correction of a bias is part of the rate, and so of decay and"
            " of the average's weights"
        ),
        fix="schedulefree 1.3",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="timm_adafactor_bv",
        right=_timm("1.0.30"),
        wrong=_timm("1.0.29"),
        what=(
            "big vision's Adafactor: updates below the threshold are raised to it, and those above"
            " are not clipped"
        ),
        fix="timm 1.0.30",
        places=("0", "2"),
        stages=("update",),
        step=0,
    ),
    Bug(
        name="timm_schedule_noise",
        right=_timm("1.0.31"),
        wrong=_timm("1.0.30"),
        what=(
            "timm's schedules: the noise of the rate has a deviation of one, not the one that was"
            " asked for"
        ),
        fix="timm 1.0.31",
        places=("(root)", "0", "2"),
        stages=("update",),
        step=2,
    ),
    Bug(
        name="timm_gcvit",
        right=_timm("1.0.31"),
        wrong=_timm("1.0.30"),
        what=(
            "GCViT: with several pictures, the windows of one meet the queries that were made of"
            " another"
        ),
        fix="timm 1.0.31",
        places=("stages.*.blocks.1.attn",),
    ),
    Bug(
        name="loss_bi_tempered",
        right=_optimizers("4.0.0"),
        wrong=_optimizers("3.11.0"),
        what=(
            "the bi-tempered logistic loss is divided by the number of all labels, also of those to"
            " be ignored"
        ),
        fix="pytorch_optimizer 4.0.0",
        places=("*",),
        stages=("loss",),
        step=0,
    ),
]

REFACTORS = [
    Refactor(
        "refactor_bert",
        transformers("4.57.1"),
        transformers("5.4.0"),
        "BERT, its outputs and flags told otherwise",
    ),
    Refactor(
        "refactor_bert_training",
        transformers("4.57.1"),
        transformers("5.4.0"),
        "BERT's training, the same",
    ),
    Refactor(
        "refactor_x_transformers",
        Environment("x-transformers-1.37.9", ("x-transformers==1.37.9", *_EINOPS)),
        Environment("x-transformers-1.42.28", ("x-transformers==1.42.28", *_EINOPS)),
        "x-transformers' decoder, with more that it returns",
    ),
    Refactor(
        "refactor_attention",
        transformers("5.4.0"),
        transformers("5.4.0"),
        "GPT-2's attention, and torch's, which returns no weights",
        ("eager", "sdpa"),
    ),
    Refactor(
        "refactor_sew",
        transformers("4.57.1"),
        transformers("5.4.0"),
        "SEW, its outputs and flags told otherwise",
    ),
    Refactor(
        "refactor_t5",
        transformers("4.57.1"),
        transformers("5.4.0"),
        "T5, whose modules share one embedding",
    ),
    Refactor(
        "refactor_tied", _HERE, _HERE, "a tied weight under one name, and under two", ("one", "two")
    ),
    Refactor(
        "refactor_layer_norm",
        _HERE,
        _HERE,
        "LayerNorm, and one that is written out",
        ("library", "written"),
    ),
    Refactor(
        "refactor_qkv",
        _HERE,
        _HERE,
        "queries, keys and values of one linear layer, and of three",
        ("fused", "split"),
    ),
    Refactor(
        "refactor_channels_last",
        _HERE,
        _HERE,
        "the training of a CNN, its pictures laid out otherwise",
        ("contiguous", "channels_last"),
    ),
    Refactor(
        "refactor_einops",
        Environment("einops-0.7.0", ("einops==0.7.0",)),
        Environment("einops-0.8.1", ("einops==0.8.1",)),
        "einops' layers of another release",
    ),
    Refactor(
        "refactor_lion",
        _optimizers("3.11.0"),
        _optimizers("4.0.0"),
        "Lion, whose averages are made by lerp",
    ),
    Refactor(
        "refactor_timm_adamw",
        _timm("1.0.30"),
        _timm("1.0.31"),
        "timm's AdamW, whose sums are in another order",
    ),
    Refactor(
        "refactor_foreach",
        _HERE,
        _HERE,
        "torch's AdamW, one parameter after the other, and all at once",
        ("each", "at_once"),
    ),
    Refactor(
        "refactor_lightning",
        Environment("lightning-2.5.5", ("lightning==2.5.5",)),
        Environment("lightning-2.5.4", ("lightning==2.5.4",)),
        "a training under autocast, which keeps the weights that it has cast, and which does not",
    ),
]
