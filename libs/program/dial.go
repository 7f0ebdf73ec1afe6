package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/run"
)

// startWithin bounds the first look at the bus; reading the ledger takes as long as it takes.
const startWithin = 15 * time.Second

// Bus is a program's connections, one a user.
type Bus struct{ conns map[bus.Role]*bus.Conn }

// Dial signs in as each role, and verifies the streams if it may see both accounts. Close ends the connections.
func Dial(ctx context.Context, name string, o Options, roles ...bus.Role) (*Bus, error) {
	passwords, err := ReadCredentials(o.Credentials)
	if err != nil {
		return nil, &usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	b := &Bus{conns: map[bus.Role]*bus.Conn{}}
	for _, role := range roles {
		c, err := DialAs(ctx, name, o, passwords, role)
		if err != nil {
			b.Close()
			return nil, err
		}
		b.conns[role] = c
	}
	if core, nodes := b.Conn(bus.RoleCore), b.Conn(bus.RoleNodes); core != nil && nodes != nil {
		if err := bus.Verify(ctx, core, nodes); err != nil {
			b.Close()
			return nil, &busError{err}
		}
	}
	return b, nil
}

// DialAs signs in as one role.
func DialAs(ctx context.Context, name string, o Options, passwords map[bus.Role]string, role bus.Role) (*bus.Conn, error) {
	if passwords[role] == "" {
		return nil, &usageError{fmt.Errorf("%s holds no password of the bus user %s; the bus must be told of each user, as by: weft bus serve --node NAME", o.Credentials, role)}
	}
	c, err := bus.Dial(ctx, bus.Options{URL: o.NATS, User: string(role), Password: passwords[role], Name: name})
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return nil, &busError{fmt.Errorf("%w; name the file that this bus was started with: --credentials FILE", err)}
	case err != nil:
		return nil, &busError{fmt.Errorf("%w; start a bus: weft bus serve, or name another: --nats URL", err)}
	}
	return c, nil
}

// Conn is the connection of a role, nil if the program has none.
func (b *Bus) Conn(r bus.Role) *bus.Conn { return b.conns[r] }

// Close ends every connection.
func (b *Bus) Close() {
	for _, c := range b.conns {
		c.Close()
	}
}

// ReadCredentials reads a file of users and passwords.
func ReadCredentials(file string) (map[bus.Role]string, error) {
	b, err := os.ReadFile(file) // #nosec G304: the operator names it
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no file of the bus's users at %s; name one with --credentials, or make one by starting a bus: weft bus serve", file)
	}
	if err != nil {
		return nil, fmt.Errorf("credentials of the bus: %w", err)
	}
	passwords := map[bus.Role]string{}
	if err := json.Unmarshal(b, &passwords); err != nil {
		return nil, fmt.Errorf("%s is no file of the bus's users: %w", file, err)
	}
	return passwords, nil
}

// Ledger is a program's own reading of the ledger.
type Ledger struct {
	Log  *natsledger.Log
	Proj *ledger.Projection[*cell.State]
}

// OpenLedger opens the ledger; hooks of the projection must be registered before Read.
func OpenLedger(ctx context.Context, b *Bus) (*Ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	core := b.Conn(bus.RoleCore)
	log, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		return nil, &busError{err}
	}
	snaps, err := natsledger.OpenSnapshots(ctx, core, bus.StreamLedger)
	if err != nil {
		log.Close()
		return nil, &busError{err}
	}
	return &Ledger{Log: log, Proj: ledger.NewProjection(log, cellfold.Fold(), snaps)}, nil
}

// Close ends the reader.
func (l *Ledger) Close() { l.Log.Close() }

// Read catches up with the ledger and returns the service that keeps following it.
func (l *Ledger) Read(ctx context.Context) (run.Service, error) {
	if _, err := l.Proj.CatchUp(ctx, time.Now()); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return run.Func("ledger", func(ctx context.Context) error { return run.Loop(ctx, nil, l.Proj) }), nil
}
