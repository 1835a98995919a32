"""Loads the programs and plugins of the playbooks, which are no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

from narwhal.documents import data_path


def load(*parts: str) -> ModuleType:
    path: Path = data_path("playbooks", *parts)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
