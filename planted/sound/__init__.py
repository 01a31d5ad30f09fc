"""Sound trainings: ``SOUND`` holds them all."""

from planted.sound import adversaries, graphs_and_physics, libraries, loops, pictures, texts
from planted.sound.catalogue import SOUND, STEPS, Loop, Parts

__all__ = ["SOUND", "STEPS", "Loop", "Parts", "adversaries", "graphs_and_physics", "libraries", "loops", "pictures", "texts"]
