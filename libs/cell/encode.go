package cell

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/zeebo/blake3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Encode writes a state as a weftv1.Snapshot, by our own encoder: fields in the order of their numbers, lists in the
// order of the state, no maps. Equal states give equal bytes on any machine and with any version of the protobuf
// library, which its own Marshal does not promise.
func Encode(s *State) []byte {
	e := &encoder{}
	e.uint(1, FoldVersion)
	e.uint(2, uint64(s.time))
	for _, c := range s.cursors {
		e.message(3, c)
	}
	for q := range s.Queues() {
		e.nested(4, func() { e.message(1, q.Set) })
	}
	for n := range s.Nodes() {
		e.nested(5, func() { e.node(n) })
	}
	for j := range s.Jobs() {
		e.nested(6, func() { e.job(j) })
	}
	for id, a := range s.archived.from("") {
		e.nested(7, func() {
			e.text(1, id)
			e.text(2, a.SpecHash)
			e.text(3, string(a.Phase))
			e.uint(4, uint64(a.Ended))
			e.text(5, a.Tenant)
			e.text(6, a.Queue)
			e.text(7, a.Name)
		})
	}
	for c := range s.Claims() {
		e.nested(8, func() {
			e.text(1, c.Job)
			e.texts(2, c.Nodes)
			e.uint(3, uint64(c.Expires))
		})
	}
	for q, u := range s.sampled.from("") {
		e.nested(9, func() {
			e.text(1, q)
			e.uint(2, uint64(u))
		})
	}
	return e.b
}

// Hash is the BLAKE3-256 of the encoded state: two readers of one ledger agree on it.
func Hash(s *State) [32]byte { return blake3.Sum256(Encode(s)) }

func (e *encoder) node(n *Node) {
	e.text(1, n.Name)
	e.text(2, n.BootID)
	e.uint(3, n.Generation)
	if n.Inventory != nil {
		e.message(4, n.Inventory)
	}
	e.text(5, string(n.Condition))
	e.uint(6, uint64(n.LostAt))
	e.truth(7, n.Cordoned)
	e.truth(8, n.Draining)
	e.text(9, n.CordonReason)
	for _, st := range n.Strays {
		e.nested(10, func() {
			e.text(1, st.Job)
			e.uint(2, uint64(st.Attempt))
		})
	}
}

func (e *encoder) job(j *Job) {
	e.text(1, j.ID)
	e.text(2, j.Tenant)
	e.message(3, j.Spec)
	e.text(4, j.SpecHash)
	e.text(5, j.By)
	e.text(6, j.Traceparent)
	e.text(7, string(j.Phase))
	e.uint(8, uint64(j.Submitted))
	e.uint(9, uint64(j.PhaseSince))
	e.uint(10, uint64(j.Attempts))
	e.uint(11, uint64(j.Restarts))
	e.uint(12, uint64(j.NotBefore))
	e.truth(13, j.Degraded)
	e.truth(14, j.Cancel)
	e.text(15, j.CancelBy)
	if j.Cause != nil {
		e.message(16, j.Cause)
	}
	e.text(17, j.Reason)
	for _, r := range j.Saves {
		e.message(18, r)
	}
	if j.Attempt != nil {
		e.nested(19, func() { e.attempt(j.Attempt) })
	}
	e.uint(20, uint64(j.Ended))
	e.uint(21, uint64(j.GPUNanos))
	e.uint(22, uint64(j.GPULost))
}

func (e *encoder) attempt(a *Attempt) {
	e.uint(1, uint64(a.Number))
	for _, p := range a.Placements {
		e.message(2, p)
	}
	e.uint(3, uint64(a.Size))
	if a.ResumeFrom != nil {
		e.message(4, a.ResumeFrom)
	}
	e.text(5, a.MasterAddress)
	e.uint(6, uint64(a.MasterPort))
	e.uint(7, uint64(a.Placed))
	e.uint(8, uint64(a.RunningAt))
	if a.Cause != nil {
		e.message(9, a.Cause)
	}
	e.uint(10, uint64(a.KillAt))
	e.texts(11, a.Started)
	e.texts(12, a.Released)
	e.texts(13, a.Completed)
	e.truth(14, a.Stopping)
	e.uint(15, uint64(a.SavedAt))
}

// encoder appends protobuf's wire format. What is empty or zero is left out, except inside messages of the ledger,
// whose fields know whether they were set.
type encoder struct{ b []byte }

