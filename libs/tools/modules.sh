#!/usr/bin/env bash
# Each module names its siblings by v0.0.0 and a replace line, since go mod tidy ignores the workspace.
#   write: add missing replace lines and tidy;  check: build each module alone, with and without NVML, and prove it tidy.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=github.com/weft-fabric/weft
modules=$(go list -m -f '{{.Dir}}' | sed "s#^$PWD/##")
export GOWORK=off
for m in $modules; do
	up=$(sed 's#[^/]*#..#g' <<<"$m")
	case "${1:-}" in
	write)
		(cd "$m" && { grep -oE "$prefix/(proto|libs|services/[a-z-]+) v0" go.mod || true; } | sed 's/ v0//' | sort -u | while read -r dep; do
			go mod edit -replace "$dep=$up/${dep#"$prefix"/}"
		done && go mod tidy)
		;;
	check)
		echo "module $m"
		(cd "$m" && go build ./... && go mod tidy -diff)
		case "$m" in services/node-agent | services/weft) (cd "$m" && go vet -tags nonvml ./... && CGO_ENABLED=0 go build ./...) ;; esac
		;;
	*)
		echo "usage: modules.sh write|check" >&2
		exit 2
		;;
	esac
done
unset GOWORK
go work sync
git diff --exit-code --stat -- '*go.mod' '*go.sum' go.work >/dev/null || [ "$1" = write ] || { git diff --stat -- '*go.mod' '*go.sum'; echo "modules: run: make modules" >&2; exit 1; }
