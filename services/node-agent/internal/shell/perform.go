package shell

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/libs/killpoint"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

const (
	unixMovedTo = unix.IN_MOVED_TO
	unixModify  = unix.IN_MODIFY
)

func (c *Core) perform(a reconcile.Action, now time.Time) error {
	switch a := a.(type) {
	case reconcile.Launch:
		x := c.want[a.ID]
		r := &run{Attempt: reconcile.Attempt{ID: a.ID}, dir: filepath.Join(c.runsDir(), runName(a.ID)), assigned: x}
		c.runs[a.ID] = r
		c.d.Preparer.begin(a.ID, r.dir, x)
		return nil
	case reconcile.Abandon:
		c.d.Preparer.cancel(a.ID)
		delete(c.runs, a.ID)
		return nil
	case reconcile.Stop:
		return c.stop(c.runs[a.ID], a)
	case reconcile.Kill:
		return c.kill(c.runs[a.ID], a.Why, now)
	case reconcile.SayStarted:
		c.runs[a.ID].Said.Started = true
		return c.d.Reports.say(now, func(m *weftv1.Report) {
			m.SetRanksStarted(weftv1.RanksStarted_builder{Job: &a.Job, Attempt: &a.Attempt}.Build())
		})
	case reconcile.SayExited:
		r := c.runs[a.ID]
		r.Said.Bad = r.Bad
		return c.d.Reports.say(now, func(m *weftv1.Report) {
			m.SetRanksExited(weftv1.RanksExited_builder{Job: &a.Job, Attempt: &a.Attempt, Exits: r.badExits()}.Build())
		})
	case reconcile.SayHung:
		r := c.runs[a.ID]
		r.Said.Hung = true
		rank, b := r.quietest()
		step := b.step(filepath.Join(r.dir, shim.FileBeat(rank)))
		slog.Warn("no progress", "job", a.Job, "attempt", a.Attempt, "rank", rank, "step", step, "for", now.Sub(b.seen).Round(time.Second))
		return c.d.Reports.say(now, func(m *weftv1.Report) {
			m.SetRanksHung(weftv1.RanksHung_builder{
				Job: &a.Job, Attempt: &a.Attempt, Rank: &rank, Step: &step, SilentNs: new(int64(now.Sub(b.seen))),
			}.Build())
		})
	case reconcile.SayFailed:
		r := c.runs[a.ID]
		r.Said.Failed = true
		return c.d.Reports.say(now, func(m *weftv1.Report) { r.failure.report(m, a.ID) })
	case reconcile.SayReleased:
		r := c.runs[a.ID]
		if r == nil {
			r = &run{Attempt: reconcile.Attempt{ID: a.ID, Phase: reconcile.Empty, Flushed: true}, assigned: c.want[a.ID]}
			c.runs[a.ID] = r
		}
		r.Said.Released = true
		killpoint.Reach(killpoint.Release)
		return c.d.Reports.say(now, func(m *weftv1.Report) {
			m.SetAttemptReleased(weftv1.AttemptReleased_builder{Job: &a.Job, Attempt: &a.Attempt, Completed: &a.Completed}.Build())
		})
	case reconcile.Forget:
		r := c.runs[a.ID]
		delete(c.runs, a.ID)
		c.d.Logs.forget(a.ID)
		c.d.Saves.forget(a.ID)
		if r.dir != "" {
			c.d.Janitor.discard(r.dir)
		}
		return nil
	}
	return fmt.Errorf("node-agent: no such action: %T", a)
}

func (f *failure) report(m *weftv1.Report, id reconcile.ID) {
	if f.Kind == weftv1.CauseKind_CAUSE_KIND_RESTORE_FAILED {
		m.SetRestoreFailed(weftv1.RestoreFailed_builder{Job: &id.Job, Attempt: &id.Attempt, Save: &f.Save, Message: &f.Message}.Build())
		return
	}
	m.SetLaunchFailed(weftv1.LaunchFailed_builder{Job: &id.Job, Attempt: &id.Attempt, Kind: &f.Kind, Message: &f.Message}.Build())
}

// prepared takes what the preparers finished, and starts it.
func (c *Core) prepared(now time.Time) bool {
	did := false
	for _, p := range c.d.Preparer.take() {
		did = true
		r := c.runs[p.id]
		if r == nil || r.Phase != reconcile.Preparing {
			c.d.Janitor.remove(p.made) // abandoned meanwhile
			continue
		}
		f := p.failure
		if err := c.d.Janitor.rename(p.made, r.dir); err != nil && f == nil {
			f = &failure{Kind: weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, Message: err.Error()}
		}
		if f == nil {
			r.prepared(p.launch)
			if err := c.start(r); err != nil {
				f = &failure{Kind: weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, Message: err.Error()}
				r.launch = nil
			}
		}
		if f != nil {
			slog.Warn("an attempt could not be started", "job", p.id.Job, "attempt", p.id.Attempt, "why", f.Message)
			// Kept in a file, so that the next agent says so rather than try again.
			if err := shim.WriteFile(r.dir, fileFailure, f, true); err != nil {
				slog.Error("a failure could not be recorded", "error", err)
			}
			r.setFailure(f)
			r.Phase, r.EndedNS, r.flushBy = reconcile.Empty, now.UnixNano(), now
		}
	}
	return did
}

