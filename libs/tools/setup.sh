#!/usr/bin/env bash
# Installs what is missing, and only that: `setup.sh build` a C compiler (the race detector and NVML need one),
# `setup.sh demo` a python3 that imports torch. On Debian and Ubuntu by apt, elsewhere it says what to install.
set -euo pipefail

apt_install() {
	local sudo=""
	if ! command -v apt-get >/dev/null; then
		return 1
	fi
	if [ "$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || return 1
		sudo=sudo
	fi
	echo "setup: apt-get install $*"
	$sudo apt-get update -qq || return 1
	DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

python_with_torch() {
	local p
	for p in "${WEFT_PYTHON:-}" python3 /usr/bin/python3; do
		if [ -n "$p" ] && command -v "$p" >/dev/null && "$p" -c 'import torch' 2>/dev/null; then
			return 0
		fi
	done
	return 1
}

case "${1:-}" in
build)
	command -v gcc >/dev/null || apt_install gcc libc6-dev ||
		{ echo "setup: no C compiler; install gcc (the race detector needs it)" >&2; exit 1; }
	command -v git >/dev/null || apt_install git ||
		{ echo "setup: no git; install it" >&2; exit 1; }
	;;
demo)
	python_with_torch || apt_install python3-torch && python_with_torch ||
		{ echo "setup: no python3 that imports torch; install PyTorch for CPU (https://pytorch.org), or name one: WEFT_PYTHON=/path/to/python3" >&2; exit 1; }
	;;
*)
	echo "usage: setup.sh build|demo" >&2
	exit 2
	;;
esac
