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
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/manifest"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

// question is a save that is being verified for whoever wants to restore it.
type question struct {
	waiting []bus.Request
	left    int    // parts not yet looked at
	bad     string // damage, and on which node
	node    string
	unsure  error // it could not be read now
}

// maxAnswers bounds one step.
const maxAnswers = 256

// answer takes what was asked, and answers what is known.
func (s *Shell) answer(context.Context) (bool, error) {
	did := false
	for _, srv := range s.servers {
		for _, r := range srv.Next(maxAnswers) {
			did = true
			switch r.Subject {
			case bus.SubjectRPC("checkpoint", "list"):
				s.list(r)
			default:
				s.locate(r)
			}
		}
	}
	return did, nil
}

func (s *Shell) list(r bus.Request) {
	q := &weftv1.SavesRequest{}
	if err := proto.Unmarshal(r.Data, q); err != nil {
		r.Respond(nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "no SavesRequest: " + err.Error()})
		return
	}
	b := weftv1.SavesReply_builder{}
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) { b.Saves = keeper.List(ix, q.GetJob()) })
	respond(r, b.Build())
}

func respond(r bus.Request, m proto.Message) {
	data, err := proto.Marshal(m)
	if err != nil {
		r.Respond(nil, &bus.Refusal{Code: bus.CodeUnavailable, Message: err.Error()})
		return
	}
	r.Respond(data, nil)
}

// locate answers where a save is, after every byte of it that can be seen from here was read back once more.
func (s *Shell) locate(r bus.Request) {
	q := &weftv1.LocateRequest{}
	if err := proto.Unmarshal(r.Data, q); err != nil {
		r.Respond(nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "no LocateRequest: " + err.Error()})
		return
	}
	k := saveKey{q.GetJob(), q.GetSave()}
	if open := s.asked[k]; open != nil {
		open.waiting = append(open.waiting, r)
		return
	}
	var parts []*weftv1.PartVerified
	found, unusable, job := false, "", manifest.Job{}
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		save := ix.Save(k.job, k.save)
		if found, unusable = save != nil, save.Unusable(); unusable != "" {
			return
		}
		job = manifest.Job{Tenant: ix.Job(k.job).Tenant, ID: k.job}
		for _, rank := range save.Declared {
			if p := save.Parts[rank]; p != nil {
				parts = append(parts, p)
			}
		}
	})
	switch {
	case !found:
		r.Respond(nil, &bus.Refusal{Code: bus.CodeNotFound, Message: fmt.Sprintf("save %s of job %s: %s", k.save, k.job, unusable)})
		return
	case unusable != "":
		s.reply(r, k)
		return
	}
	s.leases[k] = s.now.Add(leaseFor)
	if s.cfg.Dir == "" || s.now.Before(s.checked[k].Add(trustFor)) {
		s.reply(r, k)
		return
	}
	open := &question{waiting: []bus.Request{r}, left: len(parts)}
	s.asked[k] = open
	for _, p := range parts {
		s.examine(k, open, job, p)
	}
}

// examine reads one part back.
func (s *Shell) examine(k saveKey, q *question, job manifest.Job, p *weftv1.PartVerified) {
	dir, term, path := s.cfg.Dir, s.term, p.GetPart().GetPath()
	s.deps.Pool.Go(func(ctx context.Context) func() {
		got, err := manifest.Verify(ctx, filepath.Join(dir, filepath.FromSlash(path)))
		if ctx.Err() != nil {
			return nil
		}
		shared := err == nil || manifest.Reachable(dir, job)
		return func() {
			if s.term != term {
				return
			}
			bad, unsure := s.judge(p.GetPart(), got, err, shared)
			if bad != "" && q.bad == "" {
				q.bad, q.node = fmt.Sprintf("%s: %s", path, bad), p.GetNode()
			}
			if unsure != nil {
				q.unsure = unsure
			}
			if q.left--; q.left == 0 {
				s.conclude(k, q)
			}
		}
	})
}

