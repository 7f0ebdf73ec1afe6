package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ConfigVersion is written to every stream; Verify refuses a bus made by a program with a higher one.
const ConfigVersion = 1

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

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
	day = 24 * time.Hour
)

// Declaration is what the fabric demands of one stream. All are limits streams: an interest or work-queue stream would
// lose or reorder inputs, and pays a second fsync a message.
type Declaration struct {
	Account       string
	Name          string
	Subjects      []string
	OnePerSubject bool          // a new message replaces the subject's old one
	MaxBytes      int64         // 0 = no limit
	MaxAge        time.Duration // 0 = never expires by itself
	DiscardOld    bool          // full: drop the oldest; otherwise refuse the newest
	Memory        bool          // not on disk
	Rebuildable   bool          // on a single server it may skip fsync: the ledger can rebuild it
	NoDelete      bool          // single messages can't be deleted (the leader may still purge below a snapshot)
	Bucket        bool          // layout of a NATS object store: rollup of the metadata, direct reads
}

var declarations = []Declaration{
	{Account: AccountCore, Name: StreamLedger, Subjects: []string{SubjectLedger}, NoDelete: true},
	{Account: AccountCore, Name: StreamCheckpoints, Subjects: []string{SubjectCheckpoint}, NoDelete: true},
	{Account: AccountCore, Name: StreamRequests, Subjects: []string{"weft.request.*.*"}, MaxBytes: 256 * mib},
	{Account: AccountCore, Name: StreamEvents, Subjects: []string{"weft.event.*.*"}, MaxBytes: 4 * gib, MaxAge: 30 * day, DiscardOld: true, Rebuildable: true},
	{Account: AccountCore, Name: StreamFindings, Subjects: []string{"weft.finding.*.*"}, MaxBytes: 256 * mib, MaxAge: 30 * day, DiscardOld: true},
	{Account: AccountCore, Name: "OBJ_" + BucketSnapshots, Subjects: bucketSubjects(BucketSnapshots), Bucket: true},

	{Account: AccountNodes, Name: StreamReports, Subjects: []string{"weft.report.*"}, MaxBytes: gib},
	{Account: AccountNodes, Name: StreamSaves, Subjects: []string{"weft.save.*"}, MaxBytes: 256 * mib},
	{Account: AccountNodes, Name: StreamMetrics, Subjects: []string{"weft.metric.*"}, MaxBytes: 512 * mib, MaxAge: time.Minute, DiscardOld: true, Memory: true},
	{Account: AccountNodes, Name: StreamLogs, Subjects: []string{"weft.log.*"}, MaxBytes: gib, MaxAge: day, DiscardOld: true},
	{Account: AccountNodes, Name: StreamAssignments, Subjects: []string{"weft.assign.*"}, OnePerSubject: true, DiscardOld: true, Rebuildable: true},
	{Account: AccountNodes, Name: "OBJ_" + BucketBundles, Subjects: bucketSubjects(BucketBundles), Bucket: true},
}

// storeBytes and memoryBytes are what the server must grant so that every limit above can be reserved at once.
const (
	storeBytes  = 1024 * gib
	memoryBytes = gib
)

func bucketSubjects(bucket string) []string {
	return []string{"$O." + bucket + ".C.>", "$O." + bucket + ".M.>"}
}

// Declared returns the declaration of a stream.
func Declared(stream string) (Declaration, bool) {
	for _, d := range declarations {
		if d.Name == stream {
			return d, true
		}
	}
	return Declaration{}, false
}

// config is what a declaration asks of JetStream with so many replicas.
func (d Declaration) config(replicas int) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: d.Name, Subjects: d.Subjects, Retention: jetstream.LimitsPolicy, Replicas: replicas,
		MaxAge: d.MaxAge, MaxBytes: d.MaxBytes, MaxMsgs: -1, MaxMsgSize: -1, MaxMsgsPerSubject: -1,
		Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
		DenyDelete: d.NoDelete,
		// Reads of anything but buckets go to the stream's leader: a follower may be behind, and writers decide by what they read.
		AllowDirect: d.Bucket, AllowRollup: d.Bucket,
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = -1
	}
	if d.DiscardOld {
		c.Discard = jetstream.DiscardOld
	}
	if d.OnePerSubject {
		c.MaxMsgsPerSubject = 1
	}
	if d.Memory {
		c.Storage = jetstream.MemoryStorage
	}
	if d.Rebuildable && replicas == 1 { // the server refuses this mode on more replicas, where it gains nothing
		c.PersistMode = jetstream.AsyncPersistMode
	}
	return c
}

