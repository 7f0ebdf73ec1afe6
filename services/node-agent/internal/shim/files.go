// Package shim is the parent of an attempt's ranks on one node: the agent's binary once more, in its own session, so
// that agents may die and be replaced while ranks run on.
//
// It owns the run directory's files about processes (who runs, how each rank ended), each written whole by rename, and
// it owns the ranks' output files. It obeys stop and kill, enforces the node's fence when no agent does, and ends when
// nothing of the attempt is left. It never talks to the bus and decides nothing: a failed rank is recorded, no more.
//
// Files are the truth. The FIFO only saves waiting, and inotify on the directory tells an agent at once.
package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// Files in a run directory.
const (
	FileLaunch  = "launch.json"  // what to run; written by the agent
	FileShim    = "shim.json"    // the shim's process
	FileStarted = "started.json" // every rank's process, once all run
	FileExit    = "exit.json"    // how all of it ended; nothing follows
	fileLock    = "lock"         // held by the shim while it lives
	fileControl = "control"      // FIFO
	fileLog     = "shim.log"     // what the shim itself has to say
)

// FileBeat is the name of the file in which one rank tells of its progress.
func FileBeat(rank uint32) string {
	return "beat-" + strconv.FormatUint(uint64(rank), 10) + ".json"
}

// FileRankExit is the name of one rank's exit record.
func FileRankExit(rank uint32) string {
	return "exit-" + strconv.FormatUint(uint64(rank), 10) + ".json"
}

// Launch is everything a shim needs.
type Launch struct {
	// Token names this preparation. A shim has it as argument too, and does nothing if they differ: it was started so
	// shortly before its agent died that the next agent began the attempt anew.
	Token   string       `json:"token"`
	Job     string       `json:"job"`
	Attempt uint32       `json:"attempt"`
	BootID  string       `json:"boot_id"`
	Group   cgroup.Group `json:"group"`
	// Contact is the file in which the agent keeps, as proc.SinceBoot, when it last had contact; ranks are killed
	// FenceNS after that, and asked to stop GraceNS earlier. FenceNS 0 = never.
	Contact string `json:"contact"`
	FenceNS int64  `json:"fence_ns"`
	GraceNS int64  `json:"grace_ns"`
	// HangAfterNS is the job's hang_after; 0 = its ranks may be silent for ever.
	HangAfterNS int64  `json:"hang_after_ns,omitempty"`
	Ranks       []Rank `json:"ranks"`
}

// Rank is one process to start.
type Rank struct {
	Rank   uint32   `json:"rank"`
	Argv   []string `json:"argv"`
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`
	Stdout string   `json:"stdout"`
	Stderr string   `json:"stderr"`
}

// Started says which process each rank is.
type Started struct {
	TimeNS int64     `json:"time_ns"`
	Ranks  []RankPid `json:"ranks"`
}

// RankPid is a rank's process.
type RankPid struct {
	Rank uint32 `json:"rank"`
	proc.ID
}

// RankExit is how a rank ended.
type RankExit struct {
	Rank   uint32 `json:"rank"`
	Code   int    `json:"code"`
	Signal int    `json:"signal"` // 0 = it exited by itself
	TimeNS int64  `json:"time_ns"`
	Asked  bool   `json:"asked"` // stop or kill had been asked for before
}

// Bad says that the rank failed: it ended other than by exit 0, and nobody had asked it to end.
func (e RankExit) Bad() bool { return !e.Asked && (e.Code != 0 || e.Signal != 0) }

// Exit is the last word about a run.
type Exit struct {
	TimeNS int64      `json:"time_ns"`
	Ranks  []RankExit `json:"ranks"`
	// Failure is why the ranks could not be started; then Ranks is empty.
	Failure string `json:"failure,omitempty"`
	// Lost: an agent wrote this because the shim was gone, so exits not in Ranks are unknown.
	Lost bool `json:"lost,omitempty"`
}

// Completed says that every rank of l exited 0, unasked.
func (e Exit) Completed(l Launch) bool {
	if e.Failure != "" || e.Lost || len(e.Ranks) != len(l.Ranks) {
		return false
	}
	for _, r := range e.Ranks {
		if r.Code != 0 || r.Signal != 0 || r.Asked {
			return false
		}
	}
	return true
}

// WriteFile replaces dir/name whole. sync makes it survive a machine crash; what only means something while this boot
// lasts does without.
func WriteFile(dir, name string, v any, sync bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	tmp := filepath.Join(dir, "."+name+"."+strconv.Itoa(os.Getpid()))
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil && sync {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, name))
	}
	if err == nil && sync {
		err = syncDir(dir)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadFile reads dir/name into v; ok is false if there is none.
func ReadFile(dir, name string, v any) (ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
	}
	return true, nil
}

// Lock takes the run directory's lock, which a shim holds for as long as it lives; ok is false if another has it.
func Lock(dir string) (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(filepath.Join(dir, fileLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, true, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("lock: %w", err)
}
