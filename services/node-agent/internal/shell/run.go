package shell

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

// Files that only agents read and write in a run directory; package shim has the others.
const (
	fileAssigned = "assigned.pb"  // the AssignedAttempt
	fileStop     = "stop.json"    // that SIGTERM was asked for, and when SIGKILL follows
	fileFailure  = "failure.json" // why it could not be started
	dirWork      = "work"
)

// failure is why an attempt could not be started.
type failure struct {
	Kind    weftv1.CauseKind `json:"kind"`
	Save    string           `json:"save,omitempty"` // with CAUSE_KIND_RESTORE_FAILED
	Message string           `json:"message"`
}

type stopped struct {
	KillAtNS int64 `json:"kill_at_ns"`
}

// run is one attempt's part on this node: what reconcile sees of it, and what only effects need.
type run struct {
	reconcile.Attempt
	dir      string
	assigned *weftv1.AssignedAttempt

	launch   *shim.Launch // nil until it is prepared
	exits    []shim.RankExit
	beats    map[uint32]beat // of ranks that told of progress
	failure  *failure
	shim     proc.ID
	gone     bool // the shim has ended
	rebooted bool // it began before the machine's last start
	lostShim bool // it ended without a record
	unasked  bool // the shim was not listening yet when it should have been told to stop
	kills    int
	flushBy  time.Time // the release waits no longer than this for output and saves
	emptyAt  time.Time // when to look again whether the group is empty
}

func runName(id reconcile.ID) string {
	return id.Job + "-" + strconv.FormatUint(uint64(id.Attempt), 10)
}

// groupSeparator comes between a run's name and what makes the name of its cgroup unique.
const groupSeparator = "."

// parseRunName is the inverse of runName.
func parseRunName(name string) (reconcile.ID, bool) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return reconcile.ID{}, false
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	return reconcile.ID{Job: name[:i], Attempt: uint32(n)}, err == nil
}

// group is where its processes are.
func (r *run) group() cgroup.Group { return r.launch.Group }

// prepared takes over what was made ready to start.
func (r *run) prepared(l *shim.Launch) {
	r.launch, r.GraceNS, r.HangAfterNS = l, l.GraceNS, l.HangAfterNS
}

// scan reads what the shim wrote since the last time.
func (r *run) scan(now time.Time) error {
	if r.launch == nil || r.Phase == reconcile.Empty {
		return nil
	}
	if !r.Started {
		var st shim.Started
		ok, err := shim.ReadFile(r.dir, shim.FileStarted, &st)
		if err != nil {
			return err
		}
		if ok {
			r.Started, r.Phase = true, max(r.Phase, reconcile.Running)
		}
	}
	if err := r.scanExits(); err != nil {
		return err
	}
	if r.Phase < reconcile.Ended {
		if err := r.scanEnd(now); err != nil {
			return err
		}
	}
	if r.Phase == reconcile.Running && r.HangAfterNS != 0 {
		r.scanBeats(now)
	}
	if r.Phase == reconcile.Ended {
		return r.scanEmpty(now)
	}
	return nil
}

func (r *run) scanExits() error {
	for _, k := range r.launch.Ranks {
		if slices.ContainsFunc(r.exits, func(e shim.RankExit) bool { return e.Rank == k.Rank }) {
			continue
		}
		var e shim.RankExit
		ok, err := shim.ReadFile(r.dir, shim.FileRankExit(k.Rank), &e)
		if err != nil {
			return err
		}
		if ok {
			r.addExit(e)
		}
	}
	return nil
}

func (r *run) addExit(e shim.RankExit) {
	r.exits = append(r.exits, e)
	if e.Bad() {
		r.Bad++
	}
}

