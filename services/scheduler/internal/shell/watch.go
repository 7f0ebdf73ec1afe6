package shell

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// watch hears the agents' beats, answers them, and notices silence. It measures on this process's clock, from the start
// of its leadership: what it could not have heard is not silence.
type watch struct {
	beats  bus.Server
	silent time.Duration
	heard  map[string]time.Time
	since  time.Time // nothing before counts
	due    time.Time // when the next node would fall silent
	back   map[string]bool
	took   bool // TakeOver has been decided in this leadership
}

func newWatch(nodes bus.Caller, silent time.Duration) (*watch, error) {
	srv, err := nodes.Serve(bus.SubjectBeat("*"), "")
	if err != nil {
		return nil, err
	}
	return &watch{beats: srv, silent: silent, heard: map[string]time.Time{}, back: map[string]bool{}}, nil
}

// ignore drops beats: only the leader answers.
func (w *watch) ignore() {
	for len(w.beats.Next(batch)) > 0 {
	}
	w.took = false
}

// restart counts silence from now on.
func (w *watch) restart(now time.Time) {
	w.since = now
	clear(w.heard)
}

// answer takes the waiting beats.
func (w *watch) answer(now time.Time, s *cell.State, term, seq uint64) {
	for {
		reqs := w.beats.Next(batch)
		if len(reqs) == 0 {
			return
		}
		for _, r := range reqs {
			var b weftv1.Beat
			if err := proto.Unmarshal(r.Data, &b); err != nil || r.Subject != bus.SubjectBeat(b.GetNode()) {
				r.Respond(nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "not a beat of this node"})
				continue
			}
			n := s.Node(b.GetNode())
			known := n != nil && n.BootID == b.GetBootId() && n.Condition != cell.Lost
			if known {
				w.heard[n.Name] = now
				if n.Condition == cell.Silent {
					w.back[n.Name] = true
				}
			}
			a := weftv1.BeatAnswer_builder{Term: &term, LedgerSeq: &seq}
			if !known {
				a.Unknown = proto.Bool(true)
			}
			data, err := proto.Marshal(a.Build())
			if err != nil {
				continue // it holds three numbers
			}
			r.Respond(data, nil)
		}
	}
}

// commands are what was noticed: nodes that are back, and nodes that have fallen silent.
func (w *watch) commands(now time.Time, s *cell.State) []lifecycle.Command {
	var out []lifecycle.Command
	if !w.took {
		w.took = true
		out = append(out, lifecycle.TakeOver{})
	}
	for n := range s.Nodes() {
		switch {
		case n.Condition == cell.Silent && w.back[n.Name]:
			out = append(out, lifecycle.Back{Node: n.Name})
		case n.Condition == cell.Ready && !now.Before(w.fallsSilent(n.Name)):
			out = append(out, lifecycle.Silent{Node: n.Name})
		}
	}
	clear(w.back)
	return out
}

func (w *watch) fallsSilent(node string) time.Time {
	at := w.since
	if h, ok := w.heard[node]; ok && h.After(at) {
		at = h
	}
	return at.Add(w.silent)
}

// next is when the next node falls silent, as things are.
func (w *watch) next(_ time.Time, s *cell.State) time.Time {
	w.due = time.Time{}
	for n := range s.Nodes() {
		if at := w.fallsSilent(n.Name); n.Condition == cell.Ready && (w.due.IsZero() || at.Before(w.due)) {
			w.due = at
		}
	}
	return w.due
}
