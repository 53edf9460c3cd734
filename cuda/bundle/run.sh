#!/usr/bin/env bash
# Measures this project on this machine's first GPU: what `make cuda-bundle`
# packed, for a machine with an NVIDIA driver and no Go.
#
#     run.sh [FOLDER]     default: results/<UTC time> beside this script
#
# It takes at most 8 minutes (LIMIT, in seconds). A part that fails or runs out
# of time does not keep the others from running; the summary names it, and the
# exit status is then 1. FOLDER is laid out for benchdata/<machine>/.
set -uo pipefail
home=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:-$home/results/$(date -u +%Y-%m-%dT%H-%M-%SZ)}")
limit=${LIMIT:-480}
mkdir -p "$out" || exit 1
export BATCHPROOF_REQUIRE=gpu                       # a missing device fails, and is not skipped
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$out/jit} # the driver compiles each kernel once

summary=()
failed=0

# note RESULT NAME WORDS: a line of the summary.
note() {
	local line
	line=$(printf '%-8s %-12s %s' "$1" "$2" "$3")
	summary+=("$line")
	echo "$line"
	case $1 in FAILED | NOT_RUN) failed=1 ;; esac
}

# part NAME SECONDS COMMAND...: runs it in at most so many seconds, into NAME.txt.
part() {
	local name=$1 seconds=$2 begin=$SECONDS status
	shift 2
	((seconds <= limit - SECONDS)) || seconds=$((limit - SECONDS))
	if ((seconds < 5)); then
		note NOT_RUN "$name" "the $limit s are used up"
		return 1
	fi
	echo "== $name, at most $seconds s: $*"
	timeout -k 3 "$seconds" "$@" 2>&1 | tee "$out/$name.txt"
	status=${PIPESTATUS[0]}
	case $status in
	0) note ok "$name" "$((SECONDS - begin)) s" ;;
	124 | 137) note FAILED "$name" "ran longer than its $seconds s, see $name.txt" ;;
	*) note FAILED "$name" "exit status $status after $((SECONDS - begin)) s, see $name.txt" ;;
	esac
	return "$status"
}

# tests, suite: the binaries, where their relative paths work.
tests() { part "$1" "$2" env -C "$home/cuda" ./cuda.test -test.v -test.count=1 "${@:3}"; }
suite() { part "$1" "$2" env -C "$home/validation" ./validation.test -test.v -test.count=1 "${@:3}" -backend cuda; }

# flatten NAME: the suite makes a folder of the time; one run needs none.
flatten() {
	local made=("$out/$1"/*/)
	[ -d "${made[0]}" ] || return
	mv "${made[0]}"* "$out/$1/" && rmdir "${made[0]}"
}

# machine says what there is; a tool that is missing is left out.
machine() {
	echo "commit $(cat "$home/COMMIT"), built for glibc $(cat "$home/GLIBC")"
	date -u
	uname -srmo
	getconf GNU_LIBC_VERSION
	for tool in lscpu 'free -h' 'nvidia-smi' 'nvidia-smi -q -d MEMORY,ECC,CLOCK,POWER,PERFORMANCE,TEMPERATURE' 'nvidia-smi topo -m'; do
		read -ra words <<<"$tool"
		command -v "${words[0]}" >/dev/null || continue
		printf '\n$ %s\n' "$tool"
		timeout 10 "${words[@]}"
	done
	return 0
}

finish() {
	rm -rf "$out/jit"
	{
		echo "commit $(cat "$home/COMMIT"), $(date -u +%Y-%m-%dT%H:%M:%SZ), $SECONDS s"
		printf '%s\n' "${summary[@]}"
	} >"$out/summary.txt"
	echo
	cat "$out/summary.txt"
	echo "everything is in $out"
	exit "$failed"
}

machine 2>&1 | tee "$out/machine.txt"
if ! tests device 60 -test.run '^TestDevice$'; then
	echo "no usable GPU, or a driver or C library too old: see above; nothing else can run" >&2
	finish
fi
tests goldens 40 -test.run '^TestGoldens$/^gpu$'
tests models 60 -test.run '^TestModel.*$/^gpu$'
tests conformance 60 -test.run '^TestConformance$/^gpu$'
suite validate 130 -test.run '^(TestSingleRequestLatency|TestConcurrentThroughput)$' -checkpoint random:qwen3.5-0.8b -time-limit 100s -results "$out/validate"
flatten validate
suite decode 45 -test.run '^$' -test.bench '^BenchmarkDecodeStep$' -test.count=5 -checkpoint random:qwen3.5-2b -sizes 1,8
tests kernels 45 -test.run '^(TestPeakKernels|TestPeaks|TestKernelTable)$/^gpu$' -checkpoint random:qwen3.5-2b
suite sweep 40 -test.run '^(TestBatchSweep|TestHeadOfLineBlocking)$' -results "$out/sweep"
flatten sweep
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
	for tool in memcheck racecheck; do
		part "$tool" 30 env -C "$home/cuda" "$sanitizer" --tool "$tool" --error-exitcode 9 ./cuda.test -test.v -test.run '^TestModelsAgainstOracle$/^gpu$'
	done
else
	note skipped sanitizer "compute-sanitizer is not installed (CUDA toolkit)"
fi
finish
