package cli

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// diskWatch passes records on and notes the first that says that the bus lost its disk. A server that failed to write,
// as on a full disk, writes to that stream never again; only its log says so, and only a new start is a cure.
type diskWatch struct {
	slog.Handler
	lost chan string
}

// watchDisk listens to the log, which goes to h, from here on.
func watchDisk(h slog.Handler) <-chan string {
	w := diskWatch{h, make(chan string, 1)}
	slog.SetDefault(slog.New(w))
	return w.lost
}

func (w diskWatch) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "nats: ") && strings.Contains(r.Message, "ritical write error: ") {
		select {
		case w.lost <- r.Message:
		default:
		}
	}
	return w.Handler.Handle(ctx, r)
}

// WithAttrs and WithGroup keep watching.
func (w diskWatch) WithAttrs(as []slog.Attr) slog.Handler {
	return diskWatch{w.Handler.WithAttrs(as), w.lost}
}

func (w diskWatch) WithGroup(name string) slog.Handler {
	return diskWatch{w.Handler.WithGroup(name), w.lost}
}

// diskError says what to do about it.
func diskError(dir, why string) error {
	_, why, _ = strings.Cut(why, "ritical write error: ")
	return fmt.Errorf("the bus cannot write in %s any more (%s); make room there, or replace the disk, and start again: what was answered is kept, and running jobs go on meanwhile", dir, why)
}
