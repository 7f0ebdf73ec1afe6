#!/usr/bin/env bash
# Runs the linter on a fixture that breaks every fence once, and fails unless each break is reported.
set -euo pipefail
cd "$(dirname "$0")/fixture"
out=$(GOWORK=off golangci-lint run --config ../../../.golangci.yml --allow-parallel-runners ./... 2>&1 || true)
missing=0
while IFS='|' read -r file text; do
	[ -n "$file" ] || continue
	if ! grep -F "$file" <<<"$out" | grep -qF "$text"; then
		echo "fence: $file: expected a finding with \"$text\"" >&2
		missing=1
	fi
done <expected.txt
[ "$missing" = 0 ] || { echo "$out" >&2; exit 1; }
echo "fence: all $(grep -c . expected.txt) breaks were caught"
