// Package operate is what an operator does with the ledgers of a fabric: look whether they are whole, read them, adopt
// what is left of them, back them up and put them back. It owns the way to a bus, running or not, and the format of a
// backup; what a ledger means it leaves to libs/ledger and to the services whose ledgers they are.
package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/services/weft/allinone"
)

// Options say which fabric is meant.
type Options struct {
	Data        string // data directory
	NATS        string // URL of a bus; "" = the one of the data directory
	Credentials string // file of users and passwords; "" = the data directory's
	// Create makes a data directory that does not exist, for a backup to be put into.
	Create bool
}

// NoFabric says that the options name nothing.
type NoFabric struct{ Err error }

func (e *NoFabric) Error() string { return e.Err.Error() }

// NoBus says that the bus does not answer.
type NoBus struct{ Err error }

func (e *NoBus) Error() string { return e.Err.Error() }

// Bus is a way to the streams.
type Bus struct {
	Core, Nodes *bus.Conn
	Where       string // for people

	dial  func(ctx context.Context, r bus.Role) (*bus.Conn, error)
	close []func()

	stopped bool // it was started here
}

// Open connects to the bus that runs, or starts that of a stopped `weft up` for as long as the command takes.
func Open(ctx context.Context, o Options) (*Bus, error) {
	dir, err := filepath.Abs(o.Data)
	if err != nil {
		return nil, &NoFabric{err}
	}
	b := &Bus{}
	url := o.NATS
	if url == "" {
		url, err = b.own(dir, o.Create)
		if err != nil {
			return nil, err
		}
	}
	if b.dial == nil {
		users := o.Credentials
		if users == "" {
			users = program.CredentialsIn(dir)
		}
		passwords, err := program.ReadCredentials(users)
		if err != nil {
			return nil, &NoFabric{fmt.Errorf("no fabric in %s: %w", dir, err)}
		}
		b.Where = url
		b.dial = func(ctx context.Context, r bus.Role) (*bus.Conn, error) {
			return program.DialAs(ctx, "weft ledger", program.Options{NATS: url, Credentials: users}, passwords, r)
		}
	}
	if o.Create || b.stopped { // streams in memory are gone after a stop; weft up makes them again, too
		if err := b.apply(ctx); err != nil {
			b.Close()
			return nil, err
		}
	}
	for role, conn := range map[bus.Role]**bus.Conn{bus.RoleCore: &b.Core, bus.RoleNodes: &b.Nodes} {
		c, err := b.dial(ctx, role)
		if err != nil {
			b.Close()
			return nil, &NoBus{err}
		}
		*conn = c
		b.close = append(b.close, c.Close)
	}
	if err := bus.Verify(ctx, b.Core, b.Nodes); err != nil {
		b.Close()
		return nil, &NoBus{err}
	}
	return b, nil
}

// own starts the bus of a fabric that is stopped, or returns the URL of the one that runs.
func (b *Bus) own(dir string, create bool) (url string, err error) {
	if !allinone.IsFabric(dir) && !create {
		return program.DefaultNATS, nil // services that run apart share a directory without one
	}
	off, err := allinone.OpenOffline(dir)
	var busy *allinone.BusyError
	switch {
	case errors.As(err, &busy) && create:
		return "", &NoFabric{fmt.Errorf("%w; a backup is put into a fabric that is stopped and empty: choose another with --data DIR", err)}
	case errors.As(err, &busy):
		text, err := os.ReadFile(filepath.Join(dir, allinone.ContextFile)) // #nosec G304: the operator names it
		var c allinone.Context
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err != nil {
			return "", &NoBus{fmt.Errorf("a fabric starts or ends in %s just now; try again: %w", dir, err)}
		}
		return c.NATS, nil
	case err != nil:
		return "", err
	}
	b.Where = dir + " (the fabric is stopped)"
	b.dial = off.Conn
	b.stopped = true
	b.close = append(b.close, off.Close)
	return "", nil
}

// apply makes the streams.
func (b *Bus) apply(ctx context.Context) error {
	core, err := b.dial(ctx, bus.RoleCoreInit)
	if err != nil {
		return &NoBus{err}
	}
	defer core.Close()
	nodes, err := b.dial(ctx, bus.RoleNodesInit)
	if err != nil {
		return &NoBus{err}
	}
	defer nodes.Close()
	return bus.Apply(ctx, core, nodes, bus.ApplyOptions{})
}

// Close ends the connections, and the bus if it was started here.
func (b *Bus) Close() {
	for i := len(b.close) - 1; i >= 0; i-- {
		b.close[i]()
	}
}
