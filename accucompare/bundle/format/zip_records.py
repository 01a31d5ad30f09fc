"""The records of a ZIP file that the ``.npz`` of a step is made of, as in PKWARE's APPNOTE.TXT,
section 4.3."""

from __future__ import annotations

from struct import Struct

# in place of a size or an offset: see the extra field, for it does not fit into 32 bits
IN_ZIP64 = 0xFFFFFFFF
COUNT_IN_ZIP64 = 0xFFFF  # in place of a count: see the ZIP64 end record

# signature, version, flags, method, time, date, CRC, 2 sizes, lengths of name and extra
LOCAL_HEADER = Struct("<4s5H3L2H")
# the same with its maker's version; then comment, disk, attributes, offset of the local header
ENTRY = Struct("<4s6H3L5H2L")
# signature, 2 disks, 2 counts, size and offset of the directory, length of the comment
END = Struct("<4s4H2LH")
# signature, its length, 2 versions, 2 disks, 2 counts, size and offset of the directory
ZIP64_END = Struct("<4sQ2H2L4Q")
ZIP64_LOCATOR = Struct("<4sLQL")  # signature, disk, offset of the ZIP64 end record, number of disks
FIELD = Struct("<2H")  # an extra field's number and length
ZIP64_FIELD = 1
