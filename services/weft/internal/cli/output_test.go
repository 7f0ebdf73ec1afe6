package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestErrorsBecomeExitCodesAndNameTheNextCommand(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{usagef("no"), ExitUsage, "no"},
		{errors.New(`unknown flag: --x`), ExitUsage, "--x"},
		{status.Error(codes.InvalidArgument, "spec.gpus: negative"), ExitUsage, "spec.gpus"},
		{status.Error(codes.NotFound, "no job x"), ExitNotFound, "weft ps --all"},
		{status.Error(codes.PermissionDenied, "admin only"), ExitDenied, "admin only"},
		{status.Error(codes.Unauthenticated, "token unknown"), ExitDenied, "token unknown"},
		{status.Error(codes.Unavailable, "connection error: desc = refused"), ExitUnavailable, "weft up"},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), ExitUnavailable, "weft up"},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), ExitUnavailable, "weft up"},
		{status.Error(codes.Unavailable, "the ledger has no leader; try again in some seconds"), ExitUnavailable, "no leader"},
		{fmt.Errorf("submit: %w", context.Canceled), ExitError, "interrupted"},
		{errors.New("disk on fire"), ExitError, "disk on fire"},
	} {
		code, text := explainError(c.err)
		if code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%v: code %d, want %d; text %q, want %q in it", c.err, code, c.code, text, c.text)
		}
	}
}

func chunk(rank, fd uint32, data string) *apiv1.ReadLogsResponse {
	return apiv1.ReadLogsResponse_builder{Attempt: new(uint32(1)), Rank: &rank, Fd: &fd, Data: []byte(data)}.Build()
}

func TestOneRanksOutputPassesUnchanged(t *testing.T) {
	var out, errOut bytes.Buffer
	p := newLogPrinter(&app{out: &out, errOut: &errOut}, "01jd")
	p.chunk(chunk(0, 1, "no newline, \x00 bytes"))
	p.chunk(chunk(0, 2, "to stderr"))
	p.flush()
	if out.String() != "no newline, \x00 bytes" || errOut.String() != "to stderr" {
		t.Errorf("%q, %q", out.String(), errOut.String())
	}
}

func TestSeveralRanksLinesStayWhole(t *testing.T) {
	var out bytes.Buffer
	p := newLogPrinter(&app{out: &out, errOut: &out}, "01jd")
	p.chunk(chunk(1, 1, "b1\n"))
	p.chunk(chunk(0, 1, "a1 half"))
	p.chunk(chunk(1, 1, "b2\nb3"))
	p.chunk(chunk(0, 1, " whole\n"))
	p.flush()
	if want := "b1\n[1] b2\n[0] a1 half whole\n[1] b3\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestPipedTablesArePlain(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, errOut: &out}
	a.table([]string{"A", "B"}, [][]string{{"läng", "running"}, {"x", "y"}}, "nothing")
	if want := "A     B\nläng  running\nx     y\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	a.color = true
	a.table([]string{"A"}, [][]string{{"running"}}, "")
	if !strings.Contains(out.String(), green) {
		t.Errorf("a terminal gets colour: %q", out.String())
	}
}

func TestShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0ms", 5 * time.Millisecond: "5ms", 1500 * time.Millisecond: "1.5s", 61 * time.Second: "1m01s",
		90 * time.Minute: "1h30m", 50 * time.Hour: "2d02h",
	} {
		if got := short(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestWithIDKeepsTheManifest(t *testing.T) {
	out, err := withID("# mine\nkind: Job\nmetadata: {name: a, queue: b}\nspec: {command: [x]}\n", "01abc")
	if err != nil || !strings.Contains(out, "id: 01abc") || !strings.Contains(out, "# mine") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := withID("kind: Job\n", "01abc"); err == nil {
		t.Error("a manifest without metadata")
	}
}

// Whoever only watched a job has to learn that it goes on, and how to come back to it.
func TestWatchersLearnThatTheJobGoesOn(t *testing.T) {
	stopped, stop := context.WithCancel(context.Background())
	stop()
	away := status.Error(codes.Unavailable, "error reading from server: EOF")
	for _, c := range []struct {
		ctx  context.Context
		err  error
		code int
		text string
	}{
		{context.Background(), away, ExitUnavailable, "weft logs -f 01jd"},
		{stopped, status.Error(codes.Canceled, "context canceled"), ExitError, "weft cancel 01jd"},
		{context.Background(), status.Error(codes.NotFound, "no job"), ExitNotFound, "weft ps"},
	} {
		if code, text := explainError(alone(c.ctx, "01jd", c.err)); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%v: code %d, text %q; want %d and %q", c.err, code, text, c.code, c.text)
		}
	}
	if _, text := explainError(resumeEvents(away, 7)); !strings.Contains(text, "weft events --after 7") {
		t.Errorf("who followed events to 7 reads %q", text)
	}
	if err := resumeEvents(nil, 7); err != nil {
		t.Errorf("who read events to their end reads %q", err)
	}
	if _, text := explainError(resumeEvents(away, 0)); strings.Contains(text, "--after") {
		t.Errorf("who saw no event reads %q", text)
	}
}

func TestRunNamesNoLinesOfAManifestThatNobodyWrote(t *testing.T) {
	err := withoutLines(status.Error(codes.InvalidArgument, "spec.workers (line 13): 0 is out of range; write a whole number"))
	if code, text := explainError(err); code != ExitUsage || text != "spec.workers: 0 is out of range; write a whole number" {
		t.Errorf("code %d, %q", code, text)
	}
	away := status.Error(codes.Unavailable, "no leader (line 1)")
	if err := withoutLines(away); !errors.Is(err, away) {
		t.Errorf("%v became %v", away, err)
	}
}

func TestOutputLeftOutIsFoundOnTheNode(t *testing.T) {
	var out, errOut bytes.Buffer
	p := newLogPrinter(&app{out: &out, errOut: &errOut}, "01jd")
	c := chunk(3, 2, "the end\n")
	c.SetDropped(2048)
	p.chunk(c)
	if !strings.Contains(errOut.String(), "2.0KiB left out") || !strings.Contains(errOut.String(), "logs/01jd/1/rank-3.err") {
		t.Errorf("%q", errOut.String())
	}
}

func TestEmptyListsAreThereForPrograms(t *testing.T) {
	var out bytes.Buffer
	if err := (&app{out: &out}).printProto(&apiv1.ListJobsResponse{}); err != nil || !strings.Contains(out.String(), `"jobs": []`) {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestLacksAreSaidInTheUnitsOfManifests(t *testing.T) {
	for resource, want := range map[string]string{
		"gpu-milli": "GPUs: needs 2, free 1.5", "memory-bytes": "memory: needs 2.0KiB, free 1.5KiB", "ports": "ports: needs 2000, free 1500",
	} {
		n := int64(1000)
		if resource == "memory-bytes" {
			n = 1024
		}
		d := weftv1.Deficit_builder{Resource: &resource, Needed: new(2 * n), Available: new(3 * n / 2)}.Build()
		if got := lack(d); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
