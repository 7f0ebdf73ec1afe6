package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Msg is one stored message as Follow delivers it.
type Msg struct {
	Seq       uint64
	CreatedNS int64 // creation time of the stream
	TimeNS    int64 // when the server stored it
	Subject   string
	Header    map[string]string
	Data      []byte
	Pending   uint64 // how many matching messages the stream held behind it; 0 = the reader is at the tail
}

// ErrRewound means: the stream is not the one read so far: it was made anew, or its tail was lost.
var ErrRewound = errors.New("bus: the stream ends before what was read from it")

// Rewound is an ErrRewound with what was found. What is stored behind Last was never read, and comes next.
type Rewound struct {
	Stream    string
	Next      uint64 // where reading would have gone on
	Last      uint64 // where the stream ended when that was noticed
	CreatedNS int64  // creation time of the stream as it is now
}

func (e *Rewound) Error() string {
	return fmt.Sprintf("%v: %s, at %d of %d", ErrRewound, e.Stream, e.Next, e.Last)
}

// Is makes it an ErrRewound.
func (e *Rewound) Is(target error) bool { return target == ErrRewound }

const (
	fetchBatch     = 512
	fetchBytes     = 8 << 20
	fetchExpires   = 30 * time.Second
	fetchHeartbeat = 500 * time.Millisecond
	fetchSilence   = 3 * fetchHeartbeat // then the consumer is taken for dead and made anew
	retryMin       = 20 * time.Millisecond
	retryMax       = time.Second
	patienceMin    = time.Second
	doubtFor       = 2 * time.Second // a replica that led may take that long to hear that it does no more
)

// Follow reads a stream from sequence from on (1 or 0 = the start) and hands every message matching filter ("" = all)
// to sink, in order, without gaps, each once, in batches of what has arrived. It works until ctx ends, across
// restarts of the server, or until ErrRewound. sink is called from Follow's goroutine; while it blocks, reading pauses.
//
// It keeps one pull request waiting at the server, which delivers a new message at once and otherwise beats. On silence, an
// error, a gap or a reconnection it makes a new consumer behind the last message delivered: the followers of the
// client library stay blind for 10 to 12 s when the server that holds their consumer dies.
func Follow(ctx context.Context, conn *Conn, stream, filter string, from uint64, sink func([]*Msg)) error {
	f := &follower{conn: conn, stream: stream, filter: filter, next: max(from, 1), sink: sink, patience: patienceMin}
	f.status = conn.nc.StatusChanged(nats.CONNECTED)
	defer conn.nc.RemoveStatusListener(f.status)
	retry := retryMin
	for {
		before, began := f.next, time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrRewound) || conn.nc.IsClosed() {
			return err
		}
		slog.Debug("follow: new consumer", "stream", stream, "next", f.next, "reason", err)
		if f.next != before {
			retry = retryMin
		}
		if errors.Is(err, errRenew) && (f.next != before || time.Since(began) > retryMax) {
			continue // at once; but not round and round, as when two agents claim one node
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.status: // back: try at once
			retry = retryMin
		case <-time.After(retry):
			if retry = min(2*retry, retryMax); retry == retryMax {
				slog.Warn("stream cannot be followed, trying on", "stream", stream, "error", err)
			}
		}
	}
}

// errRenew ends a session whose consumer is lost while the server can be reached.
var errRenew = errors.New("bus: consumer lost")

type follower struct {
	conn           *Conn
	stream, filter string
	next           uint64 // sequence to go on at
	created        int64  // of the stream, once known
	sink           func([]*Msg)
	status         chan nats.Status
	patience       time.Duration // with the server, when a consumer is made
	doubt          time.Time     // since when the stream seems to be rewound; zero = it doesn't
}

