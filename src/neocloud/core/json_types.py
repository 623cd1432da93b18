# pyright: strict
"""JSON values as types: what `json.loads` returns.

Parsed input is `Json`, an object of it `JsonObject`. Output that is only encoded is a `Mapping[str, object]`.
"""

from typing import TypeAlias

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
JsonObject: TypeAlias = dict[str, Json]
