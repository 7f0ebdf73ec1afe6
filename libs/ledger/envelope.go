package ledger

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/zeebo/blake3"
	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// MaxCommit is the largest size of one commit's stored bytes. It bounds what one message costs everybody who follows,
// and leaves room below the server's 1 MiB payload.
const MaxCommit = 512 << 10

// KindLeaderElected is the one kind that this library reads itself. A fold never sees it.
const KindLeaderElected = "leader_elected"

// Position is a place in a log, with what the next commit must link to.
type Position struct {
	Seq    uint64 // newest record read, void ones included; 0 before the first
	Term   uint64 // leadership term of the newest commit
	Hash   []byte // BLAKE3-256 of the newest commit's stored bytes; empty before the first
	TimeNS int64  // ledger time of the newest commit
}

// TooLarge says that the commit would exceed MaxCommit. Nothing was appended; SplitGroups cuts facts into commits that fit.
type TooLarge struct{ Size, Limit int }

func (e *TooLarge) Error() string {
	return fmt.Sprintf("ledger: a commit of %d bytes exceeds the limit of %d; split it", e.Size, e.Limit)
}

// UnknownKind stops a reader: the log carries a fact that it does not know and may not pass over. The cure is an
// upgrade of the reader.
type UnknownKind struct {
	Kind string
	Seq  uint64
}

func (e *UnknownKind) Error() string {
	return fmt.Sprintf("ledger: record %d carries the fact %q, which this version does not know; upgrade this service", e.Seq, e.Kind)
}

// Hash is the hash of a record's stored bytes, as the next commit carries it.
func Hash(data []byte) []byte {
	h := blake3.Sum256(data)
	return h[:]
}

// marshal is for what is stored: equal messages give equal bytes within one build. Readers hash stored bytes and never
// encode again, because protobuf bytes are not canonical across versions.
var marshal = proto.MarshalOptions{Deterministic: true}

// Encode returns the bytes to store for a commit.
func Encode(c *weftv1.Commit) ([]byte, error) {
	b, err := marshal.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode commit: %w", err)
	}
	return b, nil
}

// Decode reads the stored bytes of a commit.
func Decode(data []byte) (*weftv1.Commit, error) {
	c := &weftv1.Commit{}
	if err := proto.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("decode commit: %w", err)
	}
	return c, nil
}

// NewEntry encodes one fact under its kind.
func NewEntry(kind string, fact proto.Message) *weftv1.Entry {
	b, err := marshal.Marshal(fact)
	if err != nil { // only a string that is not UTF-8 can do that, and facts are validated long before
		panic(fmt.Sprintf("ledger: encode fact %s: %v", kind, err))
	}
	return weftv1.Entry_builder{Kind: &kind, Fact: b}.Build()
}

// FactEntry encodes a fact message whose first oneof tells its kind, such as weftv1.Fact: the kind is the name of the
// field that is set, the bytes are the whole message.
func FactEntry(fact proto.Message) *weftv1.Entry {
	m := fact.ProtoReflect()
	kind := ""
	if ones := m.Descriptor().Oneofs(); ones.Len() > 0 {
		if f := m.WhichOneof(ones.Get(0)); f != nil {
			kind = string(f.Name())
		}
	}
	return NewEntry(kind, fact)
}

// FactEntries encodes several facts.
func FactEntries[M proto.Message](facts []M) []*weftv1.Entry {
	out := make([]*weftv1.Entry, len(facts))
	for i, f := range facts {
		out[i] = FactEntry(f)
	}
	return out
}

// entryOverhead bounds what one entry adds to a commit beside its own bytes; envelopeOverhead what the envelope needs
// with a generous number of cursors.
const (
	entryOverhead    = 8
	envelopeOverhead = 4 << 10
)

// SplitGroups packs groups of entries, in order, into as few commits as fit; a group is never cut, because its facts
// become true together. Cursors belong to the last commit. It fails with *TooLarge if one group alone does not fit.
func SplitGroups(groups [][]*weftv1.Entry) ([][]*weftv1.Entry, error) {
	const limit = MaxCommit - envelopeOverhead
	var out [][]*weftv1.Entry
	var batch []*weftv1.Entry
	size := 0
	for _, g := range groups {
		n := 0
		for _, e := range g {
			n += proto.Size(e) + entryOverhead
		}
		if n > limit {
			return nil, &TooLarge{Size: n, Limit: limit}
		}
		if size+n > limit && len(batch) > 0 {
			out, batch, size = append(out, batch), nil, 0
		}
		batch, size = append(batch, g...), size+n
	}
	if len(batch) > 0 {
		out = append(out, batch)
	}
	return out, nil
}

// errChain is the reason why a record is no commit of the chain.
var errChain = errors.New("not on the chain")

// leaderOf returns the LeaderElected of a commit that opens a term.
func leaderOf(c *weftv1.Commit) (*weftv1.LeaderElected, error) {
	es := c.GetEntries()
	if len(es) == 0 || es[0].GetKind() != KindLeaderElected {
		return nil, nil
	}
	l := &weftv1.LeaderElected{}
	if err := proto.Unmarshal(es[0].GetFact(), l); err != nil {
		return nil, fmt.Errorf("decode %s: %w", KindLeaderElected, err)
	}
	return l, nil
}

// check says whether a record continues the chain at a position, and returns its commit.
func check(at Position, rec Record) (*weftv1.Commit, *weftv1.LeaderElected, error) {
	c, err := Decode(rec.Data)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errChain, err)
	}
	if !bytes.Equal(c.GetPrev(), at.Hash) {
		return nil, nil, fmt.Errorf("%w: it links to %.8x, the commit before is %.8x", errChain, c.GetPrev(), at.Hash)
	}
	l, err := leaderOf(c)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errChain, err)
	}
	switch {
	case l == nil && c.GetTerm() != at.Term:
		return nil, nil, fmt.Errorf("%w: its term is %d, the leader's is %d", errChain, c.GetTerm(), at.Term)
	case l != nil && (c.GetTerm() <= at.Term || l.GetTerm() != c.GetTerm()):
		return nil, nil, fmt.Errorf("%w: it elects term %d (%d) after term %d", errChain, l.GetTerm(), c.GetTerm(), at.Term)
	case c.GetTimeNs() <= at.TimeNS:
		return nil, nil, fmt.Errorf("%w: its time does not grow", errChain)
	}
	return c, l, nil
}

// HasID says whether stored bytes are the commit with that id: how an adapter resolves a lost acknowledgement.
func HasID(data []byte, id string) bool {
	c, err := Decode(data)
	return err == nil && id != "" && c.GetId() == id
}
