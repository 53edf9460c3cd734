#!/usr/bin/env bash
# Shows FILE as the one comment of this suite on a pull request: the comment is
# found by a hidden marker and written anew, or made.
#
#	comment.sh OWNER/REPO NUMBER FILE
#
# Needs gh, and GH_TOKEN with pull-requests: write. Without the permission it
# says so and succeeds: the comment repeats what the job's summary holds.
set -euo pipefail

repo=$1 number=$2 file=$3
marker='<!-- batchproof gpu -->'
limit=60000 # GitHub takes 65536 characters

no() { echo "::notice::no comment on the pull request: $1; see the summary of the job"; exit 0; }
[ -e "$file" ] || no "nothing was measured"

body=$(mktemp)
trap 'rm -f "$body"' EXIT
{
	echo "$marker"
	head -c "$limit" "$file" | iconv -c -f utf-8 -t utf-8 # a cut character is left out
	[ "$(wc -c < "$file")" -le "$limit" ] || printf '\n\nCut here; the whole is in the summary of the job.\n'
} > "$body"

ids=$(gh api --paginate "repos/$repo/issues/$number/comments?per_page=100" \
	--jq ".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$marker\"))) | .id") || no "the comments cannot be read"
id=${ids%%$'\n'*}
if [ -n "$id" ]; then
	gh api --silent --method PATCH "repos/$repo/issues/comments/$id" -F "body=@$body" || no "it may not be changed with this token"
else
	gh api --silent --method POST "repos/$repo/issues/$number/comments" -F "body=@$body" || no "this token may not write one"
fi
