# pyright: standard
"""Message classes of the API as modules: `from neocloud.messages.nebius.compute.v1 import Disk, DiskSpec`.

Below this package there is one module for each protobuf package of the contract, made when first imported
(rfd 0004): an attribute of it is the message class, or the enum, of that name. Messages and enums inside a
message are its attributes, as in generated code: `DiskStatus.State.Value("READY")`. For type checkers,
`scripts/write-stubs` writes stubs of the same modules.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from neocloud.core import contract

_ROOT = f"{__name__}."


class _Finder(MetaPathFinder, Loader):
    """Find and make the modules below this package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.removeprefix(_ROOT)
        if not fullname.startswith(_ROOT) or not contract.has_package(package):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: attributes are looked up when they are used."""


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__.removeprefix(_ROOT)}.{name}"
        for find in (contract.message, contract.enum):
            try:
                found = find(full_name)
            except LookupError:
                continue
            setattr(self, name, found)
            return found
        raise AttributeError(f"The contract has neither a message nor an enum {full_name}.")


sys.meta_path.append(_Finder())
