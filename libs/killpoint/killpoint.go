// Package killpoint names the instants at which a crash is most telling, so that a test can make one happen there.
//
// It owns the names and the counting. In a normal build it does nothing; in one with the tag chaos the process kills
// itself, as by SIGKILL from outside, at the arrival that WEFT_KILL names: "assign:3" is the third at Assign.
package killpoint

// Points, in the order in which a job passes them.
const (
	Submit   = "submit"   // the request is stored, its sender has no answer yet
	Assign   = "assign"   // the placement is committed, the node does not know it yet
	Launch   = "launch"   // the agent is about to start the ranks, or just has
	Save     = "save"     // a part is on disk, and not yet reported, or not yet in the log of checkpoints
	Release  = "release"  // the ranks have ended, and nobody was told yet
	Announce = "announce" // a fact is committed and not yet an event
)

// All lists them.
var All = []string{Submit, Assign, Launch, Save, Release, Announce}
