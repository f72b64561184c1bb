"""The client by the name that users import, in a checkout; `moca-client` is a package of that name.

Both names give the same modules, and so the same classes.
"""

import pkgutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import service.client

if TYPE_CHECKING:
    from service.client import *  # noqa: F403

for _found in pkgutil.walk_packages(service.client.__path__, "service.client."):
    _name = "moca_client." + _found.name.removeprefix("service.client.")
    sys.modules[_name] = import_module(_found.name)
sys.modules[__name__] = service.client
