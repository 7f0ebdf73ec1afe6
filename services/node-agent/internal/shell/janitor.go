package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// unfinished begins the names of directories in runs/ that are being made or removed; a new agent removes them.
const unfinished = "."

// unique ends the name of such a directory. An agent before may have left one of the same run, which is removed while the
// new one is filled; and in a container every agent has the same pid.
func unique() string { return strings.ToLower(rand.Text()[:12]) }

// Janitor removes what is no longer needed, out of everybody's way: a working directory may hold a million files.
type Janitor struct {
	dir  string // the agent's
	wake signal

	mu    sync.Mutex
	dirs  []string
	sweep time.Time // next look for old files
}

// NewJanitor makes the shell.
func NewJanitor(dir string) *Janitor { return &Janitor{dir: dir, wake: newSignal()} }

// discard takes a run directory away at once, so that its name is free, and removes it later.
func (j *Janitor) discard(dir string) {
	to := filepath.Join(filepath.Dir(dir), fmt.Sprintf("%s%s-gone-%s", unfinished, filepath.Base(dir), unique()))
	if err := os.Rename(dir, to); err != nil {
		to = dir
	}
	j.remove(to)
}

// remove removes a directory later.
func (j *Janitor) remove(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dirs = append(j.dirs, dir)
	j.wake.set()
}

// rename gives a directory its final name, out of which anything old is moved.
func (j *Janitor) rename(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		j.discard(to)
	}
	return os.Rename(from, to)
}

// Name for logs.
func (j *Janitor) Name() string { return "node-agent janitor" }

// Wakes implements run.Shell.
func (j *Janitor) Wakes() []<-chan struct{} { return []<-chan struct{}{j.wake} }

const sweepEvery = 10 * time.Minute

// Step implements run.Shell.
func (j *Janitor) Step(_ context.Context, now time.Time) (bool, time.Time, error) {
	j.mu.Lock()
	dirs := j.dirs
	j.dirs = nil
	due := !now.Before(j.sweep)
	if due {
		j.sweep = now.Add(sweepEvery)
	}
	next := j.sweep
	j.mu.Unlock()
	var errs []error
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			errs = append(errs, err)
		}
	}
	if due {
		errs = append(errs, keepNewest(filepath.Join(j.dir, "logs"), 7*24*time.Hour, 8<<30, now), keepNewest(filepath.Join(j.dir, "bundles"), 24*time.Hour, 8<<30, now))
	}
	if err := errors.Join(errs...); err != nil {
		return false, next, fmt.Errorf("removing old files: %w", err)
	}
	return false, next, nil
}

// keepNewest removes files older than age, and the oldest beyond size bytes in all. What was written within the last
// hour is in use and stays.
func keepNewest(dir string, age time.Duration, size int64, now time.Time) error {
	type file struct {
		path string
		info fs.FileInfo
	}
	var files []file
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			files = append(files, file{path, info})
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b file) int { return b.info.ModTime().Compare(a.info.ModTime()) })
	var total int64
	var errs []error
	for _, f := range files {
		old := now.Sub(f.info.ModTime())
		if total += f.info.Size(); old > time.Hour && (old > age || total > size) {
			errs = append(errs, os.Remove(f.path))
		}
	}
	// Children come after their parents; removing what is not empty fails, as it should.
	for _, d := range slices.Backward(dirs) {
		if info, err := os.Stat(d); err == nil && strings.Count(d, string(filepath.Separator)) > strings.Count(dir, string(filepath.Separator)) && now.Sub(info.ModTime()) > time.Hour {
			_ = os.Remove(d)
		}
	}
	return errors.Join(errs...)
}
