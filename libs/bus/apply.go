package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const versionKey = "weft.config"

// ApplyOptions are what the declarations leave open.
type ApplyOptions struct {
	Replicas int // of every stream; 0 = 1
}

// Apply creates or updates every stream and bucket of the two accounts, as the init users. It changes nothing that is as it
// should be, and refuses to touch streams made by a newer program.
func Apply(ctx context.Context, core, nodes *Conn, opts ApplyOptions) error {
	replicas := max(opts.Replicas, 1)
	return each(ctx, core, nodes, func(ctx context.Context, c *Conn, d Declaration) error {
		want := d.config(replicas)
		want.Metadata = map[string]string{versionKey: strconv.Itoa(ConfigVersion)}
		s, err := c.js.Stream(ctx, d.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return create(ctx, c.js, want)
		case err != nil:
			return err
		}
		have := s.CachedInfo().Config
		if v := version(have); v > ConfigVersion {
			return newer(v)
		} else if v == ConfigVersion && have.Replicas == replicas && len(differences(want, have)) == 0 {
			return nil
		}
		return update(ctx, c.js, want)
	})
}

// Verify refuses a bus whose streams are missing, weaker than declared, or made by a newer program.
func Verify(ctx context.Context, core, nodes *Conn) error {
	return each(ctx, core, nodes, func(ctx context.Context, c *Conn, d Declaration) error {
		s, err := c.js.Stream(ctx, d.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return errors.New("it does not exist: run `weft bus init`")
		}
		if err != nil {
			return err
		}
		have := s.CachedInfo().Config
		if v := version(have); v > ConfigVersion {
			return newer(v)
		}
		if diff := differences(d.config(max(have.Replicas, 1)), have); len(diff) > 0 {
			return fmt.Errorf("its configuration is not this program's (%s): run `weft bus init`", diff[0])
		}
		return nil
	})
}

// each runs f for every declaration, all at once, with the connection of its account.
func each(ctx context.Context, core, nodes *Conn, f func(ctx context.Context, c *Conn, d Declaration) error) error {
	errs := make(chan error, len(declarations))
	for _, d := range declarations {
		c := core
		if d.Account == AccountNodes {
			c = nodes
		}
		go func() {
			err := patiently(ctx, func(ctx context.Context) error { return f(ctx, c, d) })
			if err != nil {
				err = fmt.Errorf("bus: stream %s in account %s: %w", d.Name, d.Account, err)
			}
			errs <- err
		}()
	}
	var all []error
	for range declarations {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// patiently tries again what got no answer in time: now and then a server that has just started gives none, and every try
// finds what the one before has done.
func patiently(ctx context.Context, f func(context.Context) error) (err error) {
	for range 4 {
		try, cancel := context.WithTimeout(ctx, APITimeout)
		err = f(try)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
	}
	return err
}

func newer(v int) error {
	return fmt.Errorf("made by a newer Weft (configuration %d, this program knows %d): upgrade this program", v, ConfigVersion)
}

func version(c jetstream.StreamConfig) int {
	v, err := strconv.Atoi(c.Metadata[versionKey])
	if err != nil {
		return 0
	}
	return v
}

// differences names what is not as wanted, other than replicas and what Weft does not set.
func differences(want, have jetstream.StreamConfig) []string {
	var d []string
	add := func(differs bool, what string, w, h any) {
		if differs {
			d = append(d, fmt.Sprintf("%s is %v, not %v", what, h, w))
		}
	}
	ws, hs := slices.Sorted(slices.Values(want.Subjects)), slices.Sorted(slices.Values(have.Subjects))
	add(!slices.Equal(ws, hs), "subjects", ws, hs)
	add(want.Retention != have.Retention, "retention", want.Retention, have.Retention)
	add(want.Storage != have.Storage, "storage", want.Storage, have.Storage)
	add(want.Discard != have.Discard, "discard", want.Discard, have.Discard)
	add(want.MaxAge != have.MaxAge, "max age", want.MaxAge, have.MaxAge)
	add(want.MaxBytes != have.MaxBytes, "max bytes", want.MaxBytes, have.MaxBytes)
	add(have.MaxMsgs > 0, "max messages", -1, have.MaxMsgs)
	add(max(want.MaxMsgsPerSubject, 0) != max(have.MaxMsgsPerSubject, 0), "messages per subject", want.MaxMsgsPerSubject, have.MaxMsgsPerSubject)
	add(want.DenyDelete != have.DenyDelete, "deny delete", want.DenyDelete, have.DenyDelete)
	add(have.DenyPurge, "deny purge", false, have.DenyPurge)
	add(want.AllowDirect != have.AllowDirect, "direct reads", want.AllowDirect, have.AllowDirect)
	add(want.AllowRollup != have.AllowRollup, "rollup", want.AllowRollup, have.AllowRollup)
	add(want.PersistMode != have.PersistMode, "persist mode", want.PersistMode, have.PersistMode)
	add(have.NoAck, "acknowledgements off", false, have.NoAck)
	add(have.Sealed, "sealed", false, have.Sealed)
	add(have.Mirror != nil || len(have.Sources) > 0, "mirrors or sources", "none", "some")
	add(have.RePublish != nil, "republish", "none", "some")
	add(have.SubjectTransform != nil, "subject transform", "none", "some")
	return d
}
