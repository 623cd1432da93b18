"""A model reader, model folders and a model server client without real models and model servers.

`FakeModelReader` reports a small model for any folder; `FakeModelServerClient` keeps which adapters
each address has loaded, as a model server would until it restarts.
"""

from collections import defaultdict

from neocloud.messages.neocloud.inference.v1 import Model, ModelStatus
from neocloud.services.inference.public import Location, ModelFolders, weights_folder
from neocloud.services.inference.reconcile.model_server import ModelServerRefused, ModelServerUnreachable


class FakeModelReader:
    """A ModelReader that reads nothing."""

    reads_files = False

    async def read(self, folder: Location, base_folder: Location | None) -> ModelStatus:
        status = ModelStatus(
            architecture="EmulatedForCausalLM",
            context_length=32768,
            parameters=600_000_000,
            size_bytes=1_200_000_000,
            dtype="bfloat16",
            kv_bytes_per_token=16384,
            adapter_bytes_per_rank=500_000,
            digest="0" * 64,
            has_chat_template=True,
        )
        if base_folder is not None:
            status.lora_rank, status.parameters, status.size_bytes = 16, 4_000_000, 8_000_000
            status.target_modules.extend(["k_proj", "o_proj", "q_proj", "v_proj"])
            status.kv_bytes_per_token = status.adapter_bytes_per_rank = 0
        return status


class FakeModelFolders(ModelFolders):
    """Takes the folder of a model from its spec, without reading it."""

    reads_files = False

    def locate_known(self, model: Model) -> Location:
        return Location(weights_folder(model, self))


class FakeModelServerClient:
    """A ModelServerClient that makes no request."""

    def __init__(self, *, reads_files: bool = True) -> None:
        self.reads_files = reads_files
        self.loaded: defaultdict[str, set[str]] = defaultdict(set)
        """Names of adapters by address."""
        self.warmed: list[tuple[str, str]] = []
        """(address, name) of every warm-up request."""
        self.silent: set[str] = set()
        """Addresses that do not answer."""
        self.refused: set[str] = set()
        """Names of adapters that every model server refuses."""

    async def names(self, address: str, key: str) -> frozenset[str]:
        self._require(address)
        return frozenset(self.loaded[address])

    async def load(self, address: str, key: str, name: str, path: str) -> None:
        self._require(address)
        if name in self.refused:
            raise ModelServerRefused("no such file")
        self.loaded[address].add(name)

    async def unload(self, address: str, key: str, name: str) -> None:
        self._require(address)
        self.loaded[address].discard(name)

    async def warm_up(self, address: str, key: str, name: str, *, embeds: bool = False) -> None:
        self._require(address)
        self.warmed.append((address, name))

    def _require(self, address: str) -> None:
        if address in self.silent:
            raise ModelServerUnreachable(f"{address} does not answer")
