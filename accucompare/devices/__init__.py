"""Devices: opening and describing each, and its settings that change numbers.

One class for each type of device, with the methods of ``Cpu``.
"""

from accucompare.devices.opening import TYPES, DeviceName, backend, explain, open_device
from accucompare.devices.settings import ENVIRONMENT, is_a_librarys, variables
from accucompare.devices.software import PACKAGE, SEE, mismatch, release, version

__all__ = [
    "ENVIRONMENT",
    "PACKAGE",
    "SEE",
    "TYPES",
    "DeviceName",
    "backend",
    "explain",
    "is_a_librarys",
    "mismatch",
    "open_device",
    "release",
    "variables",
    "version",
]
