package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Line is one record of a ledger, for programs.
type Line struct {
	Seq     uint64            `json:"seq"`
	Term    uint64            `json:"term,omitempty"`
	Time    string            `json:"time,omitempty"`
	ID      string            `json:"id,omitempty"`
	Void    bool              `json:"void,omitempty"` // not on the chain: readers pass over it
	Cursors map[string]uint64 `json:"cursors,omitempty"`
	Facts   []json.RawMessage `json:"facts,omitempty"` // each an object of one field, its kind
}

const readAtOnce = 512

// Export calls f for every record from one place to another; to = 0 is the end as it is now. What a job gets as
// environment may be secret and is left out.
func (k *Book) Export(ctx context.Context, from, to uint64, f func(Line) error) error {
	tail, err := k.Log.Tail(ctx)
	if err != nil {
		return err
	}
	if to == 0 || to > tail.Last {
		to = tail.Last
	}
	var chain ledger.Chain // followed from the start, so that void records are known
	for next := tail.First; next <= to; {
		recs, err := k.Log.Read(ctx, next, readAtOnce)
		if err != nil {
			return err
		}
		if len(recs) == 0 {
			return fmt.Errorf("record %d of %s is gone: it was trimmed, or the end was lost; run it again", next, k.Name)
		}
		for _, r := range recs {
			next = r.Seq + 1
			c, ok := chain.Next(r)
			if r.Seq < from || r.Seq > to {
				continue
			}
			line := Line{Seq: r.Seq, Void: !ok}
			if ok {
				line = k.line(r.Seq, c)
			}
			if err := f(line); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *Book) line(seq uint64, c *weftv1.Commit) Line {
	l := Line{Seq: seq, Term: c.GetTerm(), Time: time.Unix(0, c.GetTimeNs()).UTC().Format(time.RFC3339Nano), ID: c.GetId()}
	for _, x := range c.GetCursors() {
		if l.Cursors == nil {
			l.Cursors = map[string]uint64{}
		}
		l.Cursors[x.GetStream()] = x.GetSeq()
	}
	for _, e := range c.GetEntries() {
		l.Facts = append(l.Facts, k.fact(e))
	}
	return l
}

// fact writes one entry; what this version does not know by its kind and size.
func (k *Book) fact(e *weftv1.Entry) json.RawMessage {
	var m proto.Message = &weftv1.Fact{}
	switch {
	case e.GetKind() == ledger.KindLeaderElected:
		m = &weftv1.LeaderElected{}
	case k.Name == bus.StreamCheckpoints:
		m = &weftv1.CheckpointFact{}
	}
	if proto.Unmarshal(e.GetFact(), m) == nil {
		hide(m.ProtoReflect())
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if e.GetKind() == ledger.KindLeaderElected {
			text = fmt.Appendf(nil, "{%q:%s}", e.GetKind(), text)
		}
		if err == nil && len(text) > 2 {
			return text
		}
	}
	return fmt.Appendf(nil, "{%q:{\"unknown_bytes\":%d}}", e.GetKind(), len(e.GetFact()))
}

// hide blanks the values of environments, wherever they are.
func hide(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.Kind() != protoreflect.MessageKind || fd.IsMap() {
			return true
		}
		each := func(x protoreflect.Message) {
			if value := x.Descriptor().Fields().ByName("value"); fd.Name() == "env" && value != nil {
				x.Set(value, protoreflect.ValueOfString("(hidden)"))
				return
			}
			hide(x)
		}
		if fd.IsList() {
			for i := range v.List().Len() {
				each(v.List().Get(i).Message())
			}
			return true
		}
		each(v.Message())
		return true
	})
}
