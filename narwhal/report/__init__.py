"""What runs came to: evidence and other tools' results in tables and plots, and one run judged against another."""

from narwhal.report.document import Report
from narwhal.report.errors import ReportError
from narwhal.report.finding import read_runs
from narwhal.report.make import make_report
from narwhal.report.markdown import markdown
from narwhal.report.plots import check_plots, draw_plots
from narwhal.report.text import text

__all__ = ["Report", "ReportError", "check_plots", "draw_plots", "make_report", "markdown", "read_runs", "text"]