// create retries what the server answers while it still removes the directory of an account's last stream.
func create(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		_, err := js.CreateStream(ctx, cfg)
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != 10049 || wait > time.Second {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

func update(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	_, err := js.UpdateStream(ctx, cfg)
	return err
}

// Subjects of the two ledgers.
const (
	SubjectLedger     = "weft.ledger"
	SubjectCheckpoint = "weft.checkpoint"
)

// SubjectRequest is where the gateway puts a tenant's request for the scheduler.
func SubjectRequest(tenant, verb string) string { return "weft.request." + tenant + "." + verb }

// SubjectEvent is where a tenant's CloudEvents of one type go, in EVENTS.
func SubjectEvent(tenant, typ string) string { return "weft.event." + tenant + "." + typ }

// SubjectDoorEvent is where the gateway repeats a tenant's live events in DOOR, where a token more costs nothing: a
// pipeline subscribes to weft.event.<tenant>.> or to one job. An event that concerns no job has job "-".
func SubjectDoorEvent(tenant, job, typ string) string {
	if job == "" {
		job = "-"
	}
	return "weft.event." + tenant + "." + job + "." + typ
}

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

// SubjectNodeRPC is a call of a node's agent to a service. It carries the node, so that the service knows whose inbox it
// may answer (ReplyAllowed); a service serves it for node "*".
func SubjectNodeRPC(service, method, node string) string {
	return SubjectRPC(service, method) + "." + node
}

// SubjectAPI is a call of a tenant to the gateway, in DOOR.
func SubjectAPI(tenant, method string) string { return "weft.api." + tenant + "." + method }

// HeaderJob names the job that a message of LOGS or EVENTS is about, so that a reader need not decode what it does not
// want. A message about no job has none.
const HeaderJob = "Weft-Job"

// Role names a user of the bus; it is also the user's name.
type Role string

// Roles of services.
const (
	RoleCore      Role = "core"       // services in CORE
	RoleNodes     Role = "nodes"      // services in NODES
	RoleDoor      Role = "door"       // the gateway in DOOR
	RoleCoreInit  Role = "core-init"  // may create and change streams of CORE
	RoleNodesInit Role = "nodes-init" // may create and change streams of NODES
)

const nodePrefix, tenantPrefix = "node-", "tenant-"

// NodeRole is the user of one node's agent.
func NodeRole(node string) Role { return Role(nodePrefix + node) }

// TenantRole is the user of one tenant's pipelines.
func TenantRole(tenant string) Role { return Role(tenantPrefix + tenant) }

// grant is what one user may do. Nil lists allow nothing.
type grant struct {
	account   string
	publish   []string
	deny      []string // of publish
	subscribe []string
	respond   bool // may publish one answer to the reply subject of each message received
}

// Services hold no permission to change streams: only the init users, which nothing uses after the start, do.
var denyDesign = []string{
	"$JS.API.STREAM.CREATE.>", "$JS.API.STREAM.UPDATE.>", "$JS.API.STREAM.DELETE.>", "$JS.API.STREAM.RESTORE.>",
	"$JS.API.STREAM.MSG.DELETE.>", "$JS.API.ACCOUNT.>", "$JS.API.SERVER.>",
}

// grants returns the permissions of a role; ok is false for a role that does not exist.
func grants(r Role) (g grant, ok bool) {
	all := []string{">"}
	switch r {
	case RoleCoreInit:
		return grant{account: AccountCore, publish: all, subscribe: all}, true
	case RoleNodesInit:
		return grant{account: AccountNodes, publish: all, subscribe: all}, true
	case RoleCore:
		return grant{account: AccountCore, publish: all, deny: denyDesign, subscribe: all}, true
	case RoleNodes:
		return grant{account: AccountNodes, publish: all, deny: denyDesign, subscribe: all}, true
	case RoleDoor:
		return grant{
			account: AccountDoor, publish: []string{"weft.event.*.*.*"}, respond: true,
			subscribe: []string{"weft.request.*.*", "weft.api.*.*", InboxPrefix(r) + ".>"},
		}, true
	}
	if n, is := r.node(); is {
		return nodeGrant(n), CheckToken(n) == nil
	}
	if t, is := r.tenant(); is {
		return grant{
			account:   AccountDoor,
			publish:   []string{"weft.request." + t + ".*", "weft.api." + t + ".*"},
			subscribe: []string{"weft.event." + t + ".>", InboxPrefix(r) + ".>"},
		}, CheckToken(t) == nil
	}
	return grant{}, false
}

// nodeGrant lets an agent write its own subjects, read its own assignment by one consumer of a fixed name, and read
// bundles directly, and ask where a save lies. The filter stands in the create subject, and the server refuses a request whose body says another.
func nodeGrant(n string) grant {
	consumer := string(NodeRole(n))
	return grant{
		account: AccountNodes,
		publish: []string{
			SubjectReport(n), SubjectSave(n), SubjectMetric(n), SubjectLog(n), SubjectBeat(n),
			SubjectNodeRPC("checkpoint", "locate", n),
			"$JS.API.STREAM.INFO." + StreamAssignments,
			"$JS.API.CONSUMER.CREATE." + StreamAssignments + "." + consumer + "." + SubjectAssign(n),
			"$JS.API.CONSUMER.DELETE." + StreamAssignments + "." + consumer,
			"$JS.API.CONSUMER.MSG.NEXT." + StreamAssignments + "." + consumer,
			"$JS.API.DIRECT.GET.OBJ_" + BucketBundles,
			"$JS.API.DIRECT.GET.OBJ_" + BucketBundles + ".>",
		},
		subscribe: []string{InboxPrefix(NodeRole(n)) + ".>"},
	}
}
