"""What all tests share: under CI a skip is a failure, unless the reason says that the thing cannot be installed."""

import os
import signal
import threading
from collections.abc import Generator

import pytest

NOT_INSTALLABLE = "not installable: "
"""How the reason of a permitted skip begins."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # a shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_INSTALLABLE not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped under CI: {reason}"
    return report
