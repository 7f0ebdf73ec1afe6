#!/usr/bin/env bash
# Generates into a copy and compares, so that a stale or hand-edited generated file fails without touching the tree.
set -euo pipefail
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
ln -s "$PWD/.bin" "$tmp/.bin"
cp -r proto "$tmp/proto"
rm -rf "$tmp/proto/gen"
(cd "$tmp/proto" && mkdir -p gen/openapi && buf generate)
if ! diff -r -q "$tmp/proto/gen" proto/gen; then
	echo "generate-clean: generated code is stale; run: make generate" >&2
	exit 1
fi
(cd proto && buf lint && buf format -d --exit-code >/dev/null) || { echo "generate-clean: proto is not clean; run: make fmt" >&2; exit 1; }
# Compare with the newest tag, or with the parent commit: a field of a published message never changes its meaning.
base=$(git describe --tags --abbrev=0 2>/dev/null || git rev-parse --verify -q HEAD~1 || true)
if [ -n "$base" ] && git cat-file -e "$base:proto/buf.yaml" 2>/dev/null; then
	git archive "$base" proto | tar -x -C "$tmp" --one-top-level=base
	(cd proto && buf breaking --against "$tmp/base/proto") || { echo "generate-clean: proto breaks readers of $base" >&2; exit 1; }
fi
echo "generate-clean: generated code is as proto gives it"
