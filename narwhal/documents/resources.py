"""Where the package's data files are, in a checkout and in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def data_path(*parts: str) -> Path:
    """Path of a shipped file, such as `data_path("schemas", "fleet", "v1.json")`.

    A wheel carries the top-level folders under `narwhal/_data`; a checkout has them beside the package.
    Raises `FileNotFoundError` naming the path when the file is in neither.
    """
    installed = _PACKAGE / "_data"
    root = installed if installed.is_dir() else _PACKAGE.parent
    path = root.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(f"{path}: not shipped with this installation of narwhal")
    return path
