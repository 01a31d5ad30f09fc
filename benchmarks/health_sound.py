"""One sound training under a watch: in a ``with`` around its loop, or as ``accucompare watch --
python train.py`` watches a script.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from pathlib import Path

#: Of the runs that need a seed of their own.
_SEED = 7


def watch_loop(name: str, folder: Path, steps: int | None = None) -> None:
    """Watch a training's loop, with all that the watch can be given; not of a library's. ``steps``:
    no more than these.
    """
    import torch

    import accucompare as ac
    from planted.sound import SOUND

    torch.manual_seed(_SEED)
    loop = SOUND[name]()
    parts = next(loop)
    assert parts is not None
    trained = ac.Loop(parts.optimizer, parts.scheduler, parts.scaler)
    look = ac.LookAt(frames=0)
    with ac.watch(parts.model, trained, out=folder, look=look, quiet=True) as watch:
        for _ in itertools.islice(loop, steps):
            watch.step()


def watch_script(name: str, folder: Path) -> None:
    """Watch the same training as a script, in a process forked from this one: a step ends with its
    update.
    """
    process = os.fork()
    if process == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = _in_script(name, folder)
        os._exit(status)
    _, status = os.waitpid(process, 0)
    if status:
        raise RuntimeError(
            f"{name}: the training that was run as a script has failed; its output says why"
        )


def _in_script(name: str, folder: Path) -> int:
    import torch

    from accucompare.scripts.handshake import Seen
    from accucompare.scripts.plan import Action, Plan
    from accucompare.scripts.script import Script
    from planted.sound import SOUND

    shake = folder.parent / "processes"
    shake.mkdir()
    plan = Plan(
        action=Action.WATCH,
        folder=str(shake),
        out=str(folder),
        options={"frames": 0, "on_finding": "snapshot"},
    )
    seen = Seen(pid=os.getpid(), torch=str(torch.__version__))
    leave, script = os._exit, Script(plan, seen)
    script.install()
    os._exit = leave
    torch.manual_seed(_SEED)
    try:
        for _ in SOUND[name]():
            pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    script.end()
    if seen.error is not None:
        print(f"{name}: {seen.error}", file=sys.stderr, flush=True)
    return int(seen.error is not None)
