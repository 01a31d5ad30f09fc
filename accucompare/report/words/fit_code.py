"""The code that keeps modules in float32, to be pasted or imported."""

from __future__ import annotations

from importlib.resources import files

from accucompare.compare.fits import Fit, Switched
from accucompare.report.words import fit_words


def fit_code(found: Fit) -> str:
    """A Python file: the code that the proof ran, and the places."""
    source = files("accucompare").joinpath("fitting/kept_in_float32.py").read_text("utf-8")
    body = source.partition('"""\n\n')[2]
    dtype = f"torch.{found.dtype}"
    strict = [f"{_as_regex(glob)}[.]" for glob in found.kept.whole]
    strict += [f"{_as_regex(glob)}[.][^.]+$" if glob else "^[^.]+$" for glob in found.kept.own]
    return "\n".join(
        [
            f"# {fit_words.fit_headline(found)}",
            f"# Made by accucompare fit for {found.case} on {found.device}. In place of"
            f" model.to({dtype}):",
            "#     model = fitted(model)      # a model in float32",
            "# Under autocast, with the weights in float32:",
            f"#     model = fitted(model, autocast={found.device.partition(':')[0]!r})",
            "# transformers: a checkpoint that is loaded in the lower type is to keep these"
            " weights exact:",
            "#     Model._keep_in_fp32_modules_strict = KEEP_IN_FP32_MODULES",
            f"#     model = fitted(Model.from_pretrained(…, dtype={dtype}))",
            *_flags(found),
            "",
            body.rstrip(),
            "",
            "",
            f"WHOLE = {_listed(found.kept.whole)}",
            f"OWN = {_listed(found.kept.own)}",
            f"KEEP_IN_FP32_MODULES = {_listed(strict)}",
            "",
            "",
            'def fitted(model: nn.Module, autocast: str = "") -> nn.Module:',
            f"    return keep_in_float32(model, {dtype}, WHOLE, OWN, autocast)",
            "",
        ]
    )


def _as_regex(glob: str) -> str:
    """As transformers searches for it: ``*`` would go over dots."""
    return glob.replace(".", "[.]").replace("*", "[^.]+")


_NO_HF32 = ("torch.npu.matmul.allow_hf32 = False", "torch.npu.conv.allow_hf32 = False")
_NO_TF32 = (
    "torch.backends.cuda.matmul.allow_tf32 = False",
    "torch.backends.cudnn.allow_tf32 = False",
)
_SWITCHES = {
    Switched.NO_HF32: _NO_HF32,
    Switched.NO_TF32: _NO_TF32,
    Switched.WIDE_SUMS: (
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
    ),
    Switched.PLAIN_ATTENTION: (
        "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):",
        "    …",
    ),
}


def _flags(found: Fit) -> list[str]:
    """What the device was told in the proof; for half types, not to round float32 either."""
    usual = {"npu": _NO_HF32, "cuda": _NO_TF32}.get(found.device.partition(":")[0], ())
    lines = [] if found.dtype == "float32" else [*usual]
    lines += [line for switch in found.proof.switches for line in _SWITCHES[switch]]
    return ["# With these flags:", *(f"#     {line}" for line in lines)] if lines else []


def _listed(names: tuple[str, ...] | list[str]) -> str:
    if not names:
        return "()"
    return "\n".join(["(", *(f"    {name!r}," for name in names), ")"])
