// Package cgroup holds the processes of one attempt together, so that ending it leaves nothing behind, not even
// children that made their own session. It owns how: by cgroup v2 where this process may make groups, else by what
// every process of the attempt has in its environment. It never decides when.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// None as the root given to Open means to do without cgroups.
const None = "none"

// Manager makes groups.
type Manager struct {
	base string // our directory in cgroup v2; empty = none
	why  string // why there is none
	cure string
}

// Open finds cgroup v2 below root ("" = where it is mounted) and makes the directory name there. It does not fail: what
// is missing is said by Condition, and groups work without.
func Open(root, name string) *Manager {
	if root == None {
		return &Manager{why: "cgroup v2 is switched off by configuration", cure: "set cgroup_root to empty"}
	}
	if root == "" {
		mount, err := mounted("/proc/self/mountinfo")
		if err != nil {
			return &Manager{why: err.Error(), cure: "mount cgroup v2 (systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup/unified)"}
		}
		own, err := ownPath("/proc/self/cgroup")
		if err != nil {
			return &Manager{why: err.Error(), cure: "run the agent where /proc/self/cgroup has a line 0::"}
		}
		root = filepath.Join(mount, own)
	}
	m := &Manager{base: filepath.Join(root, name)}
	if err := m.probe(); err != nil {
		return &Manager{why: err.Error(), cure: "give the agent a cgroup v2 subtree of its own: run as root, or systemd-run --user --scope -p Delegate=yes"}
	}
	return m
}

// probe makes and removes a group, so that a missing permission is found now and not at the first launch.
func (m *Manager) probe() error {
	if err := os.MkdirAll(m.base, 0o755); err != nil {
		return fmt.Errorf("cgroup v2 is not writable: %w", err)
	}
	dir := filepath.Join(m.base, "probe")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cgroup v2 is not writable: %w", err)
	}
	defer func() { _ = unix.Rmdir(dir) }()
	for _, f := range []string{"cgroup.kill", "cgroup.procs", "cgroup.events"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return fmt.Errorf("cgroup v2 here has no %s: a kernel before 5.14", f)
		}
	}
	return nil
}

// Works says whether groups are cgroups.
func (m *Manager) Works() bool { return m.base != "" }

// Remove removes the manager's directory, if no group and no shim is left in it.
func (m *Manager) Remove() error {
	if !m.Works() {
		return nil
	}
	_ = unix.Rmdir(filepath.Join(m.base, shims))
	return unix.Rmdir(m.base)
}

// Condition says which way this machine goes.
func (m *Manager) Condition() *weftv1.Condition {
	if m.Works() {
		return weftv1.Condition_builder{
			Name: new("cgroup"), Status: new(weftv1.ConditionStatus_CONDITION_STATUS_OK),
			Message: new("ranks start in a cgroup of their attempt and end with it (" + m.base + ")"),
		}.Build()
	}
	return weftv1.Condition_builder{
		Name: new("cgroup"), Status: new(weftv1.ConditionStatus_CONDITION_STATUS_DEGRADED),
		Message: new(m.why + "; ranks are ended by descent and environment, so a child that clears its environment and outlives its shim could survive"),
		Cure:    new(m.cure),
	}.Build()
}

// Group names the processes of one attempt on this node. It is plain data, kept in the run directory, so that a later
// agent, started in another cgroup, still means the same processes.
type Group struct {
	Path   string `json:"path,omitempty"` // directory in cgroup v2; empty = none
	Marker string `json:"marker"`         // environment entry of every process
}

// Group names one; marker must be unique to it.
func (m *Manager) Group(name, marker string) Group {
	g := Group{Marker: marker}
	if m.Works() {
		g.Path = filepath.Join(m.base, name)
	}
	return g
}

// Create makes the group.
func (g Group) Create() error {
	if g.Path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(g.Path), 0o755); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if err := os.Mkdir(g.Path, 0o755); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	return nil
}

// shims is the leaf of all shims. They are in no attempt's group: killing one must not take the process that records how
// its ranks ended.
const shims = "shims"

// OpenShims opens the leaf to start shims in; nil without cgroups.
func (m *Manager) OpenShims() (*os.File, error) {
	if !m.Works() {
		return nil, nil
	}
	dir := filepath.Join(m.base, shims)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return open(dir)
}

// Open opens the group to start ranks in; nil without cgroups.
func (g Group) Open() (*os.File, error) {
	if g.Path == "" {
		return nil, nil
	}
	return open(g.Path)
}

func open(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cgroup: %w", err)
	}
	return f, nil
}

// Kill sends SIGKILL to every rank and everything that a rank started; frozen ones die too.
func (g Group) Kill() error {
	if g.Path != "" {
		err := os.WriteFile(filepath.Join(g.Path, "cgroup.kill"), []byte("1"), 0)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("cgroup: kill: %w", err)
	}
	ids, err := proc.WithEnv(g.Marker)
	for _, id := range ids {
		if e := id.Signal(unix.SIGKILL); e != nil && !errors.Is(e, proc.ErrGone) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Empty says whether no process of the group is left, zombies apart.
func (g Group) Empty() (bool, error) {
	if g.Path == "" {
		ids, err := proc.WithEnv(g.Marker)
		return err == nil && len(ids) == 0, err
	}
	b, err := os.ReadFile(g.EventsFile())
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cgroup: %w", err)
	}
	return strings.Contains("\n"+string(b), "\npopulated 0\n"), nil
}

// EventsFile changes (for inotify) when the group becomes empty; "" without cgroups.
func (g Group) EventsFile() string {
	if g.Path == "" {
		return ""
	}
	return filepath.Join(g.Path, "cgroup.events")
}

// Remove removes the empty group.
func (g Group) Remove() error {
	if g.Path == "" {
		return nil
	}
	return removeTree(g.Path)
}

// removeTree removes a cgroup and those below it: ranks may have made their own.
func removeTree(dir string) error {
	es, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, e := range es {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	// A cgroup's files go with it; os.Remove would first try to unlink.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cgroup: remove %s: %w", dir, err)
	}
	return nil
}

// Sweep kills and removes the groups that no run directory names: their agent died between making them and starting
// anything, or their run directory was deleted.
func (m *Manager) Sweep(known func(name string) bool) error {
	if !m.Works() {
		return nil
	}
	es, err := os.ReadDir(m.base)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	var errs []error
	for _, e := range es {
		if !e.IsDir() || e.Name() == shims || known(e.Name()) {
			continue
		}
		g := Group{Path: filepath.Join(m.base, e.Name())}
		if err := g.Kill(); err != nil {
			errs = append(errs, err)
			continue
		}
		if ok, err := g.Empty(); err == nil && ok {
			errs = append(errs, g.Remove())
		}
	}
	return errors.Join(errs...)
}

// mounted finds where cgroup v2 is mounted: the whole of /sys/fs/cgroup, or /sys/fs/cgroup/unified on hybrid hosts.
func mounted(mountinfo string) (string, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return "", fmt.Errorf("cgroup: %w", err)
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		// 36 35 98:0 /root /mount options shared:1 - fstype source superoptions
		left, right, ok := strings.Cut(sc.Text(), " - ")
		fields := strings.Fields(left)
		if ok && len(fields) >= 5 && strings.HasPrefix(right, "cgroup2 ") {
			return fields[4], nil
		}
	}
	if err := sc.Err(); err != nil {
		return "", fmt.Errorf("cgroup: %w", err)
	}
	return "", errors.New("cgroup v2 is not mounted")
}

// ownPath is the group that this process is in.
func ownPath(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cgroup: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return p, nil
		}
	}
	return "", errors.New("this process is in no cgroup v2")
}
