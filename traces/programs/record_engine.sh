#!/usr/bin/env bash
# Record the Ling-3.0 engine's baseline on the GPU at hand:  bash record_engine.sh OUT_FOLDER
# `ling-prof` must be installed with its gpu extra, and Nsight Systems be found. What comes out still goes through scrub.py.
set -eu
mkdir -p "$1" && cd "$1"
ling-prof trace --model ling-3.0-tiny --with torch --output h200_ling_tiny_graph_stacks.pt.trace.json.gz
ling-prof trace --model ling-3.0-tiny --with nsys --output h200_ling_tiny_graph_nodes.nsys-rep
"${NSYS:-nsys}" export --force-overwrite=true --type=sqlite --output=h200_ling_tiny_graph_nodes.sqlite h200_ling_tiny_graph_nodes.nsys-rep
