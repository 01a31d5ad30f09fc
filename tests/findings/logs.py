"""Logs of watches, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from accucompare.findings.log.events import (
    Alert,
    AlertKind,
    Cause,
    Direction,
    End,
    Ending,
    Event,
    Finding,
    Frame,
    Frames,
    ScaleChange,
    Site,
    Step,
    TensorRange,
    WatchStart,
)

NASTY = (
    "=1+1",
    "[bold red]x[/]",
    "[/]",
    "层1",
    "a/b",
    "@SUM(A1)",
    "-x",
    "a\nb\x1b[2J",
    ":smile:",
    "n" * 300,
    "{0}%s{name}",
)


def start(**more: Any) -> WatchStart:
    return WatchStart(
        **{
            "version": "0.1.0",
            "time": "2026-07-01T12:00:00Z",
            "rank": 0,
            "ranks": 1,
            "model": "Net",
            "parameters": 10,
            "device": "cpu",
            **more,
        }
    )


def seen(
    role: str = "input", path: str = "0", low: Any = -1.0, high: Any = 2.0, **more: Any
) -> TensorRange:
    return TensorRange(
        **{
            "role": role,
            "path": path,
            "dtype": "float32",
            "shape": (4, 8),
            "low": low,
            "high": high,
            **more,
        }
    )


def found(name: str = "fc1", **more: Any) -> Finding:
    """A finding: an origin in the forward of a module, of a NaN, from inputs that were finite."""
    usual = {
        "step": 0, "order": 5, "name": name, "call": 0, "type": "Linear", "site": Site.MODULE,
        "direction": Direction.FORWARD,
        "origin": True, "cause": Cause.INSIDE, "kinds": ["NaN"], "tensors": [seen(), seen("output",
        "", "nan", "nan", nan=3, inf=0)],
    }  # fmt: skip
    return Finding(**{**usual, **more})


def passed(name: str = "fc2", **more: Any) -> Finding:
    return found(name, **{"origin": False, "cause": Cause.INPUTS, "order": 6, **more})


def step(number: int, **more: Any) -> Step:
    return Step(**{"step": number, "finite": True, **more})


def end(steps: int = 1, watched: int | None = None, reason: str = "finished") -> End:
    return End(steps, steps if watched is None else watched, reason, Ending(reason))


def frames(*names: str, number: int = 0, traced: bool = False) -> Frames:
    return Frames(
        number,
        [
            Frame(
                order,
                name,
                0,
                "Linear",
                tensors=[
                    seen("weight", "weight", abs_min=0.001),
                    seen(),
                    seen("output", "", abs_min=0.5),
                ],
            )
            for order, name in enumerate(names)
        ],
        traced,
    )


def encoded(*events: Event) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def write(path: Path, *events: Event) -> Path:
    """A log with these events, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(*events))
    return path


def training(rank: int = 0, ranks: int = 2) -> list[Event]:
    """A run in float16 with everything that can be in a log: a log of a NaN, what it passed
    through, scale, norms, frames, warnings.
    """
    half = {"dtype": "float16", "shape": (2, 12, 1024, 1024)}
    log = found(
        "transformer.h.3.attn",
        step=3,
        order=41,
        type="GPT2Attention",
        site=Site.GLUE,
        near="before c_proj",
        operator="aten.bmm.default",
        line="model.py:57",
        kinds=["+Inf"],
        cause=Cause.NEAR,
        tensors=[
            seen(**half, low=-60000.0, high=61000.0),
            seen("output", "", **{**half, "low": -1.0, "high": "inf", "nan": 0, "inf": 7}),
        ],
        reproducer="step3-transformer.h.3.attn/reproduce.py",
    )
    events: list[Event] = [
        start(
            rank=rank, ranks=ranks, device=f"npu:{rank}", coordinates={"tp": rank, "pp": 0,
            "dp": 0}, case="model.py",
            options={"frames": 21, "level": "op", "trace_steps": [1]},
            environment={"torch": "2.6.0", "flags": {"hf32": False}},
        ),
        frames("transformer.wte", "transformer.h.0", number=1, traced=True),
    ]  # fmt: skip
    for number in range(3):
        events.append(
            step(
                number,
                grad_norm=1.0 + number / 10,
                scale=65536.0,
                loss=3.0 - number,
                largest=[("wte.weight", 0.8)],
            )
        )
    events += [
        Alert(
            AlertKind.NEAR,
            "transformer.h.2.mlp: |x| reaches 60000 of 65504 (float16)",
            2,
            "transformer.h.2.mlp",
            0,
            "GPT2MLP",
            6e4,
        ),
        log,
        *(
            passed(f"transformer.h.{block}.mlp", step=3, order=41 + block, type="GPT2MLP")
            for block in range(3, 12)
        ),
        frames(*(f"transformer.h.{block}.attn" for block in range(4)), number=3),
        ScaleChange(3, 32768.0, True, 1, False, "the gradients overflowed, the step was skipped"),
        step(
            3,
            finite=False,
            grad_norm="nan",
            scale=32768.0,
            loss="nan",
            largest=[("transformer.h.3.attn.c_proj.weight", "inf")],
        ),
        end(4, reason="a finding"),
    ]
    return events
