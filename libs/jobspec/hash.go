package jobspec

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/zeebo/blake3"
	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Hash names a spec: two specs have the same hash if and only if they mean the same job. It is over our own encoding,
// since protobuf's bytes may differ between versions, and leaves out what equals a default, so that a manifest, the
// same one with its defaults written out, and the one that `weft get` prints are one job.
func Hash(spec *weftv1.JobSpec) string {
	s := WithDefaults(spec)
	e := &encoder{}
	e.text(1, s.GetName())
	e.text(2, s.GetQueue())
	e.pairs(3, s.GetLabels())
	e.number(4, int64(s.GetFramework()), int64(weftv1.Framework_FRAMEWORK_NONE))
	for _, g := range s.GetGroups() {
		e.object(5, func(e *encoder) {
			e.text(1, g.GetName())
			e.number(2, int64(g.GetMin()), 1)
			e.number(3, int64(g.GetMax()), int64(g.GetMin()))
			e.number(4, g.GetGpuMilli(), 0)
			e.text(5, g.GetMig())
			e.number(6, g.GetCpuMilli(), DefaultCPUMilli)
			e.number(7, g.GetMemoryBytes(), DefaultMemoryBytes)
			e.list(8, g.GetCommand())
			e.pairs(9, g.GetEnv())
		})
	}
	e.number(6, int64(s.GetResize()), int64(weftv1.Resize_RESIZE_RESTART))
	e.list(7, s.GetModels())
	e.truth(8, s.GetMixed(), false)
	e.number(91, int64(s.GetTopology().GetRequired()), 0)
	e.number(92, int64(s.GetTopology().GetPreferred()), 0)
	e.text(10, s.GetBundle())
	e.text(11, s.GetImage())
	e.list(12, s.GetSecrets())
	c := s.GetCheckpoint()
	e.number(131, c.GetLightNs(), int64(DefaultLight))
	e.number(132, c.GetFullNs(), int64(DefaultFull))
	e.number(133, c.GetDisasterNs(), int64(DefaultDisaster))
	e.number(134, c.GetGraceNs(), int64(DefaultGrace))
	e.truth(135, c.GetResumeFromLight(), false)
	e.number(141, int64(s.GetRestart().GetMax()), DefaultRestarts)
	e.number(142, s.GetRestart().GetBackoffNs(), int64(DefaultBackoff))
	e.number(15, s.GetHangAfterNs(), 0)
	e.number(16, s.GetLimitNs(), 0)
	e.number(17, s.GetEstimateNs(), 0)
	e.number(18, int64(s.GetPriority()), 0)
	e.truth(19, s.GetPreemptible(), true)
	e.truth(20, s.GetSpot(), false)
	sum := blake3.Sum256(append([]byte("weft/jobspec/v1\n"), e.b...))
	return "b3-" + hex.EncodeToString(sum[:])
}

// SpecBytes are the stored bytes of a spec with its defaults.
func SpecBytes(spec *weftv1.JobSpec) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(spec)
}

// SpecKey is the key in BUNDLES under which the gateway stores a spec, and by which assignments name it.
func SpecKey(spec *weftv1.JobSpec) string {
	b, err := SpecBytes(spec)
	if err != nil {
		// Only text that is not UTF-8 fails, and Parse lets none in; such a spec has no stored bytes to name.
		return ""
	}
	sum := blake3.Sum256(b)
	return "spec-" + hex.EncodeToString(sum[:])
}

// encoder writes fields as tag, length, value: no two specs share an encoding.
type encoder struct{ b []byte }

func (e *encoder) bytes(tag uint64, v []byte) {
	e.b = binary.AppendUvarint(e.b, tag)
	e.b = binary.AppendUvarint(e.b, uint64(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) number(tag uint64, v, byDefault int64) {
	if v != byDefault {
		e.bytes(tag, binary.BigEndian.AppendUint64(nil, uint64(v)))
	}
}

func (e *encoder) truth(tag uint64, v, byDefault bool) {
	if v != byDefault {
		e.bytes(tag, []byte{1})
	}
}

func (e *encoder) text(tag uint64, v string) {
	if v != "" {
		e.bytes(tag, []byte(v))
	}
}

func (e *encoder) list(tag uint64, vs []string) {
	for _, v := range vs {
		e.bytes(tag, []byte(v))
	}
}

func (e *encoder) object(tag uint64, f func(*encoder)) {
	var in encoder
	f(&in)
	e.bytes(tag, in.b)
}

func (e *encoder) pairs(tag uint64, kvs []*weftv1.KeyValue) {
	for _, kv := range kvs {
		e.object(tag, func(e *encoder) {
			e.bytes(1, []byte(kv.GetKey()))
			e.bytes(2, []byte(kv.GetValue()))
		})
	}
}

// Digester computes the digest of a bundle while its bytes pass by.
type Digester struct{ h *blake3.Hasher }

// NewDigester begins a digest.
func NewDigester() *Digester { return &Digester{blake3.New()} }

// Write adds bytes; it never fails.
func (d *Digester) Write(p []byte) (int, error) { return d.h.Write(p) }

// Digest names everything written so far.
func (d *Digester) Digest() string { return "b3-" + hex.EncodeToString(d.h.Sum(nil)) }
