package cell

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// FoldVersion changes whenever the same ledger gives another state or another encoding of it; a snapshot of another
// version is not read, its ledger is replayed instead.
const FoldVersion = 1

// KeepArchived is for how long the id of an archived job is remembered.
const KeepArchived = int64(30 * 24 * 3600 * 1e9)

// State is the cell as of some commit. Everything in it is shared between overlays and immutable once stored; only
// Evolve and Apply change a State, by putting new values in place of old ones.
type State struct {
	edit    *token // what the change under way owns; a new one for each change, so that overlays never see it
	time    int64
	cursors []*weftv1.Cursor // by stream; replaced as a whole

	live, ended tree[*Job] // by id
	nodes       tree[*Node]
	queues      tree[*Queue]
	archived    tree[Archived]
	claims      tree[*Claim]
	sampled     tree[int64] // by queue: decayed usage

	// Derived from the above, for readers that must not scan 100k jobs; never encoded.
	waiting tree[struct{}] // queue, id: queued or in backoff
	active  tree[struct{}] // id
	names   tree[struct{}] // queue, name, id of live jobs
	holds   tree[struct{}] // node, id: the attempt holds something there
	due     tree[struct{}] // time, kind, name: when Tick has something to do
	endings tree[struct{}] // time, id of ended jobs
	forget  tree[struct{}] // time, id of archived ones
	totals  tree[Totals]   // by queue, its descendants included
}

// NewState is the empty cell.
func NewState() *State { return &State{} }

// Overlay is a copy in constant time: either side may evolve, and the other does not see it. The overlay stays valid
// for as long as it is kept, so a long reader takes one under the projection's lock and works without it.
func (s *State) Overlay() *State {
	o := *s
	o.edit = nil
	return &o
}

// TimeNS is the ledger time of the newest commit.
func (s *State) TimeNS() int64 { return s.time }

// Cursor says up to where an input stream was consumed; nil if it never was.
func (s *State) Cursor(stream string) *weftv1.Cursor {
	i, ok := slices.BinarySearchFunc(s.cursors, stream, byStream)
	if !ok {
		return nil
	}
	return s.cursors[i]
}

func byStream(c *weftv1.Cursor, stream string) int { return strings.Compare(c.GetStream(), stream) }

// Job returns a job that was not archived, or nil.
func (s *State) Job(id string) *Job {
	if j, ok := s.live.get(id); ok {
		return j
	}
	j, _ := s.ended.get(id)
	return j
}

// Jobs are all jobs that were not archived, by id.
func (s *State) Jobs() iter.Seq[*Job] {
	live, ended := s.live, s.ended
	return func(yield func(*Job) bool) {
		next, stop := iter.Pull2(ended.from(""))
		defer stop()
		_, e, ok := next()
		for id, j := range live.from("") {
			for ; ok && e.ID < id; _, e, ok = next() {
				if !yield(e) {
					return
				}
			}
			if !yield(j) {
				return
			}
		}
		for ; ok; _, e, ok = next() {
			if !yield(e) {
				return
			}
		}
	}
}

// LiveJobs are the jobs that have not ended, by id.
func (s *State) LiveJobs() iter.Seq[*Job] { return values(s.live) }

// ActiveJobs are the jobs whose attempt holds a place, by id.
func (s *State) ActiveJobs() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for id := range s.active.from("") {
			if j, _ := s.live.get(id); !yield(j) {
				return
			}
		}
	}
}

// WaitingJobs are the jobs that wait for a place, queued or in backoff, by queue and id.
func (s *State) WaitingJobs() iter.Seq[*Job] { return s.waitingUnder("") }

// WaitingIn are the jobs of exactly this queue that wait for a place, by id.
func (s *State) WaitingIn(queue string) iter.Seq[*Job] { return s.waitingUnder(queue + "\x00") }

func (s *State) waitingUnder(prefix string) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for k := range s.waiting.prefixed(prefix) {
			if j, _ := s.live.get(k[strings.IndexByte(k, 0)+1:]); !yield(j) {
				return
			}
		}
	}
}

// JobByName is the live job of that name in a queue, or nil. Submitting lets no second one in; if a ledger has two all
// the same, it is the one with the lowest id, for every reader.
func (s *State) JobByName(queue, name string) *Job {
	for id := range s.names.prefixed(queue + "\x00" + name + "\x00") {
		return s.Job(id)
	}
	return nil
}

// OnNode are the jobs whose attempt holds something on a node, by id.
func (s *State) OnNode(node string) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for id := range s.holds.prefixed(node + "\x00") {
			if j, _ := s.live.get(id); !yield(j) {
				return
			}
		}
	}
}

