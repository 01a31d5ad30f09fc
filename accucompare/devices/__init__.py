"""Devices: opening and describing each, and its settings that change numbers.

One class for each type of device, with the methods of ``Cpu``.
"""

from accucompare.devices.opening import TYPES as TYPES
from accucompare.devices.opening import DeviceName as DeviceName
from accucompare.devices.opening import backend as backend
from accucompare.devices.opening import explain as explain
from accucompare.devices.opening import open_device as open_device
from accucompare.devices.settings import ENVIRONMENT as ENVIRONMENT
from accucompare.devices.settings import is_a_librarys as is_a_librarys
from accucompare.devices.settings import variables as variables
from accucompare.devices.software import PACKAGE as PACKAGE
from accucompare.devices.software import SEE as SEE
from accucompare.devices.software import mismatch as mismatch
from accucompare.devices.software import release as release
from accucompare.devices.software import version as version
