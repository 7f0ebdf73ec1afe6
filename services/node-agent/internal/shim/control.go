package shim

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// Arg as first argument makes a binary a shim.
const Arg = "weft-shim"

// Stop asks the shim to end its ranks: SIGTERM now, SIGKILL at killAtNS (Unix).
func Stop(dir string, killAtNS int64) error {
	return command(dir, "stop "+strconv.FormatInt(killAtNS, 10)+"\n")
}

// Kill asks the shim to kill its ranks.
func Kill(dir string) error { return command(dir, "kill\n") }

// command writes one line, which is shorter than PIPE_BUF and so stays whole. No reader means no shim: proc.ErrGone.
func command(dir, line string) error {
	fd, err := unix.Open(filepath.Join(dir, fileControl), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
		return proc.ErrGone
	}
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte(line)); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	return nil
}
