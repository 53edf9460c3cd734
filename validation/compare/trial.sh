#!/bin/sh
# Tries the gate on this machine: TRIES times (default 10) a commit against
# itself, and TRIES times against one whose decode steps take SLOW percent longer
# (default 5). The slowed commit is made in a temporary worktree and is on no
# branch. Run it on a quiet machine:
#
#	validation/compare/trial.sh [flags of compare]
#
# It prints one line a try, and exits 1 unless every answer was right.
set -eu
cd "$(dirname "$0")/../.."
tries=${TRIES:-10} slow=${SLOW:-5}
tmp=$(mktemp -d)
cleanup() { git worktree remove --force "$tmp/tree" 2>/dev/null || true; rm -rf "$tmp"; git worktree prune; }
trap cleanup EXIT
trap 'exit 130' INT TERM

base=$(git rev-parse HEAD)
git worktree add --quiet --detach "$tmp/tree" "$base"
model="$tmp/tree/engine/model"
cat > "$model/slowed.go" <<GO
package model

import (
	"context"
	"time"

	"github.com/batchproof/batchproof/engine/backend"
)

// Run spins for a share of what a decode step took.
func (net *Network) Run(ctx context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error {
	begin := time.Now()
	err := net.run(ctx, step, want, out, params)
	if len(step.Tokens) == len(step.Rows) {
		for end := begin.Add(time.Since(begin) * (100 + $slow) / 100); time.Now().Before(end); {
		}
	}
	return err
}
GO
sed -i.orig 's/^func (net \*Network) Run(/func (net *Network) run(/' "$model/network.go"
rm "$model/network.go.orig"
grep -q '^func (net \*Network) run(' "$model/network.go" || { echo "trial.sh: model.Network has no method Run in network.go: adapt the sed line" >&2; exit 3; }
git -C "$tmp/tree" add engine
git -C "$tmp/tree" -c user.name=trial -c user.email=trial@localhost -c commit.gpgsign=false commit --quiet --no-verify -m "engine: decode steps $slow % slower, for a trial of the gate"
slowed=$(git -C "$tmp/tree" rev-parse HEAD)
git worktree remove --force "$tmp/tree"

mkdir -p bin results
go build -o bin/compare ./validation/compare
wrong=0
try() { # what, expected exit status, expected words, refs
	name=$1 status=$2 words=$3
	shift 3
	i=1
	while [ "$i" -le "$tries" ]; do
		log=results/trial-$name-$i.txt
		got=0
		bin/compare -aa -seed "$i" "$@" > "$log" 2>&1 || got=$?
		answer=$(grep "(margin" "$log" | tail -n 1 || true)
		case "$got $answer" in
		"$status $words"*) mark=right ;;
		*) mark=WRONG wrong=$((wrong + 1)) ;;
		esac
		echo "$name $i/$tries: $mark (exit $got): ${answer:-see $log}"
		[ "$got" -ne 3 ] || exit 3
		i=$((i + 1))
	done
}
try identical 0 "no change" "$@" "$base" "$base"
try slowed 1 "regression" "$@" "$base" "$slowed"
echo "$wrong wrong of $((2 * tries))"
[ "$wrong" -eq 0 ]
