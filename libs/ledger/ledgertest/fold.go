package ledgertest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// State is the state of the suite's fold: it depends on every fact and on their order.
type State struct {
	Facts   []string // newest last, at most 8
	Count   uint64
	Digest  uint64
	Cursors map[string]uint64
}

// KindNote is the one kind that the suite's fold knows.
const KindNote = "note"

// Note is a fact of the suite.
func Note(text string) *weftv1.Entry {
	return weftv1.Entry_builder{Kind: new(KindNote), Fact: []byte(text)}.Build()
}

// Fold is the suite's fold.
func Fold() ledger.Fold[*State] {
	return ledger.Fold[*State]{
		New:     func() *State { return &State{Cursors: map[string]uint64{}} },
		Apply:   apply,
		Encode:  encode,
		Decode:  decode,
		Version: 1,
	}
}

func apply(s *State, c *weftv1.Commit, seq uint64) error {
	for _, e := range c.GetEntries() {
		if e.GetKind() != KindNote && !e.GetIgnorable() {
			return &ledger.UnknownKind{Kind: e.GetKind(), Seq: seq}
		}
	}
	for _, e := range c.GetEntries() {
		if e.GetKind() != KindNote {
			continue
		}
		h := fnv.New64a()
		_ = binary.Write(h, binary.LittleEndian, s.Digest)
		_, _ = h.Write(e.GetFact())
		s.Digest = h.Sum64()
		s.Count++
		s.Facts = append(s.Facts, string(e.GetFact()))
		if len(s.Facts) > 8 {
			s.Facts = slices.Delete(s.Facts, 0, 1)
		}
	}
	for _, cur := range c.GetCursors() {
		s.Cursors[cur.GetStream()] = cur.GetSeq()
	}
	return nil
}

func encode(s *State) []byte {
	b := binary.LittleEndian.AppendUint64(nil, s.Count)
	b = binary.LittleEndian.AppendUint64(b, s.Digest)
	text := func(t string) { b = append(binary.AppendUvarint(b, uint64(len(t))), t...) }
	b = binary.AppendUvarint(b, uint64(len(s.Facts)))
	for _, f := range s.Facts {
		text(f)
	}
	names := make([]string, 0, len(s.Cursors))
	for n := range s.Cursors {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		text(n)
		b = binary.AppendUvarint(b, s.Cursors[n])
	}
	return b
}

func decode(b []byte) (*State, error) {
	if len(b) < 16 {
		return nil, fmt.Errorf("a snapshot of %d bytes", len(b))
	}
	s := &State{Count: binary.LittleEndian.Uint64(b), Digest: binary.LittleEndian.Uint64(b[8:]), Cursors: map[string]uint64{}}
	b = b[16:]
	bad := false
	num := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			bad = true
			return 0
		}
		b = b[n:]
		return v
	}
	text := func() string {
		n := num()
		if n > uint64(len(b)) {
			bad = true
			return ""
		}
		t := string(b[:n])
		b = b[n:]
		return t
	}
	for n := num(); n > 0 && !bad; n-- {
		s.Facts = append(s.Facts, text())
	}
	for len(b) > 0 && !bad {
		s.Cursors[text()] = num()
	}
	if bad {
		return nil, fmt.Errorf("a snapshot cut short")
	}
	return s, nil
}
