package bus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options say where and as whom to connect.
type Options struct {
	URL       string
	User      string
	Password  string
	Name      string // of the connection, for people
	InProcess nats.InProcessConnProvider
}

// Conn is one connection, bound to the account of its user.
type Conn struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// Dial connects; it fails rather than wait if nobody answers.
func Dial(ctx context.Context, o Options) (*Conn, error) { return nil, errors.New("bus: not yet") }

// NC is the NATS connection.
func (c *Conn) NC() *nats.Conn { return c.nc }

// JS is the JetStream client of this connection.
func (c *Conn) JS() jetstream.JetStream { return c.js }

// Close ends the connection.
func (c *Conn) Close() { c.nc.Close() }
