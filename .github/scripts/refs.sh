#!/usr/bin/env bash
# Prints which refs a run compares, as lines for $GITHUB_ENV: HEAD with where it
# left $BASE; nightly ($EVENT is schedule) with the last commit of a day ago.
set -euo pipefail

head=$(git rev-parse --verify "HEAD^{commit}")
if [ "${EVENT-}" = schedule ]; then
	base=$(git rev-list -1 --before="24 hours ago" HEAD)
	base=${base:-$(git rev-list --max-parents=0 HEAD | tail -n 1)} # younger than a day
else
	: "${BASE:?what to compare with, a ref}"
	base=$(git rev-parse --verify --quiet --end-of-options "$BASE^{commit}" || git rev-parse --verify --end-of-options "origin/$BASE^{commit}")
	base=$(git merge-base "$base" HEAD) || { echo "$BASE and HEAD have no common commit" >&2; exit 1; }
fi
echo "BASE=$base"
echo "HEAD=$head"