// judge says what became of a part: damaged, or not to be read now, or neither.
func (s *Shell) judge(want, got *weftv1.PartRef, err error, shared bool) (bad string, unsure error) {
	path := want.GetPath()
	var corrupt *manifest.Corrupt
	switch {
	case err == nil:
		s.seen[path] = true
		delete(s.missing, path)
		return differs(want, got), nil
	case errors.As(err, &corrupt):
		return corrupt.Reason, nil
	case !shared:
		return "", nil // this job's saves are not seen from here: its agents look themselves
	case errors.Is(err, fs.ErrNotExist):
		since, known := s.missing[path]
		if !known {
			s.missing[path] = s.now
			since = s.now
		}
		if s.seen[path] || s.now.Sub(since) >= missingFor {
			delete(s.missing, path)
			return "it is missing", nil
		}
		return "", fmt.Errorf("part %s is not to be seen yet", path)
	}
	return "", err
}

// conclude answers everybody who asked for a save; damage is committed in the same step.
func (s *Shell) conclude(k saveKey, q *question) {
	delete(s.asked, k)
	switch {
	case q.bad != "":
		slog.Warn("a save is damaged and will not be restored", "job", k.job, "save", k.save, "node", q.node, "reason", q.bad)
		s.damage = append(s.damage, damage{k, q.node, q.bad})
		m := weftv1.LocateReply_builder{Error: new(fmt.Sprintf("save %s is damaged: %s", k.save, clean(q.bad)))}.Build()
		for _, r := range q.waiting {
			respond(r, m)
		}
		return
	case q.unsure != nil:
		for _, r := range q.waiting {
			r.Respond(nil, &bus.Refusal{Code: bus.CodeUnavailable, Message: q.unsure.Error()})
		}
		return
	}
	s.checked[k] = s.now
	for _, r := range q.waiting {
		s.reply(r, k)
	}
}

// reply says what the log knows of a save.
func (s *Shell) reply(r bus.Request, k saveKey) {
	b := weftv1.LocateReply_builder{}
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		save := ix.Save(k.job, k.save)
		if why := save.Unusable(); why != "" {
			b.Error = new(fmt.Sprintf("save %s: %s", k.save, why))
			return
		}
		b.Save, b.Copies = save.Ref, save.Copies()
	})
	respond(r, b.Build())
}

// tidy removes what the log says is deleted, one job at a time.
func (s *Shell) tidy(context.Context) (bool, error) {
	for k, until := range s.leases {
		if !s.now.Before(until) {
			delete(s.leases, k)
			delete(s.checked, k)
		}
	}
	if s.tidying || len(s.doomed) == 0 {
		return false, nil
	}
	d := s.doomed[0]
	s.doomed, s.tidying = s.doomed[1:], true
	dir, term := s.cfg.Dir, s.term
	s.deps.Pool.Go(func(context.Context) func() {
		var errs []error
		for _, save := range d.saves {
			errs = append(errs, manifest.Remove(dir, d.job, save))
		}
		return func() {
			if s.term == term {
				s.tidying = false
				maps.DeleteFunc(s.seen, func(path string, _ bool) bool {
					return slices.ContainsFunc(d.saves, func(save string) bool { return strings.HasPrefix(path, d.job.Tenant+"/"+d.job.ID+"/"+save+"/") })
				})
			}
			if err := errors.Join(errs...); err != nil {
				slog.Warn("deleted saves could not be removed; the next leader tries again", "job", d.job.ID, "error", err)
			}
		}
	})
	return true, nil
}

// trim removes reports that were consumed at least trimEvery ago.
func (s *Shell) trim(ctx context.Context) (bool, error) {
	if s.now.Before(s.trimAt) {
		return false, nil
	}
	s.trimAt = s.now.Add(trimEvery)
	to := s.trimTo
	name := s.last.GetStream()
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		if c := ix.Cursor(name); c.GetCreatedNs() == s.last.GetCreatedNs() {
			s.trimTo = c.GetSeq()
		}
	})
	if to == 0 {
		return false, nil
	}
	if err := s.deps.Saves.Trim(ctx, to); err != nil {
		return false, fmt.Errorf("trim reports of saves: %w", err)
	}
	return true, nil
}
