#!/usr/bin/env bash
# Development: the bus and every service as a process of its own on two simulated 8-GPU nodes, each built and started
# anew when its sources change. With Tilt installed, Tilt does it (WEFT_DEV=plain: not). Ranks run on when a service goes,
# and at the end: they are adopted at the next start.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${WEFT_DEV:-}" != plain ] && command -v tilt >/dev/null; then
	exec tilt up "$@"
fi

data=.weft/dev
build=$data/build # what was built last
run=$data/run     # what runs: replacing a binary under a running process confuses its /proc/self/exe
mkdir -p $build $run $data/saves
export WEFT_CONTEXT=$PWD/$data/context.json
services=(weft-scheduler weft-allocator weft-checkpoint weft-telemetry dev-0 dev-1 weft-gateway)
declare -A args=(
	[bus]="bus serve --data $data --node dev-0 --node dev-1"
	[weft-checkpoint]="--data $data --saves-dir $data/saves"
	[dev-0]="--data $data --node dev-0 --simulate a100-80gx8 --saves-shared --port-base 21000 --port-count 500"
	[dev-1]="--data $data --node dev-1 --simulate a100-80gx8 --saves-shared --port-base 21500 --port-count 500"
)
declare -A pids=()

binary() { case $1 in bus) echo weft ;; dev-*) echo weft-agent ;; *) echo "$1" ;; esac }
start() { # its output is prefixed with its name
	cp "$build/$(binary "$1")" "$run/$1.new" && mv "$run/$1.new" "$run/$1"
	# shellcheck disable=SC2086
	"$run/$1" ${args[$1]:---data $data} > >(sed -u "s/^/${1#weft-} | /") 2>&1 &
	pids[$1]=$!
}
alive() { [ -n "${pids[$1]:-}" ] && kill -0 "${pids[$1]}" 2>/dev/null; }
stop() {
	alive "$1" && kill -TERM "${pids[$1]}" && wait "${pids[$1]}" || true
	unset "pids[$1]"
}
finish() {
	trap - EXIT INT TERM
	for s in weft-gateway dev-1 dev-0 weft-telemetry weft-checkpoint weft-allocator weft-scheduler bus; do stop $s; done
	echo "dev: ended; ranks that run are adopted at the next start"
}
trap finish EXIT
trap 'exit 0' INT TERM
nap() { sleep "$1" & wait $!; } # a signal ends it at once

touch $data/before
changed() { find proto/gen libs services \( -name '*.go' -o -name '*.py' -o -name go.mod \) ! -name '*_test.go' -newer $data/stamp -print -quit; }
packages=(./services/weft/cmd/...)
for s in scheduler allocator checkpoint telemetry node-agent gateway; do packages+=("./services/$s/cmd/..."); done

while :; do
	[ -e $data/stamp ] && touch -r $data/stamp $data/before
	touch $data/stamp
	if go build -o $build/ "${packages[@]}"; then
		if alive bus && [ -n "$(find libs/bus -name '*.go' -newer $data/before -print -quit)" ]; then
			stop bus # its streams may be declared anew
		fi
		if ! alive bus; then
			start bus
			until $build/weft bus init --data $data >/dev/null 2>&1 || ! alive bus; do nap 0.1; done # it listens before its streams are made
		fi
		for s in "${services[@]}"; do
			if ! alive "$s" || ! cmp -s "$build/$(binary "$s")" "$run/$s"; then
				stop "$s"
				start "$s"
			fi
		done
		if [ ! -e $data/queues ]; then
			echo 'queues: [{name: default}, {name: demo}, {name: demo/vision}]' >$data/queues.yaml
			until [ -n "$(changed)" ] || $build/weft queues apply $data/queues.yaml >/dev/null 2>&1; do nap 0.5; done
			touch $data/queues
		fi
		echo "dev: up; in another terminal: export WEFT_CONTEXT=$WEFT_CONTEXT; $build/weft run -- echo hello"
	fi
	told=" "
	while [ -z "$(changed)" ]; do
		for s in bus "${services[@]}"; do
			if [ -n "${pids[$s]:-}" ] && ! alive "$s" && [[ $told != *" $s "* ]]; then
				echo "dev: $s ended by itself; it is started again at the next change"
				told+="$s "
			fi
		done
		nap 1
	done
	echo "dev: $(changed) changed, building"
done
