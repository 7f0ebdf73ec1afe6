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
//
// An answer is a promise, for the agent lets its ranks live for a fence after it. So only who surely leads answers, and a
// silent node is answered once the ledger says that it is back: its deadline would go on otherwise.
type watch struct {
	beats  bus.Server
	silent time.Duration
	heard  map[string]time.Time
	since  time.Time       // nothing before counts
	due    time.Time       // when the next node would fall silent
	back   map[string]bool // silent nodes that were heard, until the ledger says that they are back
	held   []beat          // of silent nodes, to be answered after the commit
	took   bool            // TakeOver has been decided and committed since the leadership or the last failure began
}

// beat is one to be answered.
type beat struct {
	node    string
	respond func(data []byte, refusal *bus.Refusal)
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
	clear(w.back)
	w.took, w.held = false, nil
}

// restart counts silence from now on.
func (w *watch) restart(now time.Time) {
	w.since = now
	clear(w.heard)
}

// failed: nothing that was noticed came true, and time was lost. Deadlines that would pass before the nodes could be
// heard move again, as at a takeover.
func (w *watch) failed(now time.Time) {
	w.restart(now)
	w.took, w.held = false, nil
}

// committed: what was noticed is in the ledger, so the nodes that are back get their answers.
func (w *watch) committed(s *cell.State, term, seq uint64) {
	w.took = true
	for _, b := range w.held {
		if n := s.Node(b.node); n != nil && n.Condition == cell.Ready {
			w.respond(b, term, seq, false)
		}
	}
	w.held = nil
}

// answer takes the waiting beats. Unless this replica surely leads, they are heard and get no answer.
func (w *watch) answer(now time.Time, s *cell.State, term, seq uint64, sure bool) {
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
			}
			answer := beat{node: b.GetNode(), respond: r.Respond}
			switch {
			case known && n.Condition == cell.Silent:
				w.back[n.Name] = true
				if sure {
					w.held = append(w.held, answer)
				}
			case sure:
				w.respond(answer, term, seq, !known)
			}
		}
	}
}

func (w *watch) respond(b beat, term, seq uint64, unknown bool) {
	a := weftv1.BeatAnswer_builder{Term: &term, LedgerSeq: &seq}
	if unknown {
		a.Unknown = proto.Bool(true)
	}
	data, err := proto.Marshal(a.Build())
	if err != nil {
		return // it holds three numbers
	}
	b.respond(data, nil)
}

// commands are what was noticed: nodes that are back, and nodes that have fallen silent.
func (w *watch) commands(now time.Time, s *cell.State) []lifecycle.Command {
	var out []lifecycle.Command
	if !w.took {
		out = append(out, lifecycle.TakeOver{})
	}
	for n := range s.Nodes() {
		switch {
		case n.Condition == cell.Silent && w.back[n.Name]:
			out = append(out, lifecycle.Back{Node: n.Name})
		case w.back[n.Name]:
			delete(w.back, n.Name)
		case n.Condition == cell.Ready && !now.Before(w.fallsSilent(n.Name)):
			out = append(out, lifecycle.Silent{Node: n.Name})
		}
	}
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
func (w *watch) next(s *cell.State) time.Time {
	w.due = time.Time{}
	for n := range s.Nodes() {
		if at := w.fallsSilent(n.Name); n.Condition == cell.Ready && (w.due.IsZero() || at.Before(w.due)) {
			w.due = at
		}
	}
	return w.due
}
