"""Every figure of ling-prof: from plain data to a plotly Figure. None reads a file or runs an analysis."""

from ling_prof.render.figures.ablation import interactions, ladder, predicted_measured, shapley
from ling_prof.render.figures.compare import bench, diff_classes
from ling_prof.render.figures.step import ledger_steps, ledger_waterfall, roles, savings
from ling_prof.render.figures.time import run_ahead, timeline

__all__ = [
    "bench",
    "diff_classes",
    "interactions",
    "ladder",
    "ledger_steps",
    "ledger_waterfall",
    "predicted_measured",
    "roles",
    "run_ahead",
    "savings",
    "shapley",
    "timeline",
]