func (e *encoder) uint(n protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendVarint(protowire.AppendTag(e.b, n, protowire.VarintType), v)
	}
}

func (e *encoder) truth(n protowire.Number, v bool) { e.uint(n, protowire.EncodeBool(v)) }

func (e *encoder) text(n protowire.Number, v string) {
	if v != "" {
		e.b = protowire.AppendString(protowire.AppendTag(e.b, n, protowire.BytesType), v)
	}
}

func (e *encoder) texts(n protowire.Number, vs []string) {
	for _, v := range vs {
		e.b = protowire.AppendString(protowire.AppendTag(e.b, n, protowire.BytesType), v)
	}
}

// nested writes what body appends as one length-delimited field.
func (e *encoder) nested(n protowire.Number, body func()) {
	e.b = protowire.AppendTag(e.b, n, protowire.BytesType)
	at := len(e.b)
	e.b = append(e.b, 0) // most lengths fit one byte; a longer one moves the body
	body()
	size := uint64(len(e.b) - at - 1)
	if need := protowire.SizeVarint(size); need > 1 {
		e.b = append(e.b, make([]byte, need-1)...)
		copy(e.b[at+need:], e.b[at+1:])
	}
	protowire.AppendVarint(e.b[:at], size)
}

// message writes a message of the ledger, fields in the order of their numbers.
func (e *encoder) message(n protowire.Number, m proto.Message) {
	e.nested(n, func() { e.fields(m.ProtoReflect()) })
}

func (e *encoder) fields(m protoreflect.Message) {
	fs := m.Descriptor().Fields()
	order := numberOrder(fs)
	for i := range fs.Len() {
		f := fs.Get(i)
		if order != nil {
			f = order[i]
		}
		if !m.Has(f) {
			continue
		}
		v := m.Get(f)
		switch {
		case f.IsMap():
			panic("cell: " + string(f.FullName()) + " is a map; messages of the ledger have none, their order is not defined")
		case f.IsList() && f.IsPacked():
			e.nested(f.Number(), func() {
				for i := range v.List().Len() {
					e.b = appendValue(e.b, f, v.List().Get(i))
				}
			})
		case f.IsList():
			for i := range v.List().Len() {
				e.field(f, v.List().Get(i))
			}
		default:
			e.field(f, v)
		}
	}
	e.b = append(e.b, m.GetUnknown()...)
}

