"""What golden calls the modules of a rank, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class NameEvidence(str, Enum):
    """How it is known which module of golden's a rank's module is."""

    WEIGHTS = "weights"  # theirs are equal
    ORDER = "order"  # the ranks' layers, one rank after the other, are golden's
    GIVEN = "given"


@dataclass(frozen=True)
class PutBack:
    """One name of a rank's that stands for another one of golden's, with all below it."""

    own: str
    golden: str
    evidence: NameEvidence


@dataclass(frozen=True)
class StageOf:
    """What holds a part of the layers of golden's module ``name``."""

    name: str
    # begins, ends: whether it holds the first and the last of golden's layers, so that its inputs
    # and its outputs are those of golden's module
    begins: bool
    ends: bool


@dataclass(frozen=True)
class RankNames:
    """Golden's names for what a rank has."""

    # where they differ from the rank's own. What has no counterpart, but the name of another module
    # of golden's, is marked: ``rank1:layers.0``.
    modules: Mapping[str, str] = field(default_factory=dict)
    # golden's first names of parameters and buffers, where they differ
    parameters: Mapping[str, str] = field(default_factory=dict)
    # the modules that hold only a part of golden's module, by the rank's own name
    stages: Mapping[str, StageOf] = field(default_factory=dict)
    put_back: tuple[PutBack, ...] = ()  # the names that were found, one for each layer

    def module(self, own: str) -> str:
        return self.modules.get(own, own)

    def parameter(self, own: str) -> str:
        return self.parameters.get(own, own)
