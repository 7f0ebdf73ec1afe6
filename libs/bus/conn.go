package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// APITimeout is longer than an election of a replicated stream (4 to 9 s).
const APITimeout = 10 * time.Second

// Options say where and as whom to connect.
type Options struct {
	URL       string
	User      string // a Role
	Password  string
	Name      string // of the connection, for people
	InProcess nats.InProcessConnProvider
}

// Conn is one connection, bound to the account of its user.
type Conn struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	role Role

	mu   sync.Mutex
	up   context.Context // ends when the connection is lost
	drop context.CancelFunc
}

// Dial connects; it fails rather than wait if nobody answers. A connection that was made reconnects for ever; what is
// published meanwhile fails at once instead of being sent late.
func Dial(ctx context.Context, o Options) (*Conn, error) {
	timeout := 5 * time.Second
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	role := Role(o.User)
	log := slog.With("bus", o.Name, "user", o.User)
	c := &Conn{role: role}
	c.setUp()
	opts := []nats.Option{
		nats.Name(o.Name), nats.UserInfo(o.User, o.Password), nats.CustomInboxPrefix(InboxPrefix(role)),
		nats.Timeout(timeout), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(50*time.Millisecond, 200*time.Millisecond),
		nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2), // a server that hangs is given up after 6 s
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.setDown()
			if err != nil {
				log.Warn("bus connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.setUp()
			log.Info("bus connection back", "url", nc.ConnectedUrlRedacted())
		}),
		nats.ClosedHandler(func(*nats.Conn) { c.setDown() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("bus error", "error", err) }),
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	}
	nc, err := nats.Connect(o.URL, opts...)
	if err != nil {
		if errors.Is(err, nats.ErrAuthorization) {
			return nil, fmt.Errorf("bus: %s refused user %q: check its password: %w", o.URL, o.User, err)
		}
		return nil, fmt.Errorf("bus: no connection to %s: %w", o.URL, err)
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(APITimeout))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("bus: %w", err)
	}
	c.nc, c.js = nc, js
	return c, nil
}

func (c *Conn) setUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up, c.drop = context.WithCancel(context.Background())
}

func (c *Conn) setDown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
}

// UntilDrop derives a context that also ends when this connection is lost, with ErrUnavailable as its cause: no answer
// to what was sent before will come, and waiting for one would only add its timeout to the outage.
func (c *Conn) UntilDrop(ctx context.Context) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(up, func() { cancel(ErrUnavailable) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// NC is the NATS connection.
func (c *Conn) NC() *nats.Conn { return c.nc }

// JS is the JetStream client of this connection.
func (c *Conn) JS() jetstream.JetStream { return c.js }

// Role is the user of this connection.
func (c *Conn) Role() Role { return c.role }

// Close sends what is buffered and ends the connection.
func (c *Conn) Close() { c.nc.Close() }
