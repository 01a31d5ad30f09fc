"""``log_to``: a comparison's numbers, and its page, in W&B, TensorBoard or MLflow."""

from __future__ import annotations

import importlib
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from accucompare.api import Comparison
from accucompare.compare.rows import Status
from accucompare.errors import ReportError, UsageError
from accucompare.report.table import NONE, overview_of
from accucompare.report.words import culprit_words
from accucompare.text import printable

#: The most layers whose errors are logged: the worst.
_MOST_LAYERS = 200
_NAME = re.compile(r"[^\w\-./ ]")  # what MLflow allows in a name, as the strictest of the three
_LONGEST_NAME = 200  # of MLflow's 250 characters
_PAGE = "accucompare.html"
_KNOWN = "wandb, tensorboard or mlflow"


@dataclass(frozen=True)
class Logged:
    """What is logged of a comparison."""

    # by name, ``accucompare/worst_x_limit``; infinite where a row fails without one
    scalars: dict[str, float]
    texts: dict[str, str]  # by name: the conclusion, and the first culprit


def log_to(
    target: Any, comparison: Comparison, *, step: int | None = None, page: bool = True
) -> None:
    """Log a comparison to W&B, TensorBoard or MLflow: scalars, its conclusion, its page.

    Scalars are whether it passed, the exit code, the worst error (relative L2, x limit, excess),
    counts of rows, and the relative L2 error of each of at most 200 layers.

    Args:
        target: ``"wandb"`` or ``"mlflow"`` for their running run; ``"tensorboard"`` for a new
            folder in ``runs/``; those modules; a W&B or MLflow run; or a ``SummaryWriter``.
        step: of training, if there is one.
        page: whether to keep the page too: as an artifact, or beside TensorBoard's events.

    Raises:
        ReportError: if the library is not installed, or the page cannot be written.
        UsageError: if ``target`` is something else, or no run is running.

    Example:
        >>> log_to(writer, diff("golden", "npu"), step=100)  # a SummaryWriter
    """
    library = _library_of(target)
    logged = _logged(comparison)
    with tempfile.TemporaryDirectory(prefix="accucompare-log-") as folder:
        file = comparison.to_html(Path(folder) / _PAGE) if page else None
        if file is not None:
            comparison.reports.remove(file)  # it is gone when this returns
        _LOGGERS[library](target, logged, step, file)


def _library_of(target: Any) -> str:
    """The name of a target's library."""
    if isinstance(target, (str, ModuleType)):
        parts = (target if isinstance(target, str) else target.__name__).split(".")
    else:
        parts = type(target).__module__.split(".")
    if not isinstance(target, str) and callable(getattr(target, "add_scalar", None)):
        return "tensorboard"  # of torch, of tensorboardX
    for name in _LOGGERS:
        if name in parts:
            return name
    raise UsageError(
        f"log_to: target must be {_KNOWN}, a run of theirs or a SummaryWriter, but is"
        f" {printable(repr(target))[:100]}"
    )


def _logged(comparison: Comparison) -> Logged:
    layers = overview_of(comparison).layers
    counts = comparison.counts_by_status()
    worst = layers.worst
    scalars = {
        "passed": float(comparison.passed),
        "exit_code": float(comparison.exit_code),
        "rows": float(len(comparison.rows)),
        "rows_failing": float(counts[Status.FAIL]),
        "rows_not_compared": float(counts[Status.NOT_COMPARED]),
        "layers_failing": float(np.count_nonzero(layers.failing)),
    }
    for name, values in (
        ("worst_relative_l2", worst.rel_l2),
        ("worst_x_limit", worst.over_limit),
        ("worst_excess", worst.excess),
    ):
        known = values[values != NONE]
        if len(known):
            scalars[name] = float(known.max())
    order = np.lexsort((-worst.rel_l2, -worst.over_limit))
    for at in order[:_MOST_LAYERS].tolist():
        error = float(worst.rel_l2[at])
        if error != NONE and not math.isnan(error):
            scalars.setdefault(f"relative_l2/{_name(layers.names[at])}", error)
    culprit = comparison.culprits[0] if comparison.culprits else None
    texts = {
        "conclusion": comparison.conclusion,
        "culprit": "" if culprit is None else culprit_words.place_words(comparison, culprit),
    }
    return Logged(
        {f"accucompare/{name}": value for name, value in scalars.items()},
        {f"accucompare/{name}": printable(text) for name, text in texts.items()},
    )


def _name(layer: str) -> str:
    """A layer's name as all three libraries take it."""
    return _NAME.sub("_", layer)[:_LONGEST_NAME]


def _imported(name: str, install: str) -> Any:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        module, why = None, f" ({error})"
    else:
        why = ""
    if module is None or module.__file__ is None:  # a folder of its runs takes its place
        raise ReportError(f"log_to: {install} is not installed{why}; pip install {install}")
    return module


def _to_wandb(target: Any, logged: Logged, step: int | None, page: Path | None) -> None:
    wandb = _imported("wandb", "wandb")
    run = wandb.run if isinstance(target, (str, ModuleType)) else target
    if run is None:
        raise UsageError("log_to: no W&B run is running; call wandb.init(project=...) first")
    run.log(logged.scalars, step=step)
    run.summary.update(logged.texts)
    if page is not None:
        artifact = wandb.Artifact(f"accucompare-{run.id}", type="comparison")
        artifact.add_file(str(page), name=_PAGE)
        run.log_artifact(artifact)


def _to_mlflow(target: Any, logged: Logged, step: int | None, page: Path | None) -> None:
    mlflow = _imported("mlflow", "mlflow")
    run = mlflow.active_run() if isinstance(target, (str, ModuleType)) else target
    if run is None:
        raise UsageError("log_to: no MLflow run is running; call mlflow.start_run() first")
    client, number = mlflow.MlflowClient(), run.info.run_id
    for name, value in logged.scalars.items():
        client.log_metric(number, name, value, step=step)
    for name, text in logged.texts.items():
        client.set_tag(number, name, text[:5000])  # the most that MLflow keeps
    if page is not None:
        client.log_artifact(number, str(page))


def _to_tensorboard(target: Any, logged: Logged, step: int | None, page: Path | None) -> None:
    own = isinstance(target, (str, ModuleType))
    writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter() if own else target
    try:
        for name, value in logged.scalars.items():
            writer.add_scalar(name, value, step)
        for name, text in logged.texts.items():
            writer.add_text(name, text, step)
        folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
        if page is not None and folder:
            ending = "" if step is None else f"-{step}"
            kept = Path(folder) / f"{page.stem}{ending}.html"
            kept.write_bytes(page.read_bytes())
            writer.add_text("accucompare/page", str(kept), step)
        writer.flush()
    finally:
        if own:
            writer.close()


_LOGGERS: dict[str, Callable[[Any, Logged, int | None, Path | None], None]] = {
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
    "tensorboard": _to_tensorboard,
}
