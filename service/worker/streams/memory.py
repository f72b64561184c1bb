"""How much memory a worker may fill with streams: of its device, its container or its machine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from model_core.lazy import torch

USED = 0.8  # of a limit: allocators hold more than is in use
LEAST = 32 << 20  # however small the limit is
CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class Room(NamedTuple):
    """Bytes for streams; device None: their states are on the host with all else."""

    host: int
    device: int | None = None

    def excess(self, host: int, device: int) -> int:
        """By how much the bytes held on the host and on the device are too many."""
        if self.device is None:
            return host + device - self.host
        return max(host - self.host, device - self.device)

    @property
    def for_states(self) -> int:
        """Bytes for states."""
        return self.host if self.device is None else self.device


def room(device: str, sharing: int = 0) -> Room:
    """What this process may fill beside what it holds now.

    sharing: workers of one machine's service; its API and store take the part of one more.
    """
    mine = int(USED * host_limit() / (sharing + 1)) - own_bytes()
    host = max(LEAST, mine)
    if not device.startswith("cuda"):
        return Room(host)
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return Room(host, max(LEAST, int(USED * min(free, total / max(1, sharing)))))


def host_limit(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Memory of the container, or of the machine where none is set or that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _limit_files(cgroups, own):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # else "max"
            limits.append(int(text))
    return min(limits)


def _limit_files(cgroups: Path, own: Path) -> list[Path]:
    """Files of limits on this process's control group and those around it, of both versions.

    Within a container its own group may be mounted as the root.
    """
    try:
        lines = own.read_text().split()
    except OSError:
        lines = []
    files = [cgroups / "memory.max", cgroups / "memory/memory.limit_in_bytes"]
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        base = cgroups
        name = "memory.max"
        if controllers:
            base = cgroups / "memory"
            name = "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            place = Path(path.strip("/"))
            files += [base / group / name for group in (place, *place.parents)]
    return files


def give_back() -> None:
    """Return what the allocator of the C library holds free to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def own_bytes() -> int:
    """Memory that this process holds, as far as the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