// scanEnd looks for the last word about the run; without a shim to say it, it is said here.
func (r *run) scanEnd(now time.Time) error {
	var x shim.Exit
	ok, err := shim.ReadFile(r.dir, shim.FileExit, &x)
	if err != nil {
		return err
	}
	if !ok && r.gone {
		x, ok = r.lost(now), true
		if err := shim.WriteFile(r.dir, shim.FileExit, x, true); err != nil {
			return err
		}
	}
	if !ok {
		return nil
	}
	r.lostShim = x.Lost
	for _, e := range x.Ranks {
		if !slices.ContainsFunc(r.exits, func(have shim.RankExit) bool { return have.Rank == e.Rank }) {
			r.addExit(e)
		}
	}
	if x.Failure != "" {
		r.setFailure(&failure{Kind: weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, Message: x.Failure})
	}
	r.Completed = x.Completed(*r.launch)
	r.Phase, r.EndedNS = reconcile.Ended, now.UnixNano()
	return nil
}

// lost is the record of a run whose shim ended without one: somebody killed it, or the machine went down.
func (r *run) lost(now time.Time) shim.Exit {
	x := shim.Exit{TimeNS: now.UnixNano(), Ranks: slices.Clone(r.exits), Lost: true}
	if !r.Started {
		x.Failure = "the shim ended before the ranks had started; see shim.log in " + r.dir
		return x
	}
	for _, k := range r.launch.Ranks {
		if !slices.ContainsFunc(r.exits, func(e shim.RankExit) bool { return e.Rank == k.Rank }) {
			x.Ranks = append(x.Ranks, shim.RankExit{Rank: k.Rank, Signal: 9, TimeNS: now.UnixNano(), Asked: r.Stopping || r.kills > 0 || r.rebooted})
		}
	}
	return x
}

// emptyEvery is how often emptiness is looked for, should no event say it.
const emptyEvery = 20 * time.Millisecond

func (r *run) scanEmpty(now time.Time) error {
	r.emptyAt = now.Add(emptyEvery)
	// The shim itself may still be ending: its record was the last thing that it did.
	ok, err := r.group().Empty()
	if err != nil {
		return err
	}
	if ok {
		r.Phase = reconcile.Empty
	}
	return nil
}

func (r *run) setFailure(f *failure) {
	r.failure, r.Failed = f, true
}

// adopt reads a run directory that another agent left. It returns nil where nothing was ever started: the directory must
// be discarded, and the attempt, if it is still wanted, begins anew. discard is called while no shim can begin.
func adopt(dir string, id reconcile.ID, boot string, now time.Time, discard func()) (*run, error) {
	r := &run{Attempt: reconcile.Attempt{ID: id}, dir: dir, assigned: &weftv1.AssignedAttempt{}}
	b, err := os.ReadFile(filepath.Join(dir, fileAssigned))
	if errors.Is(err, os.ErrNotExist) {
		discard()
		return nil, nil
	}
	if err == nil {
		err = proto.Unmarshal(b, r.assigned)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s: %w", dir, err)
	}
	var f failure
	if ok, err := shim.ReadFile(dir, fileFailure, &f); err != nil {
		return nil, err
	} else if ok {
		r.setFailure(&f)
		r.Phase = reconcile.Empty
		return r, nil
	}
	var l shim.Launch
	ok, err := shim.ReadFile(dir, shim.FileLaunch, &l)
	if err != nil {
		return nil, err
	}
	if !ok {
		discard()
		return nil, nil
	}
	r.prepared(&l)
	r.Phase = reconcile.Starting
	var st stopped
	if ok, err := shim.ReadFile(dir, fileStop, &st); err != nil {
		return nil, err
	} else if ok {
		r.Stopping, r.KillAtNS = true, st.KillAtNS
	}
	lock, free, err := shim.Lock(dir)
	if err != nil {
		return nil, err
	}
	if !free {
		return r, r.scan(now)
	}
	// No shim lives. One that is just about to begin waits for the lock, and then finds its launch gone.
	defer func() { _ = lock.Close() }()
	r.gone = true
	began, err := os.Stat(filepath.Join(dir, shim.FileShim))
	if errors.Is(err, os.ErrNotExist) {
		slog.Info("an attempt had been prepared and not started; it begins anew if it is still wanted", "job", id.Job, "attempt", id.Attempt)
		discard()
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s: %w", dir, err)
	}
	if r.rebooted = l.BootID != boot; r.rebooted {
		slog.Warn("an attempt of before the machine's last start is over", "job", id.Job, "attempt", id.Attempt, "began", began.ModTime())
	}
	return r, r.scan(now)
}
