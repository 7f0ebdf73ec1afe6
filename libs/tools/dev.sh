#!/usr/bin/env bash
# Runs `weft up`, and builds and starts it anew whenever a source file changes. SIGKILL leaves ranks running: the new
# process adopts them, as after any crash.
set -euo pipefail
cd "$(dirname "$0")/../.."
stamp() { find proto/gen libs services -name '*.go' -newer bin/.dev -print -quit; }
mkdir -p bin
while :; do
	touch bin/.dev
	if make -s build; then
		bin/weft up "$@" &
		pid=$!
		trap 'kill -INT $pid 2>/dev/null; wait $pid; exit 0' INT TERM
		while kill -0 $pid 2>/dev/null && [ -z "$(stamp)" ]; do sleep 1; done
		kill -KILL $pid 2>/dev/null || true
		wait $pid 2>/dev/null || true
	else
		while [ -z "$(stamp)" ]; do sleep 1; done
	fi
	echo "dev: change seen, building"
done
