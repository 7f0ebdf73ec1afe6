package cli

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/services/weft/allinone"
	"github.com/weft-fabric/weft/services/weft/internal/operate"
)

// ledgerCmd is what an operator does with the ledgers themselves.
func ledgerCmd(a *app) *cobra.Command {
	var o operate.Options
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Check, export, back up or repair the ledgers of a fabric (operators)",
		Long: `A fabric remembers everything in two ledgers: LEDGER (jobs, nodes, queues) and CHECKPOINTS (saves). Each is a chain of
records, and what is true now follows from all of them, or from a snapshot and the records after it.

On one machine the commands take the data directory of weft up, whether it runs or is stopped. For services that run apart
they take the bus: --nats URL, and the file of its users with --credentials FILE or --data DIR.

Is everything whole?          weft ledger verify
Keep a copy elsewhere:        weft ledger backup FILE        put it back: weft ledger restore FILE --data NEW
"commits were lost":          weft ledger adopt              shows what; accept what is left with --yes

Exit codes: 0 done and whole, 1 something is wrong, 2 usage, 5 the bus does not answer.`,
	}
	f := cmd.PersistentFlags()
	f.StringVar(&o.Data, "data", allinone.DefaultDir(), "data `directory`")
	f.StringVar(&o.NATS, "nats", os.Getenv("WEFT_NATS"), "`URL` of a bus that runs apart (default $WEFT_NATS, then the data directory's own)")
	f.StringVar(&o.Credentials, "credentials", os.Getenv("WEFT_CREDENTIALS"), "`file` of users and passwords (default $WEFT_CREDENTIALS, then bus/"+bus.UsersFile+" in --data)")

	verify := &cobra.Command{
		Use:   "verify",
		Short: "Read both ledgers from their start and check every record and every snapshot",
		Long: `Read both ledgers from the start, or from the oldest snapshot if older records were trimmed, and check the hash chain, the
terms of the leaders, that every fact can be read, and that every snapshot is the state that the records lead to. It changes
nothing and may run beside a fabric at work.

Void records are ones that readers pass over: a leader that was replaced had written them. They are no fault.
Exit code 1 if something is wrong; each fault names its record and what to do.`,
		Example: "  weft ledger verify\n  weft ledger verify --nats nats://10.0.0.1:4222 --data /etc/weft -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.books(cmd.Context(), o, a.verifyLedgers)
		},
	}

	var from, to uint64
	var of string
	export := &cobra.Command{
		Use:   "export",
		Short: "Write the records of a ledger as JSON, one a line",
		Long: `Write the records of a ledger as JSON, one a line: place, term, time and facts. Values of environment variables are left
out, since they may be secret. It changes nothing and may run beside a fabric at work.`,
		Example: "  weft ledger export --from 1200 --to 1300\n  weft ledger export | jq -c 'select(.facts[]?.job_placed)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if of = strings.ToUpper(of); of != bus.StreamLedger && of != bus.StreamCheckpoints {
				return usagef("--ledger %q is not known; use ledger or checkpoints", of)
			}
			if to != 0 && to < from {
				return usagef("--to %d is before --from %d", to, from)
			}
			return a.books(cmd.Context(), o, func(ctx context.Context, _ *operate.Bus, books []*operate.Book) error {
				return a.exportLedger(ctx, books, of, from, to)
			})
		},
	}
	export.Flags().Uint64Var(&from, "from", 1, "first record")
	export.Flags().Uint64Var(&to, "to", 0, "last record (0 = the end)")
	export.Flags().StringVar(&of, "ledger", "ledger", "which one: ledger (jobs, nodes, queues) or checkpoints (saves)")

	snapshot := &cobra.Command{
		Use:   "snapshot",
		Short: "Write a snapshot of both ledgers now",
		Long: `Write a snapshot of the newest state of both ledgers now. Services write them by themselves every 50,000 records; one more
makes the next start faster, replaces a damaged one, and bears witness if the end of the ledger should get lost.`,
		Example: "  weft ledger snapshot",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.books(cmd.Context(), o, a.snapshotLedgers) },
	}

	var yes bool
	adopt := &cobra.Command{
		Use:   "adopt",
		Short: "Accept what is left of a ledger that lost its end",
		Long: `A ledger ends before a record that had been confirmed: an older copy of the disk was put back, or a cluster lost its
majority. No scheduler leads it then. Without --yes this shows what was lost, as far as events tell, and changes nothing.

First look for the newer copy: what was lost is lost for good. With --yes what is left counts:
  - reports of nodes are read again, so jobs that ended in the lost part stay ended, if that was within about an hour
  - nothing starts until every node has said what it holds; ranks of attempts that the ledger does not know are ended
  - jobs that were submitted in the lost part are taken again from the requests, if that was within about an hour
A running scheduler goes on by itself within seconds; otherwise start the fabric.`,
		Example: "  weft ledger adopt\n  weft ledger adopt --yes",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.books(cmd.Context(), o, func(ctx context.Context, b *operate.Bus, books []*operate.Book) error {
				return a.adoptLedgers(ctx, b, books, yes)
			})
		},
	}
	adopt.Flags().BoolVar(&yes, "yes", false, "accept it")

	backup := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy both ledgers and the files of jobs into one file, while the fabric runs or is stopped",
		Long: `Copy what a cell cannot do without into one file: LEDGER and CHECKPOINTS with their snapshots, and the specs and files of
jobs. It holds no passwords and no tokens, but whatever users put into specs and files: keep it as you keep those. The
saves themselves are files in --saves-dir; copy them as files.`,
		Example: "  weft ledger backup /backup/weft-$(date +%F).tar.gz",
		Args:    needs(1, 1, "the file", "weft ledger backup cell.tar.gz"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onBus(cmd.Context(), o, func(ctx context.Context, b *operate.Bus) error {
				n, err := b.ToFile(ctx, args[0])
				if err != nil {
					return err
				}
				return a.counts("backed up into "+args[0], n)
			})
		},
	}

	restore := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup into a new data directory or an empty bus",
		Long: `Put a backup into a data directory that is new or whose bus/ was moved away, or with --nats into a bus whose ledgers are
empty; then check it, and adopt it as weft ledger adopt does: what happened after the backup is unknown, so nothing starts
until every node has said what it holds. Start the fabric afterwards.`,
		Example: "  weft ledger restore cell.tar.gz --data /srv/weft-new && weft up --data /srv/weft-new",
		Args:    needs(1, 1, "the file", "weft ledger restore cell.tar.gz --data NEW"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := os.Open(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return usagef("no file %s; name one that weft ledger backup wrote", args[0])
			}
			if err != nil {
				return err
			}
			defer func() { _ = in.Close() }()
			o.Create = true
			return a.onBus(cmd.Context(), o, func(ctx context.Context, b *operate.Bus) error {
				n, err := b.Restore(ctx, bufio.NewReader(in))
				if full := (*operate.NotEmpty)(nil); errors.As(err, &full) {
					return &exitError{ExitUsage, err}
				}
				if err != nil {
					return fmt.Errorf("%w; what was written is not complete: remove it and begin anew", err)
				}
				return a.counts("restored; the backup is of "+n.Head.Time, n)
			})
		},
	}
	cmd.AddCommand(verify, export, snapshot, adopt, backup, restore)
	return cmd
}

