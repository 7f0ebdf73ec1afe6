package operate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/ledger"
)

// A backup is a tar archive, compressed by gzip, that holds in this order
//
//	weft-backup.json             what it is a backup of
//	<LEDGER>/<sequence>          each record as stored, oldest first, without gaps
//	<LEDGER>.snapshots/<n>.json  what snapshot n is of, and <n>.state, its bytes
//	BUNDLES/<name>               specs and files of jobs
//	end                          so that one cut short is known
//
// It holds no password and no token; specs and bundles hold what users put into them.
const (
	formatVersion = 1
	headName      = "weft-backup.json"
	endName       = "end"
	snapshotsOf   = ".snapshots"
)

// Head says what a backup is of.
type Head struct {
	Version int               `json:"version"`
	Time    string            `json:"time"`
	First   map[string]uint64 `json:"first"` // record by ledger
	Last    map[string]uint64 `json:"last"`
}

// Counts are what was written or read.
type Counts struct {
	Head      Head
	Records   map[string]uint64
	Snapshots int
	Bundles   int
}

// Backup writes everything that a cell cannot do without. The fabric may run: what happens meanwhile may be missing.
func (b *Bus) Backup(ctx context.Context, w io.Writer) (*Counts, error) {
	books, err := b.Books(ctx)
	if err != nil {
		return nil, err
	}
	head := Head{Version: formatVersion, Time: time.Now().UTC().Format(time.RFC3339), First: map[string]uint64{}, Last: map[string]uint64{}}
	n := &Counts{Records: map[string]uint64{}}
	for _, k := range books {
		loss, err := k.Lost(ctx)
		if err == nil && loss != nil {
			err = loss
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.Name, err)
		}
		tail, err := k.Log.Tail(ctx)
		if err != nil {
			return nil, err
		}
		head.First[k.Name], head.Last[k.Name] = tail.First, tail.Last
	}
	n.Head = head
	zip := gzip.NewWriter(w)
	out := &archive{tar.NewWriter(zip)}
	text, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := out.file(headName, text); err != nil {
		return nil, err
	}
	// Bundles last: a job that the ledger knows had its bundle before.
	for _, k := range books {
		if err := out.records(ctx, k, head.First[k.Name], head.Last[k.Name], n); err != nil {
			return nil, err
		}
		if err := out.snapshots(ctx, k, head.Last[k.Name], n); err != nil {
			return nil, err
		}
	}
	if err := out.bundles(ctx, busnats.NewObjects(b.Nodes, bus.BucketBundles), n); err != nil {
		return nil, err
	}
	if err := out.file(endName, nil); err != nil {
		return nil, err
	}
	return n, errors.Join(out.Close(), zip.Close())
}

type archive struct{ *tar.Writer }

func (a *archive) file(name string, data []byte) error {
	if err := a.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := a.Write(data)
	return err
}

func (a *archive) records(ctx context.Context, k *Book, first, last uint64, n *Counts) error {
	for next := first; next <= last; {
		recs, err := k.Log.Read(ctx, next, readAtOnce)
		if err != nil {
			return err
		}
		if len(recs) == 0 || recs[0].Seq != next {
			return fmt.Errorf("record %d of %s was trimmed meanwhile; run it again", next, k.Name)
		}
		for _, r := range recs {
			if r.Seq > last {
				return nil
			}
			if err := a.file(fmt.Sprintf("%s/%d", k.Name, r.Seq), r.Data); err != nil {
				return err
			}
			next = r.Seq + 1
			n.Records[k.Name]++
		}
	}
	return nil
}

func (a *archive) snapshots(ctx context.Context, k *Book, last uint64, n *Counts) error {
	all, err := k.Snaps.List(ctx)
	if err != nil {
		return err
	}
	for i, m := range all {
		if m.Seq > last {
			continue
		}
		data, err := k.Snaps.Get(ctx, m)
		if err != nil || !bytes.Equal(ledger.Hash(data), m.State) {
			continue // deleted meanwhile, or damaged: of no use
		}
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s%s/%d", k.Name, snapshotsOf, i)
		if err := errors.Join(a.file(name+".json", text), a.file(name+".state", data)); err != nil {
			return err
		}
		n.Snapshots++
	}
	return nil
}

func (a *archive) bundles(ctx context.Context, objects bus.Objects, n *Counts) error {
	names, err := objects.List(ctx, "")
	if err != nil {
		return err
	}
	for _, name := range names {
		r, err := objects.Get(ctx, name)
		if errors.Is(err, bus.ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close(), a.file(bus.BucketBundles+"/"+name, data)); err != nil {
			return err
		}
		n.Bundles++
	}
	return nil
}

// NotEmpty says that a backup would be put over something.
type NotEmpty struct{ Stream string }

func (e *NotEmpty) Error() string {
	return fmt.Sprintf("%s holds records already; a backup is put into a new data directory, or one whose bus/ was moved away", e.Stream)
}

