"""Real bugs of public libraries: the two releases, what was wrong, and where, as the fix has it."""

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
        places: globs of the modules that may be named, decided from the fix's diff; any of them is right.
        maps: ``--map`` options, golden's name first, where the wrong release has other names.
    """

    name: str
    right: Environment
    wrong: Environment
    what: str
    fix: str
    places: tuple[str, ...]
    maps: tuple[str, ...] = field(default=())

    @property
    def case(self) -> Path:
        return CASES / f"{self.name}.py"

    def is_at(self, module: str) -> bool:
        """Whether a module that was named is where the bug is."""
        return any(fnmatchcase(module, place) for place in self.places)


_PEFT = ("accelerate==1.11.0", "psutil==7.2.2")
_DIFFUSERS = ("pillow==13.0.0", "importlib_metadata==10.2.0", "zipp==4.1.2")
_EINOPS = ("einops==0.8.1", "einx==0.3.0", "frozendict==2.5.1", "loguru==0.7.3", "torch-einops-utils==0.2.0")

BUGS = [
    Bug(
        name="mamba2",
        right=transformers("4.52.1"),
        wrong=transformers("4.51.3"),
        what="Mamba2 with several groups: B and C are repeated in the wrong order, in the mixer's own code",
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
        what="Mistral 3: the projector's norm has its own eps, not the config's; modules have other names",
        fix="transformers PR 38026",
        places=("*multi_modal_projector.norm",),
        maps=("model.language_model.*=language_model.model.*", "lm_head=language_model.lm_head", "model.*=*"),
    ),
    Bug(
        name="gemma2_softcap",
        right=transformers("4.42.4"),
        wrong=transformers("4.42.0"),
        what="Gemma 2, eager: attention scores are not soft-capped, and the sliding window is on the odd layers, not the even",
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
        what="GPT BigCode: attention scores are multiplied by the root of the head's size, not divided by it",
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
        what="Gemma 3n: the eps below the magnitude of the embeddings' copies is the smallest float, not 1e-5",
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
        what="Stable Diffusion 3: what the control net adds is added behind other blocks, where their number is no multiple of it",
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
        right=Environment("pytorch_optimizer-3.4.1", ("pytorch_optimizer==3.4.1",)),
        wrong=Environment("pytorch_optimizer-3.4.0", ("pytorch_optimizer==3.4.0",)),
        what="ADOPT divides by a second moment that the step's own gradient is already in; forward, the modules it trains show it",
        fix="pytorch_optimizer PR 347",
        places=("0", "2"),
    ),
]
