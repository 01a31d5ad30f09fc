"""Group ``fused``: models as serving engines write them, against transformers', each fed and with a
baseline of golden's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import accucompare as ac
from benchmarks.computed import ComputedTrial, Outcome
from planted import serving_models, serving_variants
from planted.serving_models import LAYOUTS, Faults

_DTYPES = ("float32", "bfloat16")
#: How far off the logits are at least, in roundings of the type, for a fault to be visible.
_VISIBLE = 8


class Way(NamedTuple):
    """A model in two ways: golden's, and the other one, with a fault or without."""

    golden: Callable[[], nn.Module]
    own: Callable[[str], nn.Module]
    faults: dict[str, str]  # by name: the place that must be named


@cache
def _ways() -> dict[str, Way]:
    attention, mlp, layer = (f"model.layers.1{each}" for each in (".self_attn", ".mlp", ""))
    llama = {
        "k_v_swapped": attention,
        "head_interleave": attention,
        "rotary_gptj": attention,
        "rotary_base": attention,
        "scale": attention,
        "kv_repeat": attention,
        "positions": attention,
        "v_turned": attention,
        "mask": attention,
        "head_order": attention,
        "loaded_v_k": attention,
        "gate_up_swapped": mlp,
        "loaded_up_gate": mlp,
        "residual_twice": layer,
        "residual_lost": layer,
        "residual_doubled": layer,
        "mlp_scaled": layer,
        "norm_eps": f"{layer}.post_attention_layernorm",
        "head_not_tied": "lm_head",
        "embedding_scaled": "model",
        "last_residual": "model",
    }
    some = {name: llama[name] for name in ("k_v_swapped", "kv_repeat", "loaded_v_k", "scale")}
    block = "transformer.h.1"
    gpt2 = {
        "q_k_swapped": f"{block}.attn",
        "heads_first": f"{block}.attn",
        "scale_by_layer": f"{block}.attn",
        "exact_gelu": f"{block}.mlp",
        "mlp_times": f"{block}.mlp",
        "norm_eps": f"{block}.ln_2",
        "normed_residual": block,
        "positions": "transformer",
        "bias_of_k": f"{block}.attn.c_attn",
    }
    experts = {"gate_up_swapped": "", "other_down": "", "shares_twice": ""}
    biased = {"attention_bias": True}
    alone = {"num_key_value_heads": 6, "tie_word_embeddings": False}
    return {
        "llama": Way(serving_models.trained, _serving(LAYOUTS[0]), llama),
        "llama by head": Way(serving_models.trained, _serving(LAYOUTS[1]), some),
        "llama by group": Way(serving_models.trained, _serving(LAYOUTS[2]), some),
        "llama with biases": Way(
            partial(serving_models.trained, **biased), _serving(LAYOUTS[0], **biased), some
        ),
        "llama without groups": Way(
            partial(serving_models.trained, **alone), _serving(LAYOUTS[2], **alone), {}
        ),
        "gpt2 apart": Way(serving_variants.gpt2, serving_variants.gpt2_apart, gpt2),
        "experts stacked": Way(
            lambda: serving_variants.Mixture(False).eval(),
            lambda fault: serving_variants.Mixture(True, fault).eval(),
            experts,
        ),
        "experts in a list": Way(
            lambda: serving_variants.Mixture(True).eval(),
            lambda fault: serving_variants.Mixture(False, fault).eval(),
            {"shares_twice": ""},
        ),
        "llama, golden fused": Way(
            lambda: serving_models.serving(LAYOUTS[2]), lambda fault: serving_models.trained(), {}
        ),
    }


def _serving(layout: str, **changes: Any) -> Callable[[str], nn.Module]:
    return lambda fault: serving_models.serving(layout, Faults(fault), **changes)


def trials() -> Iterator[ComputedTrial]:
    for name, way in _ways().items():
        for dtype in _DTYPES:
            for fault, place in way.faults.items():
                yield ComputedTrial(
                    f"{fault}: {name}, {dtype}",
                    partial(_try, name, dtype, fault),
                    partial(_names, place),
                )
            for fed in (True, False):
                yield ComputedTrial(
                    f"clean {name}, {dtype}{', fed' if fed else ''}",
                    partial(_try, name, dtype, "", fed=fed),
                )


def _names(place: str, outcome: Outcome) -> bool:
    return outcome.module == place


def _try(name: str, dtype: str, fault: str, folder: Path, fed: bool = True) -> Outcome:
    way, kind = _ways()[name], getattr(torch, dtype)
    golden = _captured(way.golden(), folder / "golden")
    feed = ac.FedWith(golden, force=True) if fed else None
    own = way.own(fault).to(kind)
    candidate = _captured(own, folder / "candidate", feed)
    precise = torch.float64 if dtype == "float32" else kind
    of_golden = ac.FedWith(golden, force=True) if fed else None
    baseline = _captured(way.golden().to(precise), folder / "baseline", of_golden)
    found = ac.diff(golden, candidate, baseline=baseline)
    return Outcome(
        found.exit_code,
        str(found),
        found.culprits[0].name if found.culprits else "nothing",
        visible=not fault or _differ(own, way.own("").to(kind)),
    )


def _captured(model: nn.Module, out: Path, feed: ac.FedWith | None = None) -> Path:
    with torch.no_grad(), ac.capture(model, out, seed=0, feed=feed):
        model(**serving_models.tokens())
    return out


def _differ(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models' logits differ by more than rounding."""
    with torch.no_grad():
        found = [model(**serving_models.tokens()) for model in (one, other)]
    ours, theirs = (each["logits"] if isinstance(each, dict) else each for each in found)
    apart = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    return bool(apart > _VISIBLE * torch.finfo(ours.dtype).eps)