// start starts the shim of a prepared run.
func (c *Core) start(r *run) error {
	g := r.launch.Group
	if err := g.Create(); err != nil {
		return err
	}
	if err := c.watch.add(r.ID, r.dir, unixMovedTo); err != nil {
		slog.Warn("events of a run are not seen; its state is read every second", "error", err)
	}
	if f := g.EventsFile(); f != "" {
		_ = c.watch.add(r.ID, f, unixModify)
	}
	var err error
	killpoint.Reach(killpoint.Launch)
	if r.shim, err = c.d.Shims.Start(r.dir, r.launch); err != nil {
		c.watch.remove(r.ID)
		return errors.Join(err, g.Remove())
	}
	killpoint.Reach(killpoint.Launch)
	r.Phase = reconcile.Starting
	c.fillAt = time.Now().Add(fillAfter)
	c.watchShim(r)
	c.track(r)
	c.useDevices()
	return nil
}

func (c *Core) stop(r *run, a reconcile.Stop) error {
	slog.Info("stopping", "job", a.Job, "attempt", a.Attempt, "why", a.Why, "kill_at", time.Unix(0, a.KillAtNS))
	// The file first: whoever comes after this agent keeps to the deadline.
	if err := shim.WriteFile(r.dir, fileStop, stopped{a.KillAtNS}, false); err != nil {
		return err
	}
	r.Stopping, r.KillAtNS = true, a.KillAtNS
	c.tellStop(r)
	return nil
}

// tellStop tells the shim; one that is not listening yet is told at the next sign of it.
func (c *Core) tellStop(r *run) {
	err := shim.Stop(r.dir, r.KillAtNS)
	r.unasked = errors.Is(err, proc.ErrGone) && r.Phase == reconcile.Starting && !r.gone
	if err != nil && !errors.Is(err, proc.ErrGone) {
		slog.Error("the shim does not take orders; its ranks will be killed at the deadline", "error", err)
	}
}

// kill orders the shim first, which then knows that the ranks' end was asked for. If that does not help, the ranks are
// killed past it, and at last the shim as well.
func (c *Core) kill(r *run, why reconcile.Why, now time.Time) error {
	slog.Info("killing", "job", r.Job, "attempt", r.Attempt.Attempt, "why", why)
	r.KilledNS = now.UnixNano()
	r.kills++
	if r.gone || r.Phase >= reconcile.Ended {
		return r.group().Kill()
	}
	err := shim.Kill(r.dir)
	switch {
	case r.kills > 3:
		err = errors.Join(r.group().Kill(), r.shim.Signal(unix.SIGKILL))
	case r.kills > 1 || err != nil && !errors.Is(err, proc.ErrGone):
		err = r.group().Kill()
	}
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	return err
}

// badExits are the ranks that failed, with their last words.
func (r *run) badExits() []*weftv1.RankExit {
	var out []*weftv1.RankExit
	for _, e := range r.exits {
		if !e.Bad() {
			continue
		}
		words := ""
		if i := slices.IndexFunc(r.launch.Ranks, func(k shim.Rank) bool { return k.Rank == e.Rank }); i >= 0 {
			words = lastWords(r.launch.Ranks[i].Stderr)
		}
		if r.lostShim {
			words = "the shim, parent of this rank, was killed, so how the rank ended is not known"
		}
		out = append(out, weftv1.RankExit_builder{
			Rank: &e.Rank, ExitCode: new(int32(e.Code)), Signal: new(int32(e.Signal)), TimeNs: &e.TimeNS, LastWords: &words,
		}.Build())
	}
	return out
}

const maxWords = 300

// lastWords is the last line of a file that says anything.
func lastWords(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(info.Size(), 4<<10))
	if _, err := f.ReadAt(b, info.Size()-int64(len(b))); err != nil {
		return ""
	}
	b = bytes.TrimSpace(b)
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		b = b[i+1:]
	}
	s := strings.ToValidUTF8(string(b), "?")
	for len(s) > maxWords {
		_, n := utf8.DecodeLastRuneInString(s[:maxWords+1])
		s = s[:maxWords+1-n]
	}
	return s
}
