package busnats

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
)

const (
	objectChunk = 256 << 10
	objectFetch = 16 // chunks asked for at once
)

// NewObjects opens a bucket. It has the layout of a NATS object store, so that the field's tools can read it; reading uses
// direct gets alone, which permissions can allow without any consumer.
func NewObjects(conn *bus.Conn, bucket string) bus.Objects {
	return &objects{conn: conn, bucket: bucket}
}

type objects struct {
	conn   *bus.Conn
	bucket string

	mu    sync.Mutex
	cache jetstream.ObjectStore // once it was found
}

func (o *objects) store(ctx context.Context) (jetstream.ObjectStore, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cache != nil {
		return o.cache, nil
	}
	s, err := o.conn.JS().ObjectStore(ctx, o.bucket)
	if err != nil {
		return nil, mapError(ctx, "bucket "+o.bucket, err)
	}
	o.cache = s
	return s, nil
}

func (o *objects) Put(ctx context.Context, name string, r io.Reader) error {
	if err := bus.CheckObjectName(name); err != nil {
		return err
	}
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	s, err := o.store(ctx)
	if err != nil {
		return err
	}
	src := &fullReader{r: r}
	meta := jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: objectChunk}}
	if _, err := s.Put(ctx, meta, src); err != nil {
		if src.err != nil {
			return fmt.Errorf("put %s: %w", name, src.err)
		}
		return mapError(ctx, "put "+name, err)
	}
	return nil
}

// fullReader fills every chunk: the client stores one synced message for each read, however short.
type fullReader struct {
	r   io.Reader
	err error // of the source, to tell it from the bus's
}

func (f *fullReader) Read(p []byte) (int, error) {
	n, err := io.ReadFull(f.r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// info reads an object's metadata.
func (o *objects) info(ctx context.Context, name string) (*jetstream.ObjectInfo, error) {
	if err := bus.CheckObjectName(name); err != nil {
		return nil, err
	}
	ctx, cancel := o.timeout(ctx)
	defer cancel()
	key := base64.URLEncoding.EncodeToString([]byte(name))
	m, err := o.conn.NC().RequestWithContext(ctx, "$JS.API.DIRECT.GET.OBJ_"+o.bucket+".$O."+o.bucket+".M."+key, nil)
	if err != nil {
		return nil, mapError(ctx, "get "+name, err)
	}
	if s := m.Header.Get("Status"); s != "" {
		if s == "404" {
			return nil, fmt.Errorf("%w: %s in %s", bus.ErrNotFound, name, o.bucket)
		}
		return nil, fmt.Errorf("get %s: %w: %s", name, bus.ErrUnavailable, m.Header.Get("Description"))
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return nil, fmt.Errorf("get %s: metadata: %w", name, err)
	}
	if info.Deleted {
		return nil, fmt.Errorf("%w: %s in %s", bus.ErrNotFound, name, o.bucket)
	}
	return &info, nil
}

func (o *objects) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	info, err := o.info(ctx, name)
	if err != nil {
		return nil, err
	}
	if info.Opts != nil && info.Opts.Link != nil {
		return nil, fmt.Errorf("get %s: links between objects are not followed", name)
	}
	digest, err := jetstream.DecodeObjectDigest(info.Digest)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	return &object{o: o, ctx: ctx, name: name, info: info, digest: digest, sum: sha256.New(), next: 1}, nil
}

// object reads chunk after chunk as it is read.
type object struct {
	o      *objects
	ctx    context.Context
	name   string
	info   *jetstream.ObjectInfo
	digest []byte
	sum    hash.Hash
	next   uint64 // sequence to ask from
	chunks uint32
	rest   []byte
	err    error
}

func (r *object) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if r.chunks == r.info.Chunks {
			r.err = io.EOF
			if !slices.Equal(r.sum.Sum(nil), r.digest) {
				r.err = fmt.Errorf("get %s: damaged: its bytes do not match its SHA-256", r.name)
			}
			continue
		}
		r.err = r.fetch()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// fetch reads the next chunks.
func (r *object) fetch() error {
	ctx, cancel := r.o.timeout(r.ctx)
	defer cancel()
	nc := r.o.conn.NC()
	if r.info.Chunks == 1 { // the common case, specs, in one short question
		m, err := nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET.OBJ_"+r.o.bucket+".$O."+r.o.bucket+".C."+r.info.NUID, nil)
		if err != nil {
			return mapError(ctx, "get "+r.name, err)
		}
		_, err = r.add(m)
		return err
	}
	want := min(objectFetch, int(r.info.Chunks-r.chunks))
	req, err := json.Marshal(map[string]any{"seq": r.next, "next_by_subj": "$O." + r.o.bucket + ".C." + r.info.NUID, "batch": want})
	if err != nil {
		return fmt.Errorf("get %s: %w", r.name, err)
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return mapError(ctx, "get "+r.name, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest("$JS.API.DIRECT.GET.OBJ_"+r.o.bucket, inbox, req); err != nil {
		return mapError(ctx, "get "+r.name, err)
	}
	for range want {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return mapError(ctx, "get "+r.name, err)
		}
		if end, err := r.add(m); end || err != nil {
			return err
		}
	}
	return nil
}

// add takes one answer; end says that the server cut the batch short.
func (r *object) add(m *nats.Msg) (end bool, err error) {
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404":
		return false, fmt.Errorf("get %s: incomplete: chunk %d of %d is missing", r.name, r.chunks+1, r.info.Chunks)
	case "204":
		return true, nil
	default:
		return false, fmt.Errorf("get %s: %w: status %s %s", r.name, bus.ErrUnavailable, status, m.Header.Get("Description"))
	}
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil || seq < r.next {
		return false, fmt.Errorf("get %s: %w: unexpected sequence %q", r.name, bus.ErrUnavailable, m.Header.Get("Nats-Sequence"))
	}
	r.next = seq + 1
	r.chunks++
	r.sum.Write(m.Data)
	r.rest = append(r.rest, m.Data...)
	return false, nil
}

func (r *object) Close() error { r.rest, r.err = nil, io.ErrClosedPipe; return nil }

func (o *objects) Has(ctx context.Context, name string) (bool, error) {
	_, err := o.info(ctx, name)
	if errors.Is(err, bus.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (o *objects) List(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	s, err := o.store(ctx)
	if err != nil {
		return nil, err
	}
	infos, err := s.List(ctx)
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil, nil
	}
	if err != nil {
		return nil, mapError(ctx, "list "+o.bucket, err)
	}
	var names []string
	for _, i := range infos {
		if strings.HasPrefix(i.Name, prefix) {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (o *objects) Delete(ctx context.Context, name string) error {
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	s, err := o.store(ctx)
	if err != nil {
		return err
	}
	if err := s.Delete(ctx, name); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return mapError(ctx, "delete "+name, err)
	}
	return nil
}

func (o *objects) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, undrop := o.conn.UntilDrop(ctx)
	ctx, cancel := context.WithTimeout(ctx, bus.APITimeout)
	return ctx, func() { cancel(); undrop() }
}
