"""Sound trainings: ``SOUND`` holds them all."""

from planted.sound import adversaries, graphs_and_physics, libraries, loops, pictures, texts
from planted.sound.catalogue import LIBRARIES, SOUND, STEPS, Loop, Parts

__all__ = [
    "LIBRARIES",
    "SOUND",
    "STEPS",
    "Loop",
    "Parts",
    "adversaries",
    "graphs_and_physics",
    "libraries",
    "loops",
    "pictures",
    "texts",
]
