#!/usr/bin/env bash
# Runs every fuzz target of the workspace for the given time each.
set -euo pipefail
cd "$(dirname "$0")/../.."
time=${1:-60s}
grep -rln --include='*_test.go' '^func Fuzz' libs services | while read -r f; do
	grep -oE '^func Fuzz[A-Za-z0-9_]+' "$f" | sed 's/func //' | while read -r target; do
		echo "fuzz $target ($(dirname "$f")) $time"
		go test "./$(dirname "$f")" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
	done
done
