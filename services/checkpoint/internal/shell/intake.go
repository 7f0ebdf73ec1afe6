package shell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/killpoint"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/manifest"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

// item is one part on its way into the log.
type item struct {
	seq  uint64 // of the report; 0 = found by a rescan
	node string
	part *weftv1.PartRef
	done bool
	bad  string // why the bytes are damaged; the part itself is as reported
	err  error  // why it is passed over
}

// read takes reports in and has their bytes verified.
func (s *Shell) read(ctx context.Context) (bool, error) {
	if s.last == nil { // after a failure
		if err := s.seek(ctx); err != nil {
			return false, err
		}
	}
	room := window - len(s.items)
	if room <= 0 {
		return false, nil
	}
	inputs, err := s.deps.Saves.Next(ctx, room)
	if err != nil {
		return false, fmt.Errorf("read reports of saves: %w", err)
	}
	for _, in := range inputs {
		if in.CreatedNS != s.last.GetCreatedNs() { // another stream than the cursor speaks of
			s.reset()
			return true, nil
		}
		it := s.receive(in)
		s.items = append(s.items, it)
		if !it.done {
			s.verify(it)
		}
	}
	return len(inputs) > 0, nil
}

// receive reads one report; it is done if there is nothing to verify.
func (s *Shell) receive(in bus.Input) *item {
	it := &item{seq: in.Seq, done: true}
	r := &weftv1.SaveReport{}
	if err := proto.Unmarshal(in.Data, r); err != nil {
		it.err = err
		return it
	}
	// The subject is what the bus let its sender publish to; the message is only what it says.
	if in.Subject != bus.SubjectSave(r.GetNode()) {
		it.err = fmt.Errorf("a report of node %.70q came in on %s", r.GetNode(), in.Subject)
		return it
	}
	it.node, it.part = r.GetNode(), r.GetPart()
	if it.err = saveid.Check(it.part); it.err != nil {
		return it
	}
	known := false
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		facts, err := keeper.Report(ix, it.node, it.part, 0)
		known = err == nil && len(facts) == 0
	})
	it.done = known || s.cfg.Dir == ""
	return it
}

// verify reads a reported part back. Where it can't be seen from here, the agent's word stands: it has read every byte.
func (s *Shell) verify(it *item) {
	dir, life, path := s.cfg.Dir, s.life, it.part.GetPath()
	s.deps.Pool.Go(func(ctx context.Context) func() {
		got, err := manifest.Verify(ctx, filepath.Join(dir, filepath.FromSlash(path)))
		if ctx.Err() != nil {
			return nil
		}
		return func() {
			if s.life != life {
				return
			}
			it.done = true
			var corrupt *manifest.Corrupt
			switch {
			case err == nil:
				s.seen[path] = true
				if why := differs(it.part, got); why != "" { // the bytes are whole: the report is wrong
					it.err = errors.New(why)
				}
			case errors.As(err, &corrupt):
				it.bad = corrupt.Reason
			case !errors.Is(err, fs.ErrNotExist):
				slog.Warn("a part could not be read back here; its agent's verification stands", "part", path, "error", err)
			}
		}
	})
}

// differs compares what was read with what was reported.
func differs(want, got *weftv1.PartRef) string {
	if want.GetManifestHash() != got.GetManifestHash() {
		return "its part.json is not the one that was reported"
	}
	for i, f := range got.GetFiles() {
		if i >= len(want.GetFiles()) || want.GetFiles()[i].GetBlake3() != f.GetBlake3() {
			return fmt.Sprintf("%s is not what was reported", f.GetName())
		}
	}
	return ""
}

// verifyFound has parts verified that a rescan found, a few at a time.
func (s *Shell) verifyFound(context.Context) (bool, error) {
	did := false
	for len(s.found) > 0 && s.flying+len(s.ready) < maxFound {
		path := s.found[0]
		s.found = s.found[1:]
		s.flying++
		did = true
		dir, term := s.cfg.Dir, s.term
		s.deps.Pool.Go(func(ctx context.Context) func() {
			part, node, err := manifest.VerifyOrigin(ctx, filepath.Join(dir, filepath.FromSlash(path)))
			if ctx.Err() != nil {
				return nil
			}
			return func() {
				if s.term != term {
					return
				}
				s.flying--
				if err != nil {
					slog.Warn("a part that nobody reported is passed over", "part", path, "error", err)
					return
				}
				s.ready = append(s.ready, &item{node: node, part: part, done: true})
			}
		})
	}
	return did, nil
}

