// Package program is the front of every service's binary: it owns the flags that all share, how settings are layered,
// the sign-in to the bus, signals, exit codes and what --help says. It never knows what a service does.
//
// A setting `saves_dir` is the flag --saves-dir, the variable WEFT_SAVES_DIR, and the key saves_dir of the file that
// --config names; the flag wins over the variable, and that over the file.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/config"
	"github.com/weft-fabric/weft/libs/obs"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1 // the service failed while it ran
	exitUsage       = 2 // a wrong flag or setting
	exitUnavailable = 5 // the bus does not answer, refuses, or is not prepared
)

// Defaults of the flags that all programs share.
const (
	DefaultNATS = "nats://127.0.0.1:7402"
	DefaultData = ".weft/dev"
)

// Options are the values of those flags.
type Options struct {
	NATS        string // URL of the bus
	Data        string // absolute
	Credentials string // file of users and passwords
	Config      string // settings file, "" = none
}

// Program is one binary; C is the settings of its service.
type Program[C any] struct {
	Name     string // as typed
	About    string // what it does, for --help
	Examples string // commands to type, one a line
	Defaults C
	// Help has one line for each setting, by key. A setting without one is no flag and not shown.
	Help map[string]string
	// Flags adds flags of the program itself; may be nil.
	Flags func(fs *flag.FlagSet)
	// Settle fills what flags, environment and file left open, before validation; may be nil.
	Settle func(c *C, o Options) error
	// Roles are the users of the bus as whom to sign in.
	Roles func(c C) []bus.Role
	// Serve works until ctx ends.
	Serve func(ctx context.Context, c C, b *Bus) error
}

// Main runs the program and exits. SIGINT and SIGTERM end it in order, a second one at once.
func Main[C any](p Program[C]) {
	os.Exit(p.run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, slog.SetDefault))
}

// usageError is the caller's mistake.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// busError says that the bus can't be used as it is.
type busError struct{ err error }

func (e *busError) Error() string { return e.err.Error() }
func (e *busError) Unwrap() error { return e.err }

func (p *Program[C]) run(ctx context.Context, args []string, stdout, stderr io.Writer, logTo func(*slog.Logger)) int {
	cl := p.commandLine()
	if err := cl.parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			cl.help(stdout)
			return exitOK
		}
		return p.fail(stderr, &usageError{fmt.Errorf("%w; see: %s --help", err, p.Name)})
	}
	if cl.version {
		fmt.Fprintln(stdout, p.Name, Version())
		return exitOK
	}
	logger, err := obs.NewLogger(stderr, cl.log)
	if err != nil {
		return p.fail(stderr, &usageError{fmt.Errorf("%w; see: %s --help", err, p.Name)})
	}
	logTo(logger)
	c, err := p.settings(cl)
	if err != nil {
		return p.fail(stderr, &usageError{fmt.Errorf("%w; see: %s --help", err, p.Name)})
	}

	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from now on a signal has its default effect
	b, err := Dial(ctx, p.Name, cl.options, p.Roles(c)...)
	if err != nil {
		return p.fail(stderr, err)
	}
	defer b.Close()
	slog.Info("service starts", "program", p.Name, "version", Version(), "bus", cl.options.NATS)
	if err := p.Serve(ctx, c, b); err != nil && !errors.Is(err, context.Canceled) {
		return p.fail(stderr, err)
	}
	slog.Info("service ended", "program", p.Name)
	return exitOK
}

// settings lays defaults, file, environment and flags over each other, and lets the program fill in the rest.
func (p *Program[C]) settings(cl *commandLine) (C, error) {
	c := p.Defaults
	if err := config.Read(&c, cl.options.Config, cl.over()); err != nil {
		return c, err
	}
	if p.Settle != nil {
		if err := p.Settle(&c, cl.options); err != nil {
			return c, err
		}
	}
	if v, ok := any(&c).(config.Validator); ok {
		return c, v.Validate()
	}
	return c, nil
}

// fail prints an error as one line and gives its exit code.
func (p *Program[C]) fail(w io.Writer, err error) int {
	fmt.Fprintf(w, "%s: %s\n", p.Name, oneLine(err))
	var usage *usageError
	var unavailable *busError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unavailable):
		return exitUnavailable
	}
	return exitFailed
}

// oneLine shortens joined errors to the first one: a dozen streams that are all missing are one mistake.
func oneLine(err error) string {
	first, rest, more := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	if more {
		first += fmt.Sprintf(" (and %d more)", 1+strings.Count(rest, "\n"))
	}
	return first
}

// version is set when the binary is linked.
var version string

// Version of this build.
func Version() string {
	if version != "" {
		return version
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return bi.Main.Version
	}
	return "dev"
}

// CredentialsIn is where a data directory keeps the users of its bus.
func CredentialsIn(data string) string { return filepath.Join(data, "bus", bus.UsersFile) }
