#!/usr/bin/env bash
# Record every trace of this folder on the GPU at hand:  bash record.sh OUT_FOLDER
# NSYS names the Nsight Systems command line if it is not on the PATH. What comes out still has to go through scrub.py.
set -u
here=$(cd "$(dirname "$0")" && pwd)
nsys=${NSYS:-nsys}
qwen3=(--model qwen3 --graph)
kimi=(--model kimi_linear)
mkdir -p "$1" && cd "$1" || exit 1

attempt() { echo "## $*"; "$@" || echo "FAILED: $*"; }

decode() { python3 "$here/hf_decode.py" "$@"; }

with_nsys() {  # NAME GRAPH_MODE program arguments...
  local name=$1 mode=$2; shift 2
  "$nsys" profile --force-overwrite=true --output="$name" --trace=cuda,nvtx --sample=none --cpuctxsw=none \
    --cuda-graph-trace="$mode" --capture-range=cudaProfilerApi --capture-range-end=stop \
    python3 "$here/hf_decode.py" --with nsys "$@" &&
  "$nsys" export --force-overwrite=true --type=sqlite --output="$name.sqlite" "$name.nsys-rep"
}

unprofiled() {
  attempt decode "${qwen3[@]}" --steps 100
  attempt decode "${kimi[@]}" --steps 24
}

unprofiled
attempt decode "${qwen3[@]}" --steps 5 --with torch --stacks --out h200_qwen3_graph_stacks.pt.trace.json.gz
attempt decode "${kimi[@]}" --steps 4 --with torch --stacks --out h200_kimi_eager_stacks.pt.trace.json.gz
attempt with_nsys h200_qwen3_graph_nodes node "${qwen3[@]}" --steps 5 --record-capture
attempt with_nsys h200_qwen3_graph_whole graph "${qwen3[@]}" --steps 5
attempt with_nsys h200_kimi_eager node "${kimi[@]}" --steps 4
unprofiled
