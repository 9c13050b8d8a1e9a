# stub
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bundle.configs import RunningConfig
from bundle.organs import Vocabulary


@dataclass(frozen=True)
class ModelRecord:
    organs: list[str]
    values: dict[str, Any]


def describe_model(vocabulary: Vocabulary, **values: Any) -> ModelRecord:
    config = RunningConfig.find()
    if config is not None:
        values["network_def"] = config.section("network_def")
    return ModelRecord(vocabulary.names, values)
