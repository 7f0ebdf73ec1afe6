// Package busnats adapts the ports of bus to NATS JetStream.
package busnats

import (
	"context"

	"github.com/weft-fabric/weft/libs/bus"
)

// NewInbox reads a stream, or the part of it that matches filter ("" = all), until ctx ends.
func NewInbox(ctx context.Context, conn *bus.Conn, stream, filter string) bus.Inbox { return nil }

// NewOutbox writes a stream.
func NewOutbox(conn *bus.Conn, stream string) bus.Outbox { return nil }

// NewCaller calls and serves in the connection's account.
func NewCaller(conn *bus.Conn) bus.Caller { return nil }

// NewObjects opens a bucket.
func NewObjects(conn *bus.Conn, bucket string) bus.Objects { return nil }
