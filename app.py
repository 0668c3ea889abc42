"""The dashboard of ling-prof, as ling-prof app [TRACE] runs it."""

import sys

import streamlit as st

from ling_prof.render.app import ablation, compare, download, passes, sidebar, step, tables
from ling_prof.render.app.frame import page

st.set_page_config(page_title="ling-prof", layout="wide")
chosen = sidebar.choose(*sys.argv[1:2])
st.navigation([page(module, chosen) for module in (step, tables, passes, ablation, compare, download)]).run()
