"""The build hook: the page of ``jumok view`` is built into every wheel, sdist and editable install.

Without its page a wheel would be broken where nobody looks, so a failed build is a failed install;
but all else of jumok works without it, and whoever cannot reach npm's packages may say so with
``JUMOK_WITHOUT_PAGE=1``. An sdist holds the page and needs neither Node nor a network.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        page = self._page()
        return [] if _is_left_out() or page.is_built() else [page.NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if _is_left_out():
            self.app.display_warning("JUMOK_WITHOUT_PAGE: `jumok view` will have no page to show")
            return
        page = self._page()
        try:
            page.build()
        except page.BuildError as error:
            raise SystemExit(
                f"The page of `jumok view` could not be built.\n{error}\n\n"
                f"To install jumok without the page: JUMOK_WITHOUT_PAGE=1 pip install …"
            ) from None

    def _page(self) -> ModuleType:
        path = Path(self.root) / "ui" / "build.py"
        spec = importlib.util.spec_from_file_location("jumok_ui_build", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _is_left_out() -> bool:
    return os.environ.get("JUMOK_WITHOUT_PAGE", "") not in ("", "0")
