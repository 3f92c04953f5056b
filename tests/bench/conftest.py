"""The benchmark as a package. The root is not on the path, where the links for readers would be modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "bench"

if "bench" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "bench", _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
    )
    assert _spec is not None
    sys.modules["bench"] = importlib.util.module_from_spec(_spec)
