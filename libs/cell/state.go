package cell

import (
	"slices"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Job is one job as the ledger knows it. Readers must not change it: it is shared by every overlay of its state.
type Job struct {
	ID          string
	Tenant      string
	Spec        *weftv1.JobSpec // immutable
	SpecHash    string
	By          string
	Traceparent string

	Phase      Phase
	Submitted  int64 // ledger time, Unix ns
	PhaseSince int64
	Ended      int64 // 0 while live
	Attempts   uint32
	Restarts   uint32 // charged ones
	NotBefore  int64  // end of the backoff
	Degraded   bool   // lost its place to a fault; goes before its queue's others
	Cancel     bool   // a person asked for its end
	CancelBy   string
	Cause      *weftv1.Cause     // of the last attempt's end; nil if none
	Reason     string            // why it failed, for a person
	Saves      []*weftv1.SaveRef // verified ones, by attempt and step, oldest first
	Attempt    *Attempt          // the attempt that holds a place; nil otherwise
	GPUNanos   int64             // card-time used so far, card × ns
	GPULost    int64             // card-time since the last save at each fault
}

// Queue is the path of the job's queue.
func (j *Job) Queue() string { return j.Spec.GetQueue() }

// Waiting says whether the job waits for a place, now or after its backoff.
func (j *Job) Waiting() bool { return j.Phase == Queued || j.Phase == Backoff }

// ResumeFrom is the save that the next attempt restores: the newest verified full one (or any, if the job lets light
// ones serve), ordered by attempt and step, never by clock. It is nil for a job that starts from the beginning.
func (j *Job) ResumeFrom() *weftv1.SaveRef {
	light := j.Spec.GetCheckpoint().GetResumeFromLight()
	for _, r := range slices.Backward(j.Saves) {
		if r.GetClass() == weftv1.SaveClass_SAVE_CLASS_FULL || light {
			return r
		}
	}
	return nil
}

// Attempt is one try of a job, from placement to release.
type Attempt struct {
	Number        uint32
	Placements    []*weftv1.Placement
	Size          uint32 // ranks
	ResumeFrom    *weftv1.SaveRef
	MasterAddress string
	MasterPort    uint32
	Placed        int64
	RunningAt     int64         // 0 until every rank started
	SavedAt       int64         // when its newest save was verified; 0 = none yet
	Started       []string      // nodes whose ranks all started, sorted
	Released      []string      // nodes that hold nothing of it any more, sorted
	Completed     []string      // released nodes whose ranks all exited 0, sorted
	Stopping      bool          // asked to end
	Cause         *weftv1.Cause // first cause of its end
	KillAt        int64         // when SIGKILL follows SIGTERM

	nodes []string // of the placements, sorted, each once
}

// Nodes are the nodes of the placements, sorted, each once.
func (a *Attempt) Nodes() []string { return a.nodes }

// Holds says whether the attempt has a place on the node that was not released.
func (a *Attempt) Holds(node string) bool {
	return inSorted(a.nodes, node) && !inSorted(a.Released, node)
}

// HasStarted says whether every rank on the node started.
func (a *Attempt) HasStarted(node string) bool { return inSorted(a.Started, node) }

// RanksOn are the ranks that the attempt has on a node, in order.
func (a *Attempt) RanksOn(node string) []uint32 {
	var out []uint32
	for _, p := range a.Placements {
		if p.GetNode() == node {
			for r := range p.GetCount() {
				out = append(out, p.GetFirstRank()+r)
			}
		}
	}
	slices.Sort(out)
	return out
}

// NodeCondition is what the scheduler believes of a machine.
type NodeCondition string

// The conditions of a node.
const (
	Ready  NodeCondition = "ready"
	Silent NodeCondition = "silent" // no answered beat for a while; its ranks may run
	Lost   NodeCondition = "lost"   // silent for longer than the fence: its ranks are dead
)

// Node is one machine. Readers must not change it.
type Node struct {
	Name         string
	BootID       string
	Generation   uint64            // of the device list; placements name it
	Inventory    *weftv1.Inventory // immutable; of this generation
	Condition    NodeCondition
	LostAt       int64 // when a silent node counts as lost; 0 = not by itself
	Cordoned     bool
	Draining     bool
	CordonReason string
	Strays       []Stray // attempts it still holds though the ledger ended them; blocks it until they are released
}

// Stray names an attempt that a node came back with after the ledger had given it up.
type Stray struct {
	Job     string
	Attempt uint32
}

// Queue is one queue of the tree. Readers must not change it.
type Queue struct {
	Path string
	Set  *weftv1.QueueSet // immutable
}

// Archived is what stays of an ended job for 30 days.
type Archived struct {
	SpecHash string
	Phase    Phase
	Ended    int64
	Tenant   string
	Queue    string
	Name     string
}

// Claim holds nodes for a job.
type Claim struct {
	Job     string
	Nodes   []string // sorted
	Expires int64
}

func inSorted(list []string, s string) bool { _, ok := slices.BinarySearch(list, s); return ok }

// withSorted is list with s in its place; list itself stays as it is.
func withSorted(list []string, s string) []string {
	i, found := slices.BinarySearch(list, s)
	if found {
		return list
	}
	out := make([]string, 0, len(list)+1)
	return append(append(append(out, list[:i]...), s), list[i:]...)
}
