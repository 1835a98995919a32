"""The bench is scripts beside each other, as `python bench/router/run.py` finds them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "router"))
