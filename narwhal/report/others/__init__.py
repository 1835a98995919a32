"""Results of other tools, and of the simulator, as points of a report: told as what they are."""

import json
from pathlib import Path
from typing import Any

from narwhal.report.others.aiperf import aiperf_points, is_aiperf
from narwhal.report.others.errors import ResultError
from narwhal.report.others.guidellm import guidellm_points, is_guidellm
from narwhal.report.others.simulated import is_simulated, simulated_points
from narwhal.report.others.vllm_bench import is_vllm_bench, vllm_bench_points
from narwhal.report.taken import Taken

KNOWN = ("profile_export_aiperf.json", "benchmarks.json")
"""Names that other tools give to their results; a file of another name is taken where it is named itself."""

__all__ = ["KNOWN", "ResultError", "read_result"]


def read_result(path: Path, root: Path) -> list[Taken]:
    """The points of a result file; its format is told from its content. Raises `ResultError`."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ResultError(f"it cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ResultError(f"it is no JSON: {error}") from None
    where = str(path.relative_to(root))
    try:
        return _points(document, path, where)
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"it lacks what a report needs: {type(error).__name__} {error}") from None


def _points(document: Any, path: Path, where: str) -> list[Taken]:
    if is_simulated(document):
        return simulated_points(document, where)
    if is_aiperf(document):
        return aiperf_points(document, path, where)
    if is_guidellm(document):
        return guidellm_points(document, where)
    if is_vllm_bench(document):
        return vllm_bench_points(document, where)
    raise ResultError("it is no result of AIPerf, GuideLLM, vllm bench serve --save-result or narwhal simulate")