// session reads by one consumer until that fails.
func (f *follower) session(ctx context.Context) error {
	ctx, cancel := f.conn.UntilDrop(ctx)
	defer cancel()
	name, err := f.create(ctx)
	if err != nil {
		// A request to a server that just died gets no answer: ask again soon, and only then give a slow one time.
		f.patience = min(2*f.patience, APITimeout/2)
		return err
	}
	f.patience = patienceMin
	nc := f.conn.nc
	if _, fixed := f.conn.role.node(); !fixed { // an abandoned consumer would end by itself; this is only faster
		defer func() { _ = nc.Publish("$JS.API.CONSUMER.DELETE."+f.stream+"."+name, nil) }()
	}
	inbox := nc.NewInbox()
	in := make(chan *nats.Msg, 4*fetchBatch)
	sub, err := nc.ChanSubscribe(inbox+".*", in)
	if err != nil {
		return fmt.Errorf("bus: follow %s: %w", f.stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	want, err := json.Marshal(map[string]any{
		"batch": fetchBatch, "max_bytes": fetchBytes, "expires": fetchExpires, "idle_heartbeat": fetchHeartbeat,
	})
	if err != nil {
		return fmt.Errorf("bus: follow %s: %w", f.stream, err)
	}
	var (
		pulls     int    // requests sent
		request   string // reply subject of the newest, to know an old one's end from its end
		open      int    // what it may still deliver
		delivered uint64 // by this consumer
	)
	pull := func() error {
		pulls++
		request, open = inbox+"."+strconv.Itoa(pulls), fetchBatch
		if err := nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+f.stream+"."+name, request, want); err != nil {
			return fmt.Errorf("bus: follow %s: %w", f.stream, err)
		}
		return nil
	}
	if err := pull(); err != nil {
		return err
	}
	silence := time.NewTimer(fetchSilence)
	defer silence.Stop()
	for {
		var m *nats.Msg
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-silence.C:
			return errRenew
		case m = <-in:
		}
		var batch []*Msg
		var end error
	drain:
		for m != nil {
			if status := m.Header.Get("Status"); status != "" && len(m.Data) == 0 {
				done, err := f.control(status, m.Header.Get("Description"))
				if err != nil {
					end = err
					break
				}
				if done && m.Subject == request {
					open = 0
				}
			} else {
				meta, err := m.Metadata()
				if err != nil {
					end = fmt.Errorf("bus: follow %s: %w", f.stream, err)
					break
				}
				if meta.Sequence.Consumer != delivered+1 || meta.Sequence.Stream < f.next {
					end = errRenew // a message was lost on the way
					break
				}
				delivered++
				f.next = meta.Sequence.Stream + 1
				open--
				batch = append(batch, &Msg{
					Seq: meta.Sequence.Stream, CreatedNS: f.created, TimeNS: meta.Timestamp.UnixNano(),
					Subject: m.Subject, Header: header(m.Header), Data: m.Data, Pending: meta.NumPending,
				})
			}
			select {
			case m = <-in:
			default:
				break drain
			}
		}
		// Ask for more before the batch is worked on, unless the reader must first make room.
		if end == nil && open <= 0 && len(batch) < fetchBatch {
			end = pull()
		}
		if len(batch) > 0 {
			f.sink(batch)
		}
		if end == nil && open <= 0 {
			end = pull()
		}
		if end != nil {
			return end
		}
		silence.Reset(fetchSilence)
	}
}

// control reads a status message: done says that the waiting request has ended.
func (f *follower) control(status, description string) (done bool, err error) {
	switch status {
	case "100": // beat
		return false, nil
	case "404", "408":
		return true, nil
	case "409":
		if description == "Batch Completed" || description == "Message Size Exceeds MaxBytes" {
			return true, nil
		}
		return true, errRenew
	case "503":
		return true, fmt.Errorf("bus: follow %s: nobody answers for the consumer", f.stream)
	}
	return true, fmt.Errorf("bus: follow %s: status %s %s", f.stream, status, description)
}

// create makes a consumer at f.next and checks that the stream still is the one read so far.
func (f *follower) create(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, f.patience)
	defer cancel()
	cfg := jetstream.ConsumerConfig{
		FilterSubject: f.filter, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: f.next,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: fetchExpires,
	}
	if _, ok := f.conn.role.node(); ok {
		// An agent may create only the consumer of its own name, which an earlier session can have left behind.
		cfg.Name = string(f.conn.role)
		if err := f.conn.js.DeleteConsumer(ctx, f.stream, cfg.Name); err != nil &&
			!errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return "", fmt.Errorf("bus: follow %s: %w", f.stream, err)
		}
	}
	c, err := f.conn.js.CreateConsumer(ctx, f.stream, cfg)
	if err != nil {
		return "", fmt.Errorf("bus: follow %s: %w", f.stream, err)
	}
	s, err := f.conn.js.Stream(ctx, f.stream)
	if err != nil {
		return "", fmt.Errorf("bus: follow %s: %w", f.stream, err)
	}
	info := s.CachedInfo()
	if err := f.check(info.Created.UnixNano(), info.State.LastSeq, info.Config.Replicas, time.Now()); err != nil {
		return "", err
	}
	return c.CachedInfo().Name, nil
}

// check compares the stream as the server tells of it with what was read so far. Of several replicas one that led may
// answer late and tell of an earlier end: only what stays so for a while is believed.
func (f *follower) check(created int64, last uint64, replicas int, now time.Time) error {
	if (f.created == 0 || created == f.created) && last+1 >= f.next {
		f.created, f.doubt = created, time.Time{}
		return nil
	}
	if f.doubt.IsZero() {
		f.doubt = now
	}
	if replicas > 1 && now.Sub(f.doubt) < doubtFor {
		return fmt.Errorf("bus: follow %s: it seems to end at %d before %d", f.stream, last, f.next)
	}
	return &Rewound{Stream: f.stream, Next: f.next, Last: last, CreatedNS: created}
}

// header takes over what the writer set, not what the server adds.
func header(h nats.Header) map[string]string {
	var out map[string]string
	for k, v := range h {
		if len(v) == 0 || CheckHeader(k) != nil {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(h))
		}
		out[k] = v[0]
	}
	return out
}
