"""ling-prof: where every microsecond of an LLM decode step goes.

    trace = ling_prof.load("decode.pt.trace.json.gz")
    print(ling_prof.report(trace).to_json())

Nothing heavy is imported until it is used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Diff", "Missing", "Options", "Report", "Trace", "TraceError", "UserError", "diff", "load", "report"]

if TYPE_CHECKING:
    from ling_prof.diff import diff
    from ling_prof.diff_report import Diff
    from ling_prof.errors import Missing, TraceError, UserError
    from ling_prof.load import load
    from ling_prof.report import Report, report
    from ling_prof.trace import Trace
    from ling_prof.view import Options

_HOMES = {
    **dict.fromkeys(("Missing", "TraceError", "UserError"), "errors"),
    **dict.fromkeys(("Report", "report"), "report"),
    "Diff": "diff_report",
    "Options": "view",
    "Trace": "trace",
    "diff": "diff",
    "load": "load",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'ling_prof' has no attribute {name!r}")
    home = import_module(f"ling_prof.{_HOMES[name]}")
    return home if name == _HOMES[name] else getattr(home, name)  # diff, load and report: modules that can be called
