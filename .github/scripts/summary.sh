#!/usr/bin/env bash
# Adds the summaries of all runs in results/ to summary.md, where compare has
# written, and the whole to the file named, which is $GITHUB_STEP_SUMMARY.
# Fails if there is none: then nothing was measured, and the log says why.
set -euo pipefail

shopt -s nullglob
runs=(results/*/summary.md)
[ -e summary.md ] || [ ${#runs[@]} -gt 0 ] || { echo "no summary: nothing was measured; see the steps above" >&2; exit 1; }
for run in "${runs[@]}"; do
	{ cat "$run"; echo; } >> summary.md
done
cat summary.md >> "$1"