// Restore puts a backup into streams that are empty, checks what it wrote, and adopts it: nodes may hold what happened after
// the backup.
func (b *Bus) Restore(ctx context.Context, r io.Reader) (*Counts, error) {
	books, err := b.Books(ctx)
	if err != nil {
		return nil, err
	}
	in := &reading{ctx: ctx, bus: b, books: map[string]*Book{}, at: map[string]uint64{}, n: &Counts{Records: map[string]uint64{}}}
	for _, k := range books {
		tail, err := k.Log.Tail(ctx)
		if err != nil {
			return nil, err
		}
		if tail.Last > 0 {
			return nil, &NotEmpty{k.Name}
		}
		in.books[k.Name] = k
	}
	if err := in.read(r); err != nil {
		return nil, err
	}
	for _, k := range books {
		audit, err := k.Verify(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range audit.Faults {
			return nil, fmt.Errorf("the backup of %s is damaged: %w", k.Name, f)
		}
		if _, err := k.Adopt(ctx); err != nil {
			return nil, fmt.Errorf("adopt %s: %w", k.Name, err)
		}
	}
	return in.n, nil
}

// reading puts one entry of an archive after the other where it belongs.
type reading struct {
	ctx   context.Context
	bus   *Bus
	books map[string]*Book
	at    map[string]uint64 // newest record written
	meta  ledger.SnapshotMeta
	n     *Counts
}

func (in *reading) read(r io.Reader) error {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("this is no backup of weft: %w", err)
	}
	files := tar.NewReader(zip)
	for first := true; ; first = false {
		h, err := files.Next()
		if err != nil {
			return fmt.Errorf("the backup is cut short or damaged: %w", noEOF(err))
		}
		data, err := io.ReadAll(files)
		if err != nil {
			return fmt.Errorf("the backup is cut short or damaged at %s: %w", h.Name, noEOF(err))
		}
		if first != (h.Name == headName) {
			return errors.New("this is no backup of weft: it does not begin with " + headName)
		}
		if h.Name == endName {
			break
		}
		if err := in.take(h.Name, data); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	if _, err := io.Copy(io.Discard, zip); err != nil { // its checksum comes last
		return fmt.Errorf("the backup is cut short or damaged: %w", noEOF(err))
	}
	for name, last := range in.n.Head.Last {
		if in.at[name] != last {
			return fmt.Errorf("the backup is damaged: %s ends at %d, not at %d", name, in.at[name], last)
		}
	}
	return nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (in *reading) take(name string, data []byte) error {
	if name == headName {
		if err := json.Unmarshal(data, &in.n.Head); err != nil {
			return err
		}
		if v := in.n.Head.Version; v != formatVersion {
			return fmt.Errorf("a backup of format %d; this version reads %d", v, formatVersion)
		}
		for name := range in.n.Head.Last {
			if in.books[name] == nil {
				return fmt.Errorf("it holds %s, which this version does not know", name)
			}
			if first := in.n.Head.First[name]; first > 1 { // trimmed: the places of what is gone stay empty
				if err := in.skipTo(name, first); err != nil {
					return err
				}
				in.at[name] = first - 1
			}
		}
		return nil
	}
	dir, file := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	if stream, is := strings.CutSuffix(dir, snapshotsOf); is && in.books[stream] != nil {
		return in.snapshot(in.books[stream], file, data)
	}
	if k := in.books[dir]; k != nil {
		return in.record(k, file, data)
	}
	if object, is := strings.CutPrefix(name, bus.BucketBundles+"/"); is {
		in.n.Bundles++
		return busnats.NewObjects(in.bus.Nodes, bus.BucketBundles).Put(in.ctx, object, bytes.NewReader(data))
	}
	return errors.New("unknown entry; a newer version wrote it")
}

func (in *reading) record(k *Book, file string, data []byte) error {
	seq, err := strconv.ParseUint(file, 10, 64)
	if err != nil || seq != in.at[k.Name]+1 {
		return fmt.Errorf("it follows record %d; the backup is damaged", in.at[k.Name])
	}
	id := ""
	if c, err := ledger.Decode(data); err == nil {
		id = c.GetId()
	}
	if _, err := k.Log.Append(in.ctx, seq-1, id, data); err != nil {
		return err
	}
	in.at[k.Name] = seq
	in.n.Records[k.Name]++
	return nil
}

// snapshot stores one as of the stream that was made for it.
func (in *reading) snapshot(k *Book, file string, data []byte) error {
	if path.Ext(file) == ".json" {
		in.meta = ledger.SnapshotMeta{}
		return json.Unmarshal(data, &in.meta)
	}
	tail, err := k.Log.Tail(in.ctx)
	if err != nil {
		return err
	}
	in.meta.CreatedNS = tail.CreatedNS
	in.n.Snapshots++
	return k.Snaps.Put(in.ctx, in.meta, data)
}

// skipTo makes an empty stream begin at a later place.
func (in *reading) skipTo(name string, first uint64) error {
	s, err := in.bus.Core.JS().Stream(in.ctx, name)
	if err != nil {
		return err
	}
	return s.Purge(in.ctx, jetstream.WithPurgeSequence(first))
}

// ToFile writes a backup next to its place and moves it there once it is whole.
func (b *Bus) ToFile(ctx context.Context, file string) (n *Counts, err error) {
	tmp, err := os.CreateTemp(path.Dir(file), ".weft-backup-*") // readable by its owner only
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	if n, err = b.Backup(ctx, tmp); err != nil {
		_ = tmp.Close()
		return nil, err
	}
	if err = errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	return n, os.Rename(tmp.Name(), file)
}
