package bus

import (
	"context"
	"errors"
)

// The three accounts. Permissions inside one account cannot enforce "written by" (reply subjects can be forged), so the
// boundaries that matter are between accounts.
const (
	AccountCore  = "CORE"  // services only: the ledger and what is derived from it
	AccountNodes = "NODES" // agents; the services through a second connection
	AccountDoor  = "DOOR"  // outsiders, without JetStream; the gateway is the only bridge
)

// Streams of CORE.
const (
	StreamLedger      = "LEDGER"
	StreamCheckpoints = "CHECKPOINTS"
	StreamRequests    = "REQUESTS"
	StreamEvents      = "EVENTS"
	StreamFindings    = "FINDINGS"
)

// Streams of NODES.
const (
	StreamReports     = "REPORTS"
	StreamSaves       = "SAVES"
	StreamMetrics     = "METRICS"
	StreamLogs        = "LOGS"
	StreamAssignments = "ASSIGNMENTS"
)

// Buckets of objects.
const (
	BucketSnapshots = "SNAPSHOTS" // CORE
	BucketBundles   = "BUNDLES"   // NODES
)

// Subjects of the two ledgers.
const (
	SubjectLedger     = "weft.ledger"
	SubjectCheckpoint = "weft.checkpoint"
)

// SubjectRequest is where the gateway puts a tenant's request for the scheduler.
func SubjectRequest(tenant, verb string) string { return "weft.request." + tenant + "." + verb }

// SubjectEvent is where a tenant's CloudEvents of one type go, in EVENTS and in DOOR.
func SubjectEvent(tenant, typ string) string { return "weft.event." + tenant + "." + typ }

// SubjectFinding is where telemetry puts what it found.
func SubjectFinding(tenant, kind string) string { return "weft.finding." + tenant + "." + kind }

// SubjectReport is where a node's agent reports to the scheduler.
func SubjectReport(node string) string { return "weft.report." + node }

// SubjectSave is where a node's agent reports parts of saves to the checkpoint service.
func SubjectSave(node string) string { return "weft.save." + node }

// SubjectAssign is where a node's whole desired set stands.
func SubjectAssign(node string) string { return "weft.assign." + node }

// SubjectMetric is where a node's samples go.
func SubjectMetric(node string) string { return "weft.metric." + node }

// SubjectLog is where a node's copies of rank output go.
func SubjectLog(node string) string { return "weft.log." + node }

// SubjectBeat is the call by which an agent keeps contact.
func SubjectBeat(node string) string { return "weft.beat." + node }

// SubjectLeader is where a service's leader beats.
func SubjectLeader(service string) string { return "weft.leader." + service }

// SubjectRPC is a call to a service.
func SubjectRPC(service, method string) string { return "weft.rpc." + service + "." + method }

// SubjectAPI is a call of a tenant to the gateway, in DOOR.
func SubjectAPI(tenant, method string) string { return "weft.api." + tenant + "." + method }

// ApplyOptions are what the declarations leave open.
type ApplyOptions struct {
	Replicas int // of every stream; 0 = 1
}

// Apply creates or updates every stream and bucket of the two accounts.
func Apply(ctx context.Context, core, nodes *Conn, opts ApplyOptions) error {
	return errors.New("bus: not yet")
}

// Verify refuses a bus whose configuration is weaker or newer than this program's.
func Verify(ctx context.Context, core, nodes *Conn) error {
	return errors.New("bus: not yet")
}

// Declaration is what readers and adapters may know of a stream.
type Declaration struct {
	Account       string
	Subjects      []string
	OnePerSubject bool  // a new message replaces the subject's old one
	MaxBytes      int64 // 0 = no limit
	DiscardOld    bool  // full: drop the oldest; otherwise refuse the newest
}

// Declared returns the declaration of a stream.
func Declared(stream string) (Declaration, bool) { return Declaration{}, false }
