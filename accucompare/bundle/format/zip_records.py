"""The ZIP records that a step's ``.npz`` is made of: PKWARE's APPNOTE.TXT, section 4.3."""

from __future__ import annotations

from struct import Struct

# stands for a size or offset that does not fit into 32 bits: see the extra field
IN_ZIP64 = 0xFFFFFFFF
COUNT_IN_ZIP64 = 0xFFFF  # stands for a count: see the ZIP64 end record

# signature, version, flags, method, time, date, CRC, 2 sizes, lengths of name and extra
LOCAL_HEADER = Struct("<4s5H3L2H")
# the same with its maker's version; then comment, disk, attributes, local header's offset
ENTRY = Struct("<4s6H3L5H2L")
# signature, 2 disks, 2 counts, size and offset of the directory, length of the comment
END = Struct("<4s4H2LH")
# signature, its length, 2 versions, 2 disks, 2 counts, size and offset of the directory
ZIP64_END = Struct("<4sQ2H2L4Q")
ZIP64_LOCATOR = Struct("<4sLQL")  # signature, disk, offset of the ZIP64 end record, number of disks
FIELD = Struct("<2H")  # an extra field's number and length
ZIP64_FIELD = 1