// onBus opens the bus, running or not.
func (a *app) onBus(ctx context.Context, o operate.Options, f func(context.Context, *operate.Bus) error) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(a.errOut, &slog.HandlerOptions{Level: slog.LevelError})))
	b, err := operate.Open(ctx, o)
	var none *operate.NoFabric
	var silent *operate.NoBus
	switch {
	case errors.As(err, &none):
		return &exitError{ExitUsage, err}
	case errors.As(err, &silent):
		return &exitError{ExitUnavailable, err}
	case err != nil:
		return err
	}
	defer b.Close()
	return f(ctx, b)
}

func (a *app) books(ctx context.Context, o operate.Options, f func(context.Context, *operate.Bus, []*operate.Book) error) error {
	return a.onBus(ctx, o, func(ctx context.Context, b *operate.Bus) error {
		books, err := b.Books(ctx)
		if err != nil {
			return err
		}
		return f(ctx, b, books)
	})
}

// audited is what verify says of one ledger to programs.
type audited struct {
	Ledger    string         `json:"ledger"`
	First     uint64         `json:"first"`
	Last      uint64         `json:"last"`
	From      uint64         `json:"from_snapshot,omitempty"`
	Records   uint64         `json:"records"`
	Commits   uint64         `json:"commits"`
	Facts     uint64         `json:"facts"`
	Void      []uint64       `json:"void,omitempty"`
	Term      uint64         `json:"term"`
	Leader    string         `json:"leader,omitempty"`
	Snapshots int            `json:"snapshots"`
	Skipped   int            `json:"snapshots_not_compared,omitempty"`
	State     string         `json:"state_hash"`
	Faults    []ledger.Fault `json:"faults,omitempty"`
}

func (a *app) verifyLedgers(ctx context.Context, b *operate.Bus, books []*operate.Book) error {
	var all []audited
	faults := 0
	for _, k := range books {
		x, err := k.Verify(ctx)
		if err != nil {
			return err
		}
		faults += len(x.Faults)
		all = append(all, audited{
			Ledger: k.Name, First: x.Tail.First, Last: x.Tail.Last, From: x.Start, Records: x.Records, Commits: x.Commits, Facts: x.Facts,
			Void: x.Void, Term: x.At.Term, Leader: x.Leader, Snapshots: x.Snapshots, Skipped: x.Skipped, State: hex.EncodeToString(x.State), Faults: x.Faults,
		})
	}
	if a.json() {
		if err := a.printJSON(all); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(a.out, b.Where)
		for _, x := range all {
			a.sayAudit(x)
		}
	}
	if faults > 0 {
		return fmt.Errorf("%d faults; each says what to do", faults)
	}
	return nil
}

