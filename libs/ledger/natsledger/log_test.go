package natsledger

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
)

// What a follower reads ahead of a reader that is busy is bounded, and nothing of it is lost.
func TestReadAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, perBatch, batches = 512 << 10, 4, 20
		l := &Log{changed: make(chan struct{}), follow: func() {}, next: 1, want: 1}
		go func() {
			seq := uint64(0)
			for range batches {
				var ms []*bus.Msg
				for range perBatch {
					seq++
					ms = append(ms, &bus.Msg{Seq: seq, Data: make([]byte, size)})
				}
				l.deliver(t.Context(), 0, ms)
			}
		}()
		for next := uint64(1); next <= perBatch*batches; next++ {
			synctest.Wait()
			l.mu.Lock()
			held := 0
			for _, r := range l.buf {
				held += len(r.Data)
			}
			if held != l.bytes || held >= aheadBytes+perBatch*size {
				t.Fatalf("before record %d the buffer holds %d bytes and counts %d", next, held, l.bytes)
			}
			l.mu.Unlock()
			recs, err := l.Read(t.Context(), next, 1)
			if err != nil || len(recs) != 1 || recs[0].Seq != next {
				t.Fatalf("read %d: %v, %v", next, recs, err)
			}
		}
	})
}

func TestWhatARefusalSettles(t *testing.T) {
	for _, c := range []struct {
		http    int
		code    jetstream.ErrorCode
		settled bool
		want    error
	}{
		{503, codeStoreFailed, true, ledger.ErrFull},
		{503, codeInsufficientResources, true, ledger.ErrFull},
		{500, codeStorageExceeded, true, ledger.ErrFull},
		{400, codeAccountExceeded, true, ledger.ErrFull},
		{503, 10008, false, nil}, // no leader
		{429, 10167, false, nil}, // overload
		{404, 10059, false, nil}, // being made anew
		{400, 10054, true, nil},  // message too large: never
	} {
		l := &Log{name: "LEDGER"}
		settled, err := l.settle(context.Background(), 4, &jetstream.APIError{Code: c.http, ErrorCode: c.code, Description: "why"})
		if settled != c.settled || settled != (err != nil) || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%d %d: settled %t, %v", c.http, c.code, settled, err)
		}
		if errors.Is(err, ledger.ErrConflict) {
			t.Errorf("%d %d reads as a conflict", c.http, c.code)
		}
	}
}

type ending struct {
	jetstream.Stream
	info jetstream.StreamInfo
}

func (s *ending) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	return &s.info, nil
}

// What was read ahead of a tail that is lost since is not served to whoever rebuilds.
func TestTailDropsWhatIsBufferedBeyondIt(t *testing.T) {
	for _, c := range []struct {
		what    string
		last    uint64
		created int64
		kept    int
	}{
		{"as before", 4, 7, 4},
		{"grown", 9, 7, 4},
		{"lost its end", 2, 7, 0},
		{"made anew", 4, 8, 0},
	} {
		s := &ending{info: jetstream.StreamInfo{State: jetstream.StreamState{FirstSeq: 1, LastSeq: 4, Msgs: 4}, Created: time.Unix(0, 7)}}
		l := &Log{stream: s, changed: make(chan struct{}), follow: func() {}, next: 1, want: 1}
		if _, err := l.Tail(t.Context()); err != nil {
			t.Fatal(err)
		}
		for seq := uint64(1); seq <= 4; seq++ {
			l.deliver(t.Context(), 0, []*bus.Msg{{Seq: seq, Data: []byte("old")}})
		}
		s.info.State.LastSeq, s.info.Created = c.last, time.Unix(0, c.created)
		if tail, err := l.Tail(t.Context()); err != nil || tail.Last != c.last {
			t.Fatalf("%s: %+v, %v", c.what, tail, err)
		}
		if len(l.buf) != c.kept || (l.follow == nil) != (c.kept == 0) || l.bytes != 3*c.kept {
			t.Errorf("%s: %d records buffered, %d bytes, following %t", c.what, len(l.buf), l.bytes, l.follow != nil)
		}
	}
}
