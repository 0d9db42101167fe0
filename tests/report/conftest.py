"""A browser for the tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.report.browser import NAMES, Browser, find_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of a file; without one they are skipped, or fail where PADIFF_BROWSER=required."""
    program = find_browser()
    if program is None or os.name == "nt":
        reason = f"needs a browser, one of {', '.join(NAMES)}, that is not here (Debian: apt-get install chromium)"
        if os.environ.get("PADIFF_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with Browser(program, tmp_path_factory.mktemp("browser")) as found:
        yield found