func (a *app) sayAudit(x audited) {
	word := a.paint("whole", green)
	if len(x.Faults) > 0 {
		word = a.paint("damaged", red)
	}
	fmt.Fprintf(a.out, "%s is %s\n", x.Ledger, word)
	fmt.Fprintf(a.out, "  records %d to %d: %d commits with %d facts, %d void\n", x.First, x.Last, x.Commits, x.Facts, len(x.Void))
	if x.From > 0 {
		fmt.Fprintf(a.out, "  read from the snapshot at %d; older records were trimmed\n", x.From)
	}
	fmt.Fprintf(a.out, "  term %d, led by %s\n", x.Term, orDash(x.Leader))
	fmt.Fprintf(a.out, "  %d snapshots equal the state at their place", x.Snapshots)
	if x.Skipped > 0 {
		fmt.Fprintf(a.out, ", %d are of another version or of trimmed records", x.Skipped)
	}
	fmt.Fprintf(a.out, "\n  state %s\n", x.State)
	for _, f := range x.Faults {
		fmt.Fprintf(a.out, "  %s record %d: %s\n      do: %s\n", a.paint("fault", red), f.Seq, f.Reason, f.Cure)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (a *app) exportLedger(ctx context.Context, books []*operate.Book, of string, from, to uint64) error {
	out := bufio.NewWriter(a.out)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	for _, k := range books {
		if k.Name != of {
			continue
		}
		if err := k.Export(ctx, from, to, func(l operate.Line) error { return lines.Encode(l) }); err != nil {
			return errors.Join(err, out.Flush())
		}
	}
	return out.Flush()
}

func (a *app) snapshotLedgers(ctx context.Context, _ *operate.Bus, books []*operate.Book) error {
	for _, k := range books {
		m, ok, err := k.Snapshot(ctx)
		switch {
		case err != nil:
			return err
		case !ok:
			fmt.Fprintf(a.out, "%s is empty: nothing to write a snapshot of\n", k.Name)
		default:
			fmt.Fprintf(a.out, "%s: snapshot at record %d, state %x\n", k.Name, m.Seq, m.State)
		}
	}
	return nil
}

// shownEvents is how many lost events adopt prints.
const shownEvents = 20

func (a *app) adoptLedgers(ctx context.Context, b *operate.Bus, books []*operate.Book, yes bool) error {
	lost := false
	for _, k := range books {
		loss, err := k.Lost(ctx)
		if err != nil {
			return err
		}
		if loss == nil {
			fmt.Fprintf(a.out, "%s: nothing is lost\n", k.Name)
			continue
		}
		lost = true
		fmt.Fprintf(a.out, "%s ends at record %d; record %d had been confirmed: %d records are lost\n", k.Name, loss.Tail.Last, loss.Had.Seq, loss.Had.Seq-loss.Tail.Last)
		if k.Name == bus.StreamLedger {
			if err := a.sayLost(ctx, b, loss.Tail.Last); err != nil {
				return err
			}
		}
		if !yes {
			continue
		}
		if _, err := k.Adopt(ctx); err != nil {
			return fmt.Errorf("adopt %s: %w; run it again", k.Name, err)
		}
		fmt.Fprintf(a.out, "%s: adopted what is left\n", k.Name)
	}
	switch {
	case !lost:
		return nil
	case !yes:
		return usagef("nothing was changed: put the newer copy back if there is one, or accept what is left: weft ledger adopt --yes")
	}
	fmt.Fprintln(a.out, "nothing starts until every node has said what it holds; if the fabric is stopped, start it now")
	return nil
}

func (a *app) sayLost(ctx context.Context, b *operate.Bus, after uint64) error {
	events, total, err := b.LostEvents(ctx, after, shownEvents)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, e := range events {
		rows = append(rows, []string{fmt.Sprint(e.Seq), e.Time, e.Type, e.Tenant, orDash(e.Job)})
	}
	a.table([]string{"RECORD", "TIME", "EVENT", "TENANT", "JOB"}, rows, "no events tell what was in them")
	if more := total - uint64(len(events)); more > 0 {
		fmt.Fprintf(a.out, "and %d events more\n", more)
	}
	return nil
}

// counts says what a backup holds.
func (a *app) counts(done string, n *operate.Counts) error {
	if a.json() {
		return a.printJSON(n)
	}
	_, err := fmt.Fprintf(a.out, "%s: %d records of LEDGER, %d of CHECKPOINTS, %d snapshots, %d specs and bundles\n",
		done, n.Records[bus.StreamLedger], n.Records[bus.StreamCheckpoints], n.Snapshots, n.Bundles)
	return err
}