// numberOrder lists fields by number; nil if they are declared in that order, as nearly all are.
func numberOrder(fs protoreflect.FieldDescriptors) []protoreflect.FieldDescriptor {
	sorted := true
	for i := 1; i < fs.Len(); i++ {
		sorted = sorted && fs.Get(i-1).Number() < fs.Get(i).Number()
	}
	if sorted {
		return nil
	}
	out := make([]protoreflect.FieldDescriptor, fs.Len())
	for i := range out {
		out[i] = fs.Get(i)
	}
	slices.SortFunc(out, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	return out
}

func (e *encoder) field(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	if f.Kind() == protoreflect.MessageKind {
		e.nested(f.Number(), func() { e.fields(v.Message()) })
		return
	}
	e.b = appendValue(protowire.AppendTag(e.b, f.Number(), wireType(f.Kind())), f, v)
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind:
		return protowire.BytesType
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protowire.AppendVarint(b, protowire.EncodeBool(v.Bool()))
	case protoreflect.EnumKind:
		return protowire.AppendVarint(b, uint64(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return protowire.AppendVarint(b, uint64(v.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return protowire.AppendVarint(b, protowire.EncodeZigZag(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return protowire.AppendVarint(b, v.Uint())
	case protoreflect.Fixed64Kind:
		return protowire.AppendFixed64(b, v.Uint())
	case protoreflect.Sfixed64Kind:
		return protowire.AppendFixed64(b, uint64(v.Int()))
	case protoreflect.StringKind:
		return protowire.AppendString(b, v.String())
	case protoreflect.BytesKind:
		return protowire.AppendBytes(b, v.Bytes())
	}
	panic(fmt.Sprintf("cell: %s is of kind %s, which has no canonical encoding here", f.FullName(), f.Kind()))
}

// OtherVersion says that a snapshot was written by another version of the fold; replay the ledger instead.
type OtherVersion struct{ Got uint32 }

func (e *OtherVersion) Error() string {
	return fmt.Sprintf("cell: the snapshot is of fold version %d, this is %d", e.Got, FoldVersion)
}

// Decode reads what Encode wrote, and rebuilds every index.
func Decode(b []byte) (*State, error) {
	snap := &weftv1.Snapshot{}
	if err := proto.Unmarshal(b, snap); err != nil {
		return nil, fmt.Errorf("cell: decode snapshot: %w", err)
	}
	if snap.GetFold() != FoldVersion {
		return nil, &OtherVersion{Got: snap.GetFold()}
	}
	s := &State{edit: new(token), time: snap.GetTimeNs(), cursors: snap.GetCursors()}
	for _, q := range snap.GetQueues() {
		s.queueSet(q.GetSet())
	}
	for _, n := range snap.GetNodes() {
		s.putNode(nil, nodeFrom(n))
	}
	for _, j := range snap.GetJobs() {
		s.put(nil, jobFrom(j))
	}
	for _, a := range snap.GetArchived() {
		s.archived.set(s.edit, a.GetId(), Archived{
			SpecHash: a.GetSpecHash(), Phase: Phase(a.GetPhase()), Ended: a.GetEndedNs(), Tenant: a.GetTenant(),
			Queue: a.GetQueue(), Name: a.GetName(),
		})
		s.forget.set(s.edit, timeKey(a.GetEndedNs(), a.GetId()), struct{}{})
	}
	for _, c := range snap.GetClaims() {
		s.putClaim(c.GetJob(), &Claim{Job: c.GetJob(), Nodes: c.GetNodes(), Expires: c.GetExpiresNs()})
	}
	for _, u := range snap.GetUsage() {
		s.sampled.set(s.edit, u.GetQueue(), u.GetGpuMilliSeconds())
	}
	s.edit = nil
	return s, nil
}

func nodeFrom(n *weftv1.NodeState) *Node {
	out := &Node{
		Name: n.GetName(), BootID: n.GetBootId(), Generation: n.GetGeneration(), Condition: NodeCondition(n.GetCondition()),
		LostAt: n.GetLostAtNs(), Cordoned: n.GetCordoned(), Draining: n.GetDraining(), CordonReason: n.GetCordonReason(),
	}
	if n.HasInventory() {
		out.Inventory = n.GetInventory()
	}
	for _, st := range n.GetStrays() {
		out.Strays = append(out.Strays, Stray{Job: st.GetJob(), Attempt: st.GetAttempt()})
	}
	return out
}

func jobFrom(j *weftv1.JobState) *Job {
	out := &Job{
		ID: j.GetId(), Tenant: j.GetTenant(), Spec: j.GetSpec(), SpecHash: j.GetSpecHash(), By: j.GetBy(),
		Traceparent: j.GetTraceparent(), Phase: Phase(j.GetPhase()), Submitted: j.GetSubmittedNs(),
		PhaseSince: j.GetPhaseSinceNs(), Ended: j.GetEndedNs(), Attempts: j.GetAttempts(), Restarts: j.GetRestarts(),
		NotBefore: j.GetNotBeforeNs(), Degraded: j.GetDegraded(), Cancel: j.GetCancel(), CancelBy: j.GetCancelBy(),
		Reason: j.GetReason(), Saves: j.GetSaves(), GPUNanos: j.GetGpuNs(), GPULost: j.GetGpuLostNs(),
	}
	if j.HasCause() {
		out.Cause = j.GetCause()
	}
	if !j.HasAttempt() {
		return out
	}
	a := j.GetAttempt()
	out.Attempt = &Attempt{
		Number: a.GetNumber(), Placements: a.GetPlacements(), Size: a.GetSize(), MasterAddress: a.GetMasterAddress(),
		MasterPort: a.GetMasterPort(), Placed: a.GetPlacedNs(), RunningAt: a.GetRunningNs(), SavedAt: a.GetSavedNs(),
		Started: a.GetStarted(), Released: a.GetReleased(), Completed: a.GetCompleted(), Stopping: a.GetStopping(),
		KillAt: a.GetKillAtNs(), nodes: nodesOf(a.GetPlacements()),
	}
	if a.HasResumeFrom() {
		out.Attempt.ResumeFrom = a.GetResumeFrom()
	}
	if a.HasCause() {
		out.Attempt.Cause = a.GetCause()
	}
	return out
}