// commit decides the reports at the head of the window that are done, the parts found, and damage, in one commit.
func (s *Shell) commit(ctx context.Context) (bool, error) {
	n := 0
	for n < len(s.items) && s.items[n].done {
		n++
	}
	if n == 0 && len(s.ready) == 0 && len(s.damage) == 0 {
		return len(s.items) == 0 && s.relisted(), nil
	}
	var groups [][]*weftv1.Entry
	var doom []doomed
	touched := map[string]string{} // job → tenant
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		after := ix.Overlay()
		add := func(facts []*weftv1.CheckpointFact) {
			for _, f := range facts {
				keeper.Evolve(after, f)
				if c := f.GetSaveCommitted(); f.HasSaveCommitted() {
					touched[c.GetJob()] = c.GetTenant()
				}
			}
			if len(facts) > 0 {
				groups = append(groups, ledger.FactEntries(facts))
			}
		}
		for _, it := range append(s.items[:n:n], s.ready...) {
			add(s.decide(after, it))
		}
		for _, d := range s.damage {
			add(keeper.Quarantine(after, d.job, d.save, d.node, clean(d.reason)))
		}
		for _, job := range slices.Sorted(maps.Keys(touched)) {
			gone := keeper.Retain(after, job, s.cfg.Policy, func(save string) bool { return s.now.Before(s.leases[saveKey{job, save}]) })
			add(gone)
			if len(gone) > 0 && s.cfg.Dir != "" {
				d := doomed{job: manifest.Job{Tenant: touched[job], ID: job}}
				for _, f := range gone {
					d.saves = append(d.saves, f.GetSaveDeleted().GetSave())
				}
				doom = append(doom, d)
			}
		}
	})
	cursor := s.last
	if n > 0 {
		cursor = weftv1.Cursor_builder{
			Stream: new(s.last.GetStream()), CreatedNs: new(s.last.GetCreatedNs()), Seq: new(s.items[n-1].seq),
		}.Build()
	}
	if s.idle += n; len(groups) > 0 || s.idle >= idleCursor {
		batches, err := ledger.SplitGroups(groups)
		if err != nil {
			return false, err
		}
		if len(batches) == 0 {
			batches = [][]*weftv1.Entry{nil}
		}
		for i, b := range batches {
			var cursors []*weftv1.Cursor
			if i == len(batches)-1 && s.idle > 0 {
				cursors = []*weftv1.Cursor{cursor}
			}
			killpoint.Reach(killpoint.Save)
			if _, err := s.deps.Writer.Commit(ctx, s.now, b, cursors); err != nil {
				s.relist = s.relist || len(doom) > 0 // it may be stored all the same
				return false, fmt.Errorf("commit to the checkpoint log: %w", err)
			}
		}
		s.idle = 0
	}
	s.doomed = append(s.doomed, doom...)
	s.items, s.ready, s.damage, s.last = s.items[n:], nil, nil, cursor
	s.relisted()
	return true, nil
}

// relisted looks for deletions whose commit was stored though it seemed to fail. It is called when nothing of what was
// decided then is left to decide, so that the log is known to its end.
func (s *Shell) relisted() bool {
	if !s.relist {
		return false
	}
	s.relist = false
	s.rescan()
	return true
}

// decide asks the keeper about one part that was looked at.
func (s *Shell) decide(ix *keeper.Index, it *item) []*weftv1.CheckpointFact {
	if it.err == nil && it.bad != "" {
		if save := ix.Save(it.part.GetJob(), it.part.GetSave()); save != nil && save.Parts[it.part.GetRanks()[0]] != nil {
			return nil // that rank's part is in the log: a report does not overturn it, a restore will look
		}
		slog.Warn("a part is damaged", "part", it.part.GetPath(), "node", it.node, "reason", it.bad)
		return keeper.Quarantine(ix, it.part.GetJob(), it.part.GetSave(), it.node, clean(fmt.Sprintf("rank %d: %s", it.part.GetRanks()[0], it.bad)))
	}
	var facts []*weftv1.CheckpointFact
	err := it.err
	if err == nil {
		facts, err = keeper.Report(ix, it.node, it.part, s.now.UnixNano())
	}
	if err != nil {
		slog.Warn("a report of a part is passed over", "node", it.node, "seq", it.seq, "reason", err)
	}
	return facts
}

// clean makes a text fit for a fact.
func clean(reason string) string {
	reason = strings.ToValidUTF8(reason, "?")
	if len(reason) > 500 {
		reason = strings.ToValidUTF8(reason[:500], "") + "…"
	}
	return reason
}
