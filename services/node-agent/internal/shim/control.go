package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// Arg as first argument makes a binary a shim.
const Arg = "weft-shim"

// Start starts the shim of a run directory that has its launch.json. exe is this binary.
func Start(exe, dir string, l *Launch) (proc.ID, error) {
	log, err := os.OpenFile(filepath.Join(dir, "shim.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	defer func() { _ = log.Close() }()
	// One thread running Go code is enough, and the agent's environment may hold a credential.
	c := exec.Command(exe, Arg, dir, l.Token)
	c.Args[0] = "weft-shim"
	c.Dir = dir
	c.Env = []string{"GOMAXPROCS=1", "PATH=" + os.Getenv("PATH")}
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	leaf, err := l.Group.OpenShim()
	if err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	if leaf != nil {
		defer func() { _ = leaf.Close() }()
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(leaf.Fd())
	}
	if err := c.Start(); err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	// Our child until one of us ends: reap it, whenever that is.
	id, err := proc.Of(c.Process.Pid)
	go func() { _ = c.Wait() }()
	if err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	return id, nil
}

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
