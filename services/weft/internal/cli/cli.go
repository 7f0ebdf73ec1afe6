// Package cli is the weft command: it owns flags, words and output for people and programs. It contains no rule of the
// domain: everything it knows it asks of the gateway.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes of the weft command.
const (
	ExitOK          = 0
	ExitError       = 1 // anything without a code of its own
	ExitUsage       = 2 // wrong flag, argument or manifest
	ExitNotFound    = 3
	ExitDenied      = 4 // not signed in, or not allowed
	ExitUnavailable = 5 // the fabric does not answer
	ExitJobFailed   = 10
)

// exitError carries an exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{ExitUsage, fmt.Errorf(format, args...)}
}

// app is what every command shares.
type app struct {
	out, errOut io.Writer
	in          io.Reader
	contextFile string
	output      string
	color       bool
	width       int
}

func (a *app) json() bool { return a.output == "json" }

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{out: os.Stdout, errOut: os.Stderr, in: os.Stdin}
	_, noColor := os.LookupEnv("NO_COLOR")
	a.color = !noColor && os.Getenv("TERM") != "dumb" && isatty.IsTerminal(os.Stdout.Fd())
	return a.run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	code, text := explainError(err)
	if code == ExitUsage && cmd != nil {
		text += fmt.Sprintf("\n  see: %s --help", cmd.CommandPath())
	}
	fmt.Fprintln(a.errOut, "weft: "+text)
	return code
}

// explainError turns an error into an exit code and a message that names the next thing to do.
func explainError(err error) (int, string) {
	var ee *exitError
	if errors.As(err, &ee) {
		return ee.code, ee.Error()
	}
	if st, ok := status.FromError(err); ok && st.Code() != codes.OK && st.Code() != codes.Unknown {
		msg := st.Message()
		switch st.Code() {
		case codes.InvalidArgument, codes.FailedPrecondition, codes.AlreadyExists, codes.OutOfRange:
			return ExitUsage, msg
		case codes.NotFound:
			return ExitNotFound, withNext(msg, "weft ps --all")
		case codes.PermissionDenied, codes.Unauthenticated:
			return ExitDenied, msg
		case codes.Unavailable, codes.DeadlineExceeded:
			if strings.Contains(msg, "error reading from server") || strings.Contains(msg, "connection error") || strings.Contains(msg, "connect:") || st.Code() == codes.DeadlineExceeded {
				return ExitUnavailable, withNext("the fabric does not answer", "weft up")
			}
			return ExitUnavailable, msg
		case codes.Canceled:
			return ExitError, "interrupted"
		case codes.ResourceExhausted:
			return ExitUnavailable, msg
		default:
			return ExitError, msg
		}
	}
	if errors.Is(err, context.Canceled) {
		return ExitError, "interrupted"
	}
	// What cobra says of flags and arguments carries no type.
	msg := err.Error()
	for _, p := range []string{"unknown command", "unknown flag", "unknown shorthand", "accepts ", "requires ", "invalid argument", "flag needs an argument", "required flag", "if any flags in the group", "bad flag syntax"} {
		if strings.HasPrefix(msg, p) {
			return ExitUsage, msg
		}
	}
	return ExitError, msg
}

// withNext appends the command to type next, unless the message names a weft command already.
func withNext(msg, next string) string {
	if strings.Contains(msg, "`weft ") || strings.Contains(msg, "weft ps") {
		return msg
	}
	return msg + "; try: " + next
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "One fair, self-healing training fabric from a set of GPU machines",
		Long: `Weft turns a set of GPU machines into one fair, self-healing training fabric.

First job, from nothing:
  weft up                       # this machine as a fabric (its GPUs, or simulated ones); leave it running
  weft run -- echo hello        # in another terminal: submit, follow the output, wait
  weft submit job.yaml          # a manifest; see deploy/examples
  weft ps                       # what runs and what waits
  weft explain JOB              # why it waits

Exit codes: 0 done, 1 error, 2 usage or refused manifest, 3 not found, 4 denied, 5 fabric unavailable, 10 job failed.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case a.output == "table", a.output == "json", a.output == "yaml" && cmd.Name() == "get":
				return nil
			case a.output == "yaml":
				return usagef("-o yaml is for weft get; here: -o json")
			}
			return usagef("--output %q is not known; use table, json or (with get) yaml", a.output)
		},
	}
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "output format: table, json (for programs) or yaml (get only)")
	root.PersistentFlags().StringVar(&a.contextFile, "context", "", "context `file` with address and token (default $WEFT_CONTEXT, then the one that weft up wrote)")
	root.AddGroup(&cobra.Group{ID: "jobs", Title: "Jobs:"}, &cobra.Group{ID: "cell", Title: "Fabric:"})
	for _, c := range []*cobra.Command{submitCmd(a), runCmd(a), psCmd(a), getCmd(a), explainCmd(a), eventsCmd(a), logsCmd(a), cancelCmd(a), ckptCmd(a)} {
		c.GroupID = "jobs"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{upCmd(a), nodesCmd(a), queuesCmd(a), versionCmd(a)} {
		c.GroupID = "cell"
		root.AddCommand(c)
	}
	root.AddCommand(demoCmd(a), benchCmd(a), busCmd(a), ledgerCmd(a))
	return root
}

// needs says what a command without its arguments lacks, by an example of it.
func needs(least, most int, what, example string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("%s is missing; for example: %s", what, example)
		case most > 0 && len(args) > most:
			return usagef("%q is one argument too many; for example: %s", args[most], example)
		}
		return nil
	}
}
