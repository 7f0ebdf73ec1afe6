package shell

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/jobspec"
	wrun "github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/launch"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// steps steps a shell until it has nothing to do at now.
func steps(t *testing.T, s wrun.Shell, now time.Time) time.Time {
	t.Helper()
	for range 100 {
		did, next, err := s.Step(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		if !did {
			return next
		}
	}
	t.Fatal("never done")
	return time.Time{}
}

func read[M proto.Message](t *testing.T, b *membus.Bus, stream string, empty func() M) []M {
	t.Helper()
	in, err := b.Inbox(stream, "").Next(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	var out []M
	for _, i := range in {
		m := empty()
		if err := proto.Unmarshal(i.Data, m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func TestReportsKeepTheirOrderAndNumbersOverOutagesAndRestarts(t *testing.T) {
	b, dir := membus.New(), t.TempDir()
	open := func() *Reports {
		r, err := NewReports(b.Outbox(bus.StreamReports), dir, "n1", "boot")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	say := func(r *Reports, n uint32) {
		if err := r.say(t0, func(m *weftv1.Report) {
			m.SetRanksStarted(weftv1.RanksStarted_builder{Job: new("j"), Attempt: &n}.Build())
		}); err != nil {
			t.Fatal(err)
		}
	}
	r := open()
	b.SetDown(true)
	say(r, 1)
	say(r, 2)
	if _, _, err := r.Step(t.Context(), t0); err == nil {
		t.Fatal("published on a bus that is down")
	}
	b.SetDown(false)
	steps(t, r, t0)
	r = open()
	say(r, 3)
	steps(t, r, t0)
	last := uint64(0)
	got := read(t, b, bus.StreamReports, func() *weftv1.Report { return &weftv1.Report{} })
	for i, m := range got {
		if m.GetRanksStarted().GetAttempt() != uint32(i+1) || m.GetSeq() <= last || m.GetNode() != "n1" || m.GetBootId() != "boot" {
			t.Errorf("report %d: %v", i, m)
		}
		last = m.GetSeq()
	}
	if len(got) != 3 {
		t.Errorf("%d reports", len(got))
	}
}

func TestContactCountsFromWhenAnAnsweredBeatWasSent(t *testing.T) {
	b, dir := membus.New(), t.TempDir()
	now := t0
	b.SetClock(func() time.Time { return now })
	c := NewContact(dir, "boot")
	first, hellos := c.Last(), 0
	beat, err := NewBeat(b.Caller(), time.Second, "n1", "boot", c, func() { hellos++ })
	if err != nil {
		t.Fatal(err)
	}
	next := steps(t, beat, now) // nobody there
	if c.Last() != first || !next.Equal(now.Add(time.Second)) {
		t.Fatalf("contact without an answer; next beat at %v", next)
	}
	s, err := b.Caller().Serve("weft.beat.*", "")
	if err != nil {
		t.Fatal(err)
	}
	now = next
	before := proc.SinceBoot()
	steps(t, beat, now)
	after := proc.SinceBoot()
	if c.Last() != first {
		t.Fatal("contact before the answer")
	}
	q := s.Next(1)
	a, _ := proto.Marshal(weftv1.BeatAnswer_builder{Unknown: new(true)}.Build())
	q[0].Respond(a, nil)
	steps(t, beat, now)
	if l := c.Last(); l < before || l > after || hellos != 1 {
		t.Fatalf("contact at %d, the beat was sent in %d..%d; %d hellos", l, before, after, hellos)
	}
	if f := shim.ReadContact(c.File()); f != c.Last() {
		t.Errorf("shims read %d, not %d", f, c.Last())
	}
	if again := NewContact(dir, "boot"); again.Last() != c.Last() {
		t.Errorf("the next agent counts from %d, not %d", again.Last(), c.Last())
	}
	if other := NewContact(dir, "boot2"); other.Last() == c.Last() {
		t.Error("another boot's contact counts")
	}
	if _, err := os.Stat(c.File()); !os.IsNotExist(err) {
		t.Error("another boot's contact was kept")
	}
}

// An agent starts before there is a leader, and any one beat may be lost: that is no news.
func TestOnlyContactThatWasReallyMissedIsNews(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	b, now := membus.New(), t0
	b.SetClock(func() time.Time { return now })
	beat, err := NewBeat(b.Caller(), 2*time.Second, "n1", "boot", NewContact(t.TempDir(), "boot"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	said := func() (lost, back int) {
		return strings.Count(log.String(), "no contact"), strings.Count(log.String(), "contact again")
	}
	unanswered := func(n int) {
		for range n {
			now = steps(t, beat, now)
		}
	}
	answered := func() {
		s, err := b.Caller().Serve("weft.beat.*", "")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		steps(t, beat, now)
		for _, q := range s.Next(1) {
			q.Respond(nil, nil)
		}
		now = steps(t, beat, now)
	}
	unanswered(4)
	answered()
	unanswered(4)
	if lost, back := said(); lost != 0 || back != 0 {
		t.Errorf("%d times lost and %d times back after four beats:\n%s", lost, back, &log)
	}
	unanswered(20)
	answered()
	unanswered(4)
	answered()
	if lost, back := said(); lost != 1 || back != 1 {
		t.Errorf("%d times lost and %d times back after one long silence:\n%s", lost, back, &log)
	}
}

func TestLogsCopyWholeLinesAndGoOnAfterARestart(t *testing.T) {
	b, dir := membus.New(), t.TempDir()
	id := reconcile.ID{Job: "j", Attempt: 2}
	out := filepath.Join(dir, "rank-0.out")
	ranks := []shim.Rank{{Rank: 0, Stdout: out, Stderr: filepath.Join(dir, "rank-0.err")}}
	write := func(s string) {
		f, err := os.OpenFile(out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	l := NewLogs(b.Outbox(bus.StreamLogs), "n1")
	l.add(id, ranks)
	write("one\ntw")
	steps(t, l, t0)
	write("o\n")
	l = NewLogs(b.Outbox(bus.StreamLogs), "n1") // the next agent
	l.add(id, ranks)
	steps(t, l, t0)
	write("end")
	l.finish(id)
	steps(t, l, t0)
	if !l.isFlushed(id) {
		t.Error("not flushed")
	}
	var text []string
	off := int64(0)
	in, err := b.Inbox(bus.StreamLogs, "").Next(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range in {
		if m.Header[bus.HeaderJob] != id.Job {
			t.Errorf("a chunk of job %q says that it is of %q", id.Job, m.Header[bus.HeaderJob])
		}
	}
	for _, c := range read(t, b, bus.StreamLogs, func() *weftv1.LogChunk { return &weftv1.LogChunk{} }) {
		if c.GetOffset() != off || c.GetFd() != 1 || c.GetAttempt() != 2 || c.GetDropped() != 0 {
			t.Errorf("chunk %v", c)
		}
		off += int64(len(c.GetData()))
		text = append(text, string(c.GetData()))
	}
	if got := strings.Join(text, "|"); got != "one\n|two\n|end" {
		t.Errorf("got %q", got)
	}
}

func TestTooMuchOutputIsLeftOutAndCounted(t *testing.T) {
	b, dir := membus.New(), t.TempDir()
	b.Limit(bus.StreamLogs, 1<<40)
	id := reconcile.ID{Job: "j", Attempt: 1}
	out := filepath.Join(dir, "rank-0.out")
	line := bytes.Repeat([]byte("x"), 99)
	size := int64(0)
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	for size < 3*logBehind {
		n, err := f.Write(append(line, '\n'))
		if err != nil {
			t.Fatal(err)
		}
		size += int64(n)
	}
	f.Close()
	l := NewLogs(b.Outbox(bus.StreamLogs), "n1")
	l.add(id, []shim.Rank{{Rank: 0, Stdout: out, Stderr: out + ".none"}})
	steps(t, l, t0)
	var sent, dropped int64
	for _, c := range read(t, b, bus.StreamLogs, func() *weftv1.LogChunk { return &weftv1.LogChunk{} }) {
		sent += int64(len(c.GetData()))
		dropped += c.GetDropped()
		if c.GetOffset()%int64(len(line)+1) != 0 && c.GetDropped() > 0 {
			t.Errorf("after what was left out comes a part of a line, at %d", c.GetOffset())
		}
	}
	if sent < logNewest-logChunk {
		t.Errorf("of %d only %d were sent", size, sent)
	}
	if sent+dropped != size || dropped == 0 || sent == 0 || sent > logBurst {
		t.Errorf("sent %d and dropped %d of %d", sent, dropped, size)
	}
}

func TestSavesAreReportedOnceAndAgainIfTheBusWasDown(t *testing.T) {
	b := membus.New()
	parts := map[string]bool{}
	s := NewSaves(b.Outbox(bus.StreamSaves), "n1", "boot", func(_ context.Context, jobs []SaveJob, _ time.Time) (out []*weftv1.PartRef) {
		for _, j := range jobs {
			if !parts[j.Job] {
				parts[j.Job] = true
				out = append(out, weftv1.PartRef_builder{Job: &j.Job}.Build())
			}
		}
		return out
	})
	id := reconcile.ID{Job: "j", Attempt: 1}
	s.add(id, weftv1.AssignedAttempt_builder{Job: new("j"), Tenant: new("acme")}.Build())
	b.SetDown(true)
	if _, _, err := s.Step(t.Context(), t0); err == nil {
		t.Fatal("published on a bus that is down")
	}
	s.finish(id)
	if s.isFlushed(id) {
		t.Fatal("flushed while unsaid")
	}
	b.SetDown(false)
	steps(t, s, t0)
	if !s.isFlushed(id) {
		t.Error("not flushed")
	}
	if got := read(t, b, bus.StreamSaves, func() *weftv1.SaveReport { return &weftv1.SaveReport{} }); len(got) != 1 || got[0].GetPart().GetJob() != "j" || got[0].GetNode() != "n1" {
		t.Errorf("got %v", got)
	}
}

// preparer is one on a bus in memory, with a job's spec stored.
func preparer(t *testing.T) (*Preparer, *membus.Bus, *weftv1.AssignedAttempt, string) {
	t.Helper()
	b, dir := membus.New(), t.TempDir()
	spec := weftv1.JobSpec_builder{Groups: []*weftv1.Group{weftv1.Group_builder{Name: new("worker"), Command: []string{"true"}}.Build()}}.Build()
	data, err := jobspec.SpecBytes(spec)
	if err != nil {
		t.Fatal(err)
	}
	store := b.Objects(bus.BucketBundles)
	if err := store.Put(t.Context(), jobspec.SpecKey(spec), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	p := NewPreparer(PreparerConfig{
		Dir: dir, BootID: "boot", Node: launch.Node{Name: "n1", SavesDir: filepath.Join(dir, "saves"), OutputDir: filepath.Join(dir, "output")},
		Verify: func(context.Context, string) error { return nil },
	}, store, b.Caller(), cgroup.Open(cgroup.None, ""))
	a := weftv1.AssignedAttempt_builder{
		Job: new("j"), Attempt: new(uint32(1)), Tenant: new("acme"), Spec: new(jobspec.SpecKey(spec)), Size: new(uint32(1)),
		Placements: []*weftv1.Placement{weftv1.Placement_builder{Count: new(uint32(1))}.Build()},
	}.Build()
	if err := os.MkdirAll(filepath.Join(dir, "runs"), 0o700); err != nil {
		t.Fatal(err)
	}
	return p, b, a, filepath.Join(dir, "runs", "j-1")
}

func TestAnAttemptWaitsForTheCheckpointService(t *testing.T) {
	p, b, a, dir := preparer(t)
	a.SetResumeFrom(weftv1.SaveRef_builder{Save: new("a0-s000000000001-full")}.Build())
	id := reconcile.ID{Job: "j", Attempt: 1}
	p.begin(id, dir, a)
	w := p.Workers(1)[0]
	now := t0
	for range 3 { // nobody answers
		next := steps(t, w, now)
		if got := p.take(); len(got) != 0 || !next.Equal(now.Add(again)) {
			t.Fatalf("ready %v, again at %v", got, next)
		}
		now = next
	}
	s, err := b.Caller().Serve("weft.rpc.checkpoint.locate.*", "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() {
		<-s.Wake()
		var q weftv1.LocateRequest
		r := s.Next(1)[0]
		_ = proto.Unmarshal(r.Data, &q)
		data, _ := proto.Marshal(weftv1.LocateReply_builder{Error: new("quarantined: " + q.GetJob() + " " + q.GetSave())}.Build())
		r.Respond(data, nil)
	}()
	steps(t, w, now)
	got := p.take()
	if len(got) != 1 || got[0].failure.Kind != weftv1.CauseKind_CAUSE_KIND_RESTORE_FAILED || got[0].failure.Save != "a0-s000000000001-full" ||
		got[0].failure.Message != "quarantined: j a0-s000000000001-full" {
		t.Fatalf("got %+v", got)
	}
}

func TestACancelledPreparationLeavesNothing(t *testing.T) {
	p, b, a, dir := preparer(t)
	id := reconcile.ID{Job: "j", Attempt: 1}
	b.SetDown(true)
	p.begin(id, dir, a)
	w := p.Workers(1)[0]
	next := steps(t, w, t0)
	p.cancel(id)
	b.SetDown(false)
	steps(t, w, next)
	if got := p.take(); len(got) != 0 {
		t.Fatalf("ready: %+v", got)
	}
	if es, _ := os.ReadDir(filepath.Dir(dir)); len(es) != 0 {
		t.Errorf("left: %v", es)
	}
	p.begin(id, dir, a) // the same again
	steps(t, w, next)
	if got := p.take(); len(got) != 1 || got[0].failure != nil || len(got[0].launch.Ranks) != 1 {
		t.Errorf("begun again: %+v", got)
	}
}

func TestJobsThatWouldLeaveTheirDirectoryAreRefused(t *testing.T) {
	for _, bad := range []string{"../x", "a/b", "", "A"} {
		p, _, a, dir := preparer(t)
		a.SetJob(bad)
		p.begin(reconcile.ID{Job: "j", Attempt: 1}, dir, a)
		steps(t, p.Workers(1)[0], t0)
		if got := p.take(); len(got) != 1 || got[0].failure == nil {
			t.Errorf("job %q: %+v", bad, got)
		}
	}
}

func TestJanitorKeepsWhatIsNewOrFits(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"new/a": time.Minute, "old/b": 30 * time.Hour, "mid/c": 2 * time.Hour, "mid/d": 3 * time.Hour} {
		f := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(f, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := keepNewest(dir, 24*time.Hour, 250, now); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*/*"))
	for i := range left {
		left[i], _ = filepath.Rel(dir, left[i])
	}
	if got := fmt.Sprint(left); got != "[mid/c new/a]" {
		t.Errorf("left %s", got)
	}
}

func TestLastWords(t *testing.T) {
	f := filepath.Join(t.TempDir(), "err")
	for text, want := range map[string]string{
		"": "", "one\n": "one", "a\nValueError: b\n\n \n": "ValueError: b", strings.Repeat("é", 400): strings.Repeat("é", 150), "\xff\n": "?",
	} {
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(f); got != want {
			t.Errorf("%.20q: got %q", text, got)
		}
	}
	if lastWords(f+"-none") != "" {
		t.Error("a file that is not there speaks")
	}
}

func TestRunNames(t *testing.T) {
	for _, id := range []reconcile.ID{{Job: "01abc", Attempt: 1}, {Job: "a-b-2", Attempt: 17}} {
		if got, ok := parseRunName(runName(id)); !ok || got != id {
			t.Errorf("%v became %v", id, got)
		}
	}
	for _, bad := range []string{"", "x", "-1", "a-", "a-b", "a-99999999999"} {
		if _, ok := parseRunName(bad); ok {
			t.Errorf("%q is a run", bad)
		}
	}
}

// Two agents, one after the other, never give a directory that is being made or removed the same name: what the first one
// left is removed while the second fills its own.
func TestUnfinishedNamesAreNeverReused(t *testing.T) {
	runs := t.TempDir()
	id := reconcile.ID{Job: "a", Attempt: 1}
	names := map[string]bool{}
	for range 20 {
		p := NewPreparer(PreparerConfig{}, nil, nil, nil)
		p.begin(id, filepath.Join(runs, runName(id)), &weftv1.AssignedAttempt{})
		names[p.under[id].made] = true

		dir := filepath.Join(runs, runName(id))
		if err := os.MkdirAll(filepath.Join(dir, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
		NewJanitor(runs).discard(dir)
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Fatalf("the name is not free: %v", err)
		}
	}
	if len(names) != 20 {
		t.Errorf("%d names for 20 agents", len(names))
	}
}
