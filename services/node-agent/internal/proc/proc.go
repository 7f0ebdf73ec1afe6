// Package proc names processes so that a name never means another process: by pid and start time, within one boot. It
// owns reading /proc and signalling by pidfd; it never decides whom to signal.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ID is a process of this boot. Pids are used again; a pid with its start time is not.
type ID struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/<pid>/stat
}

// ErrGone says that the process ended, and the pid is free or another process's.
var ErrGone = errors.New("proc: process is gone")

// stat is what this package needs of /proc/<pid>/stat.
type stat struct {
	comm  string
	state byte
	ppid  int
	start uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return stat{}, ErrGone
	}
	if err != nil {
		return stat{}, fmt.Errorf("proc: %w", err)
	}
	return parseStat(b)
}

// parseStat finds the fields after the command, which may itself contain spaces and parentheses.
func parseStat(b []byte) (stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("proc: stat %q", b)
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 {
		return stat{}, fmt.Errorf("proc: stat %q", b)
	}
	ppid, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return stat{}, fmt.Errorf("proc: stat %q: %w", b, err)
	}
	return stat{comm: string(b[open+1 : end]), state: f[0][0], ppid: ppid, start: start}, nil
}

// Of names the process that has pid now.
func Of(pid int) (ID, error) {
	s, err := readStat(pid)
	return ID{pid, s.start}, err
}

// Alive says whether the process runs; a zombie does not.
func (id ID) Alive() bool {
	s, err := readStat(id.Pid)
	return err == nil && s.start == id.Start && s.state != 'Z' && s.state != 'X'
}

// Open returns a pidfd, or ErrGone.
func (id ID) Open() (int, error) {
	fd, err := unix.PidfdOpen(id.Pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("proc: pidfd of %d: %w", id.Pid, err)
	}
	// Only now that the descriptor pins the process does its start time prove which one it is.
	if s, err := readStat(id.Pid); err != nil || s.start != id.Start {
		_ = unix.Close(fd)
		return -1, ErrGone
	}
	return fd, nil
}

// Signal sends sig to this process and to no other, or returns ErrGone.
func (id ID) Signal(sig unix.Signal) error {
	fd, err := id.Open()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.PidfdSendSignal(fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("proc: signal %d to %d: %w", sig, id.Pid, err)
	}
	return nil
}

// Comm is the process's current command name, empty if it is gone.
func (id ID) Comm() string {
	s, err := readStat(id.Pid)
	if err != nil || s.start != id.Start {
		return ""
	}
	return s.comm
}

// all calls f for each process that can be read.
func all(f func(pid int, s stat)) error {
	d, err := os.Open("/proc")
	if err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	names, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			f(pid, s)
		}
	}
	return nil
}

// Children are the running direct children of pid.
func Children(pid int) ([]ID, error) {
	var out []ID
	err := all(func(p int, s stat) {
		if s.ppid == pid && s.state != 'Z' && s.state != 'X' {
			out = append(out, ID{p, s.start})
		}
	})
	return out, err
}

// Descendants are the running children of pid, their children, and so on.
func Descendants(pid int) ([]ID, error) {
	kids := map[int][]int{}
	alive := map[int]ID{}
	err := all(func(p int, s stat) {
		kids[s.ppid] = append(kids[s.ppid], p)
		if s.state != 'Z' && s.state != 'X' {
			alive[p] = ID{p, s.start}
		}
	})
	if err != nil {
		return nil, err
	}
	var out []ID
	seen := map[int]bool{pid: true}
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		for _, k := range kids[queue[0]] {
			if seen[k] {
				continue
			}
			seen[k] = true
			queue = append(queue, k)
			if id, ok := alive[k]; ok {
				out = append(out, id)
			}
		}
	}
	return out, nil
}

// WithEnv are the running processes that were started with the environment entry (NAME=value).
func WithEnv(entry string) ([]ID, error) {
	want := []byte("\x00" + entry + "\x00")
	var out []ID
	err := all(func(p int, s stat) {
		if s.state == 'Z' || s.state == 'X' {
			return
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/environ")
		if err != nil || len(b) == 0 {
			return
		}
		if bytes.Contains(append([]byte{0}, b...), want) {
			out = append(out, ID{p, s.start})
		}
	})
	return out, err
}

// BootID is the kernel's name of this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("proc: boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// SinceBoot is the time since boot in nanoseconds. It counts suspended time and no one can set it, so two processes
// may agree on a deadline by it.
func SinceBoot() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