// Node returns a node, or nil.
func (s *State) Node(name string) *Node { n, _ := s.nodes.get(name); return n }

// Nodes are all nodes, by name.
func (s *State) Nodes() iter.Seq[*Node] { return values(s.nodes) }

// Queue returns a queue, or nil.
func (s *State) Queue(path string) *Queue { q, _ := s.queues.get(path); return q }

// Queues are all queues, by path.
func (s *State) Queues() iter.Seq[*Queue] { return values(s.queues) }

// Archived returns what is remembered of an archived job.
func (s *State) Archived(id string) (Archived, bool) { return s.archived.get(id) }

// Claim returns the claim that a job holds, or nil.
func (s *State) Claim(job string) *Claim { c, _ := s.claims.get(job); return c }

// Claims are all claims, by job.
func (s *State) Claims() iter.Seq[*Claim] { return values(s.claims) }

// Counts are the numbers of live and of ended jobs that were not archived.
func (s *State) Counts() (live, ended int) { return s.live.size, s.ended.size }

func values[V any](t tree[V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range t.from("") {
			if !yield(v) {
				return
			}
		}
	}
}

// UnknownKind stops a reader: the ledger carries a fact that it does not know and may not pass over.
type UnknownKind struct {
	Kind string
	Seq  uint64
}

func (e *UnknownKind) Error() string {
	return fmt.Sprintf("cell: ledger record %d carries the fact %q, which this version does not know; upgrade this service", e.Seq, e.Kind)
}

// Apply folds one commit. It fails, without having changed anything, with *UnknownKind for a fact that it does not know
// and that is not marked ignorable, and with another error for bytes that are no fact.
func Apply(s *State, c *weftv1.Commit, seq uint64) error {
	facts := make([]*weftv1.Fact, 0, len(c.GetEntries()))
	for _, e := range c.GetEntries() {
		if e.GetKind() == "leader_elected" { // the ledger library's own
			continue
		}
		f, err := Fact(e, seq)
		if err != nil {
			return err
		}
		if f != nil {
			facts = append(facts, f)
		}
	}
	s.edit = new(token)
	for _, f := range facts {
		s.evolve(f, c.GetTimeNs())
	}
	s.time = max(s.time, c.GetTimeNs())
	for _, cur := range c.GetCursors() {
		s.setCursor(cur)
	}
	return nil
}

// Fact decodes one entry of a commit. It is nil for an entry that this version does not know and may pass over.
func Fact(e *weftv1.Entry, seq uint64) (*weftv1.Fact, error) {
	f := &weftv1.Fact{}
	err := proto.Unmarshal(e.GetFact(), f)
	switch {
	case err == nil && f.HasKind():
		return f, nil
	case e.GetIgnorable():
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cell: decode fact %s of ledger record %d: %w", e.GetKind(), seq, err)
	}
	return nil, &UnknownKind{Kind: e.GetKind(), Seq: seq}
}

func (s *State) setCursor(c *weftv1.Cursor) {
	i, ok := slices.BinarySearchFunc(s.cursors, c.GetStream(), byStream)
	next := slices.Clone(s.cursors)
	if ok {
		next[i] = c
	} else {
		next = slices.Insert(next, i, c)
	}
	s.cursors = next
}

// Kinds of deadlines in the due index.
const (
	DueJob   = 'j' // end of a backoff, or of the run-time limit
	DueNode  = 'n' // a silent node counts as lost
	DueClaim = 'c' // a claim expires
)

// Deadline is one moment at which time alone changes something.
type Deadline struct {
	At   int64
	Kind byte
	Name string // job or node
}

// Deadlines are the moments at which Tick has something to do, nearest first. Archiving is not among them: see Endings.
func (s *State) Deadlines() iter.Seq[Deadline] {
	return func(yield func(Deadline) bool) {
		for k := range s.due.from("") {
			if !yield(Deadline{At: keyTime(k), Kind: k[8], Name: k[9:]}) {
				return
			}
		}
	}
}

// Endings are the ended jobs with the time of their end, longest ago first.
func (s *State) Endings() iter.Seq2[int64, string] {
	return func(yield func(int64, string) bool) {
		for k := range s.endings.from("") {
			if !yield(keyTime(k), k[8:]) {
				return
			}
		}
	}
}

func timeKey(at int64, rest string) string {
	b := make([]byte, 8, 8+len(rest))
	binary.BigEndian.PutUint64(b, uint64(max(at, 0)))
	return string(append(b, rest...))
}

func keyTime(k string) int64 { return int64(binary.BigEndian.Uint64([]byte(k[:8]))) }
