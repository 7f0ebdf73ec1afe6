package operate

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/services/scheduler"
)

// Announced is an event whose fact the ledger has lost.
type Announced struct {
	Seq    uint64 `json:"seq"` // of the record
	Time   string `json:"time"`
	Type   string `json:"type"`
	Tenant string `json:"tenant"`
	Job    string `json:"job,omitempty"`
}

// LostEvents are the events of records after a place, the first few of them in order, and how many there are. What was
// lost is gone; events are what is left of it.
func (b *Bus) LostEvents(ctx context.Context, after uint64, limit int) (out []Announced, total uint64, err error) {
	s, err := b.Core.JS().Stream(ctx, bus.StreamEvents)
	if err != nil {
		return nil, 0, err
	}
	info, err := s.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return nil, 0, err
	}
	first, last := info.State.FirstSeq, info.State.LastSeq
	get := func(seq uint64) (Announced, bool) {
		m, e := s.GetMsg(ctx, seq)
		if e != nil {
			if !errors.Is(e, jetstream.ErrMsgNotFound) {
				err = e
			}
			return Announced{}, false
		}
		record, _, _ := strings.Cut(m.Header.Get(scheduler.PositionHeader), "/")
		n, _ := strconv.ParseUint(record, 10, 64)
		subject := strings.SplitN(m.Subject, ".", 4) // weft.event.<tenant>.<type>
		x := Announced{Seq: n, Time: m.Time.UTC().Format("2006-01-02T15:04:05.000Z"), Job: m.Header.Get(scheduler.JobHeader)}
		if len(subject) == 4 {
			x.Tenant, x.Type = subject[2], subject[3]
		}
		return x, true
	}
	// Events stand in the ledger's order.
	n := int(last - first + 1) //nolint:gosec // a stream of so many messages does not exist
	begin := first + uint64(sort.Search(n, func(i int) bool {
		x, ok := get(first + uint64(i)) //nolint:gosec // not negative
		return ok && x.Seq > after
	}))
	if err != nil {
		return nil, 0, fmt.Errorf("look for the events of what was lost: %w", err)
	}
	for seq := begin; seq <= last && len(out) < limit; seq++ {
		if x, ok := get(seq); ok {
			out = append(out, x)
		}
	}
	return out, last + 1 - begin, err
}
