"""Numbers of the formats that processes of several versions share while an upgrade is under way.

A field that is added with a default needs no new number: older versions pass over what they do
not know. Raise a number where an older worker would misread, drop or double something, and say so
in the changelog. Snapshots, backups, checkpoints and artifacts carry numbers of their own.
"""

from __future__ import annotations

# Of log entries. A worker leaves a partition whose next entry has a higher one, or a command that
# it does not know, to a later version. An entry says the lowest number that its commands need.
ENTRY = 1
# Of all else that workers keep in the store. A partition has that of the newest worker that ever
# owned it; older ones do not take it.
# 2: parts have checksums.
STORE = 2
