package lifecycle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Event is one fact as the world sees it.
type Event struct {
	Tenant string
	Type   string // subject token, such as job-placed
	Job    string // empty if it concerns none
	JSON   []byte // CloudEvents 1.0, structured mode
}

// envelope is the CloudEvents context; its fields are written in this order.
type envelope struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject,omitempty"`
	Time        string          `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Traceparent string          `json:"traceparent,omitempty"`
	Tenant      string          `json:"wefttenant"`
	Queue       string          `json:"weftqueue,omitempty"`
	Name        string          `json:"weftname,omitempty"`
	Data        json.RawMessage `json:"data"`
}

// CloudEvents are the events of one commit, a pure function of the ledger: two replicas that compute them get the same
// bytes. The state may be that of the commit or of any later one, since what is taken from it (whose job it is, and its
// name) never changes. Facts of the ledger library, and kinds that this version does not know, have no event.
func CloudEvents(seq uint64, c *weftv1.Commit, s *cell.State) []Event {
	var out []Event
	for i, e := range c.GetEntries() {
		if f, err := cell.Fact(e, seq); err == nil && f != nil {
			out = append(out, cloudEvent(fmt.Sprintf("%d/%d", seq, i), c.GetTimeNs(), f, s))
		}
	}
	return out
}

func cloudEvent(id string, at int64, f *weftv1.Fact, s *cell.State) Event {
	m := f.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	fact := m.Get(field).Message()
	typ := eventToken(string(field.Name()))
	ev := Event{Tenant: jobspec.CellTenant, Type: typ, Job: text(fact, "job")}
	env := envelope{
		SpecVersion: "1.0", ID: id, Source: "/weft/ledger", Type: EventType(string(field.Name())), ContentType: "application/json",
		Time: time.Unix(0, at).UTC().Format(time.RFC3339Nano), Subject: ev.Job,
	}
	switch {
	case f.HasInputRejected():
		// It may name a job that does not exist yet, and then the owner would depend on when one looks.
	case ev.Job != "":
		who := ownerOf(s, ev.Job)
		if who.tenant != "" {
			ev.Tenant = who.tenant
		}
		env.Queue, env.Name = who.queue, who.name
		env.Traceparent = traceparent(ev.Job, attemptOf(fact))
	case text(fact, "queue") != "":
		q := text(fact, "queue")
		ev.Tenant, env.Subject, env.Queue = cell.Tenant(q), q, q
	default:
		env.Subject = text(fact, "node")
	}
	env.Tenant = ev.Tenant
	env.Data = data(fact.Interface())
	b, err := json.Marshal(env)
	if err != nil { // only invalid raw data can do that, and data made it
		panic(fmt.Sprintf("lifecycle: event %s: %v", id, err))
	}
	ev.JSON = b
	return ev
}

// EventType is the CloudEvents type of a kind of fact, such as weft.job-placed for job_placed.
func EventType(kind string) string { return "weft." + eventToken(kind) }

// eventToken is the same as a subject token.
func eventToken(kind string) string { return strings.ReplaceAll(kind, "_", "-") }

type owner struct{ tenant, queue, name string }

func ownerOf(s *cell.State, job string) owner {
	if j := s.Job(job); j != nil {
		return owner{j.Tenant, j.Queue(), j.Spec.GetName()}
	}
	a, _ := s.Archived(job)
	return owner{a.Tenant, a.Queue, a.Name}
}

func text(m protoreflect.Message, field protoreflect.Name) string {
	if f := m.Descriptor().Fields().ByName(field); f != nil && f.Kind() == protoreflect.StringKind {
		return m.Get(f).String()
	}
	return ""
}

func attemptOf(m protoreflect.Message) uint64 {
	if f := m.Descriptor().Fields().ByName("attempt"); f != nil {
		return m.Get(f).Uint()
	}
	return 0
}

// traceparent derives ids, so that every reader of the ledger names the same spans: the trace is the job, the span is
// the job or one attempt of it.
func traceparent(job string, attempt uint64) string {
	trace := sha256.Sum256([]byte(job))
	path := "job"
	if attempt > 0 {
		path = fmt.Sprintf("job/attempt/%d", attempt)
	}
	span := sha256.Sum256([]byte(job + "/" + path))
	return "00-" + hex.EncodeToString(trace[:16]) + "-" + hex.EncodeToString(span[:8]) + "-01"
}

// data is the fact in protobuf's JSON with the names of the proto file. The library varies white space on purpose;
// compacting takes that out again.
func data(m protoreflect.ProtoMessage) json.RawMessage {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil { // only text that is not UTF-8 can do that, and facts came from the wire, which checks it
		b, _ = json.Marshal(map[string]string{"error": err.Error()})
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return json.RawMessage("null")
	}
	return out.Bytes()
}
