"""Virtual environments with a library's releases, in which everything else is this environment's:
torch need not be loaded again.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from benchmarks.timing import ROOT, process

HOME = ROOT / "benchmarks" / ".history"

#: transformers' own limit on NumPy, which it checks when it is imported; it runs with NumPy 2 all
#: the same.
_NUMPY_BELOW_2 = '"numpy>=1.17,<2.0"'


@dataclass(frozen=True)
class Environment:
    """Releases that are installed together.

    Attributes:
        name: of its folder.
        packages: requirements, installed without what they depend on: what is not among them is
            taken from this environment.
    """

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def make(self) -> None:
        """Install it, unless it is there.

        Raises:
            BenchError: if that fails.
        """
        done = self.folder / "installed"
        if not done.exists() or done.read_text(encoding="utf-8").split() != list(self.packages):
            shutil.rmtree(self.folder, ignore_errors=True)
            process([sys.executable, "-m", "venv", "--without-pip", self.folder])
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--python",
                str(self.python),
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            if self.packages:
                process([*pip, "--no-deps", *self.packages])
            self._admit_numpy_2()
            done.write_text("\n".join(self.packages) + "\n", encoding="utf-8")
        # Lines of a .pth file come last in sys.path, so what was installed here wins. Written each
        # time: the checkout may have moved.
        (self._site / "shared.pth").write_text(
            f"{sysconfig.get_path('purelib')}\n{ROOT}\n", encoding="utf-8"
        )

    @property
    def _site(self) -> Path:
        return Path(
            sysconfig.get_path(
                "purelib", vars={"base": str(self.folder), "platbase": str(self.folder)}
            )
        )

    def _admit_numpy_2(self) -> None:
        table = self._site / "transformers" / "dependency_versions_table.py"
        if table.exists():
            table.write_text(
                table.read_text(encoding="utf-8").replace(_NUMPY_BELOW_2, '"numpy>=1.17"'),
                encoding="utf-8",
            )


#: What huggingface_hub 0.x needs beyond this environment, and 1.x.
_HUB_0 = (
    "huggingface_hub==0.36.0",
    "requests==2.34.2",
    "urllib3==2.8.0",
    "certifi==2026.10.18",
    "charset-normalizer==3.5.2",
)
_HUB_1 = ("huggingface_hub==1.8.0", "httpx==0.28.1", "httpcore==1.0.9", "certifi==2026.10.18")


def transformers(version: str) -> Environment:
    """A release of transformers, with the tokenizers and the hub that it asks for."""
    major, minor, *_ = (int(part) for part in version.split("."))
    tokenizers = (
        "0.19.1" if (major, minor) < (4, 45) else "0.21.4" if (major, minor) < (4, 56) else "0.22.2"
    )
    hub = _HUB_0 if major == 4 else _HUB_1
    return Environment(
        f"transformers-{version}", (f"transformers=={version}", f"tokenizers=={tokenizers}", *hub)
    )


def beside(library: str, version: str, other: Environment, *more: str) -> Environment:
    """A release of a library that stands on what another environment has."""
    return Environment(f"{library}-{version}", (f"{library}=={version}", *more, *other.packages))
