package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/services/weft/allinone"
)

// RankArg makes the binary behave as the benchmark's rank: it prints the wall clock, in nanoseconds, and exits. It is
// dispatched first thing in main.
const RankArg = "weft-bench-rank"

// MaybeRank prints the time and exits if this process was started as the benchmark's rank.
func MaybeRank() {
	if len(os.Args) == 2 && os.Args[1] == RankArg {
		fmt.Println(time.Now().UnixNano())
		os.Exit(0)
	}
}

// SubmitFunc submits one job whose only rank is the given command, and returns what the rank printed once it ended.
type SubmitFunc func(ctx context.Context, command []string) (output string, err error)

// Latency measures submit → first rank running on an idle fabric: from before the call to the gateway until the rank's
// own first action. The anchor, measured between the runs, is what no such chain can avoid: three synced publishes one
// after the other and one start of the same binary.
func Latency(ctx context.Context, w io.Writer, submit SubmitFunc, runs int, judge bool) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	raw, err := allinone.RawPublisher(ctx, filepath.Join(dir, "bus"))
	if err != nil {
		return err
	}
	defer raw.Close()

	var ours, anchor []time.Duration
	for i := range runs + 2 {
		begin := time.Now()
		out, err := submit(ctx, []string{exe, RankArg})
		if err != nil {
			return err
		}
		started, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		if err != nil {
			return fmt.Errorf("the rank printed %q instead of a time", out)
		}
		a, err := anchorOnce(ctx, raw, exe)
		if err != nil {
			return err
		}
		if i < 2 {
			continue // the first ones pay for cold caches
		}
		ours = append(ours, time.Unix(0, started).Sub(begin))
		anchor = append(anchor, a)
	}
	p50 := quantile(ours, 0.5)
	pass := p50 <= 30*time.Millisecond
	for _, f := range []Figure{
		{Name: "submit_to_running_p50", Ours: ms(p50), Anchor: ms(quantile(anchor, 0.5)), Unit: "ms", Bar: "<= 30 ms", Pass: pass,
			Note: fmt.Sprintf("%d runs; anchor: 3 raw synced publishes + 1 re-exec of the binary", runs)},
		{Name: "submit_to_running_p99", Ours: ms(quantile(ours, 0.99)), Anchor: ms(quantile(anchor, 0.99)), Unit: "ms", Bar: "none", Pass: true},
	} {
		if err := f.Print(w); err != nil {
			return err
		}
	}
	if judge && !pass {
		return errors.New("p50 is above its bar")
	}
	return nil
}

func anchorOnce(ctx context.Context, raw *allinone.Raw, exe string) (time.Duration, error) {
	begin := time.Now()
	payload := make([]byte, 512)
	for range 3 {
		if err := raw.Publish(ctx, payload); err != nil {
			return 0, err
		}
	}
	published := time.Since(begin)
	begin = time.Now()
	out, err := exec.CommandContext(ctx, exe, RankArg).Output()
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, err
	}
	return published + time.Unix(0, ns).Sub(begin), nil
}
