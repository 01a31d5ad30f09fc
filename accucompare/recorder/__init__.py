"""Recording what every layer of a live model computes: ``accucompare.capture``."""
