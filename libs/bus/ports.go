package bus

import (
	"context"
	"errors"
	"io"
	"time"
)

// Input is one message of an input stream.
type Input struct {
	Stream    string
	CreatedNS int64 // creation time of the stream; a stream made anew starts anew
	Seq       uint64
	Subject   string
	Header    map[string]string
	Data      []byte
}

// Inbox reads one stream in order, from a cursor that the reader keeps (in its commits). There are no
// acknowledgements: what has been read and not yet committed is simply read again after a restart.
type Inbox interface {
	// Next returns up to max inputs after the last one returned, without waiting.
	Next(ctx context.Context, max int) ([]Input, error)
	// Seek makes Next continue after seq. It is called once before the first Next, and again when the reader rebuilds.
	Seek(seq uint64)
	// Stream returns name and creation time, for cursors.
	Stream(ctx context.Context) (name string, createdNS int64, err error)
	// Trim removes inputs up to and including seq; only the stream's one reader may call it.
	Trim(ctx context.Context, seq uint64) error
	// Wake receives when Next may have more.
	Wake() <-chan struct{}
}

// Message is one message to publish.
type Message struct {
	Subject string
	Header  map[string]string
	Data    []byte
}

// ErrPosition means: the stream's end, or the key's last write, is not where the writer believed.
var ErrPosition = errors.New("bus: the stream moved on under this writer")

// ErrFull means: the stream refuses more until its reader trims.
var ErrFull = errors.New("bus: stream full")

// ErrUnavailable means: no answer in time; whether the message was stored is unknown.
var ErrUnavailable = errors.New("bus: unavailable")

// Outbox writes one stream.
type Outbox interface {
	// Publish stores a message wherever the stream's end is, and returns its sequence.
	Publish(ctx context.Context, m Message) (seq uint64, err error)
	// Append stores m as sequence expected+1, or fails with ErrPosition. If an equal message is already stored there
	// (a lost acknowledgement, or another replica that computed the same), that counts as success.
	Append(ctx context.Context, expected uint64, m Message) (seq uint64, err error)
	// Last returns the stream's last message; ok is false in an empty stream, and then seq is still the position.
	Last(ctx context.Context) (m Message, seq uint64, ok bool, err error)
	// Put replaces the one message of a subject, if its last write was sequence expected (0 = none yet), or fails with
	// ErrPosition. As with Append, finding an equal message as the subject's newest counts as success.
	Put(ctx context.Context, expected uint64, m Message) (seq uint64, err error)
	// Get returns the newest message of a subject; ok is false if there is none.
	Get(ctx context.Context, subject string) (m Message, seq uint64, ok bool, err error)
}

// Reply is the answer to a call.
type Reply struct {
	Data []byte
	Err  error // ErrNoAnswer, a *Refusal, or a transport error
}

// ErrNoAnswer means: nobody answered in time.
var ErrNoAnswer = errors.New("bus: no answer")

// Refusal is an error that the callee sent back: Code is stable and for programs, Message for people.
type Refusal struct{ Code, Message string }

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// Codes of refusals.
const (
	CodeBehind      = "behind"      // the callee has not read the ledger far enough yet
	CodeNotFound    = "not-found"   // the thing named does not exist
	CodeInvalid     = "invalid"     // the request makes no sense
	CodeUnavailable = "unavailable" // the callee cannot answer now
)

// Pending is a call under way.
type Pending interface {
	// Poll returns the reply once it is there; done stays true afterwards.
	Poll() (r Reply, done bool)
	// Wait blocks until the reply is there or ctx ends. Steppable shells use Poll.
	Wait(ctx context.Context) Reply
	// Done is closed once the reply is there; a shell adds it to its Wakes while it waits.
	Done() <-chan struct{}
}

// Request is one call that came in.
type Request struct {
	Subject string
	Header  map[string]string
	Data    []byte
	Respond func(data []byte, refusal *Refusal) // exactly once; a one-way message ignores it
}

// Server holds the calls to one subject until they are taken.
type Server interface {
	// Next returns up to max waiting requests, without waiting.
	Next(max int) []Request
	Wake() <-chan struct{}
	Close()
}

// Caller carries what may be lost: calls between services, beats, live copies. Subjects are given whole.
type Caller interface {
	// Call sends a request; the reply is polled.
	Call(subject string, data []byte, timeout time.Duration) Pending
	// Send publishes without expecting an answer; it may be lost.
	Send(m Message) error
	// Serve collects requests and messages on a subject pattern; with a queue name only one member of it gets each.
	Serve(subject, queue string) (Server, error)
}

// ErrNotFound means: no object of that name, or not completely stored.
var ErrNotFound = errors.New("bus: no such object")

// Objects is one bucket of blobs that are named once and then never change: bundles, specs, snapshots. Names are one
// or more of [A-Za-z0-9._-]. Putting a name again replaces it; a reader sees the old bytes or the new ones, whole.
type Objects interface {
	Put(ctx context.Context, name string, r io.Reader) error
	// Get fails with ErrNotFound. The reader fails, rather than end early, if bytes are missing or damaged.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	Has(ctx context.Context, name string) (bool, error)
	// List returns the names that begin with prefix, sorted.
	List(ctx context.Context, prefix string) ([]string, error)
	// Delete of a name that is not there is no error.
	Delete(ctx context.Context, name string) error
}
