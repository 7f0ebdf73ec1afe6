package cell

import (
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
	Cause      *weftv1.Cause // of the last attempt's end; nil if none
	Reason     string        // why it failed, for a person
	Saves      []*weftv1.SaveRef
	Attempt    *Attempt // the attempt that holds a place; nil otherwise
	GPUNanos   int64    // card-time used so far, card × ns
	GPULost    int64    // card-time since the last save at each fault
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
	Started       []string      // nodes whose ranks all started, sorted
	Released      []string      // nodes that hold nothing of it any more, sorted
	Completed     []string      // released nodes whose ranks all exited 0, sorted
	Stopping      bool          // asked to end
	Cause         *weftv1.Cause // first cause of its end
	KillAt        int64         // when SIGKILL follows SIGTERM
	Uncharged     bool          // its end costs no restart
}

// NodeCondition is what the scheduler believes of a machine.
type NodeCondition string

// The conditions of a node.
const (
	Ready  NodeCondition = "ready"
	Silent NodeCondition = "silent" // no answered beat for a while; its ranks may run
	Lost   NodeCondition = "lost"   // silent for longer than the fence: its ranks are dead
)

// Node is one machine.
type Node struct {
	Name         string
	BootID       string
	Generation   uint64
	Inventory    *weftv1.Inventory // immutable; of this generation
	Condition    NodeCondition
	LostAt       int64 // when a silent node counts as lost; 0 = not by itself
	Cordoned     bool
	Draining     bool
	CordonReason string
}

// Queue is one queue of the tree.
type Queue struct {
	Path string
	Set  *weftv1.QueueSet // immutable
}

// Archived is what stays of an ended job for 30 days.
type Archived struct {
	SpecHash string
	Phase    Phase
	Ended    int64
}

// Claim holds nodes for a job.
type Claim struct {
	Job     string
	Nodes   []string
	Expires int64
}
