package e2e

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/weft-fabric/weft/libs/killpoint"
)

var (
	chaosKills = flag.Int("chaos.kills", len(killpoint.All), "kills of TestChaosOne, spread over all windows")
	chaosSeed  = flag.Uint64("chaos.seed", 0, "seed of TestChaosOne and TestChaosLeader; 0 = a new one")
)

// atOnce is how many jobs TestChaosOne keeps alive; two fit at a time.
const atOnce = 3

// The control plane dies again and again, at the worst instants, while gangs come and go. Nothing may be lost, doubled or
// restarted. The judges stand outside: the ranks' own locks and counts, and the feed of events.
func TestChaosOne(t *testing.T) {
	f := idleFabric(t)
	c, rnd := newChaos(f)
	var submitting sync.WaitGroup
	submitting.Go(c.submitJobs)

	hits := map[string]int{}
	for i := range *chaosKills {
		point := killpoint.All[i%len(killpoint.All)]
		arrivals := 3
		if point == killpoint.Announce {
			arrivals = 30
		}
		at := fmt.Sprintf("%s:%d", point, 1+rnd.IntN(arrivals))
		f.start("WEFT_KILL=" + at)
		select {
		case <-f.done:
			hits[point]++
		case <-time.After(patience):
			t.Errorf("%s was not reached within %v", at, patience)
			f.crash()
		}
	}
	f.up()
	close(c.stop)
	submitting.Wait()
	for id := range c.acked {
		f.phase(id, "succeeded", "failed", "cancelled")
	}
	for _, p := range killpoint.All {
		t.Logf("killed at %s: %d times", p, hits[p])
	}
	t.Logf("%d jobs", len(c.acked))
	c.verdict(t)
}

type chaos struct {
	f     *fabric
	judge string
	rnd   *rand.Rand
	stop  chan struct{}
	acked map[string]bool // by submitJobs until it ends
}

// newChaos also returns what the faults are drawn from; both go by the seed.
func newChaos(f *fabric) (*chaos, *rand.Rand) {
	f.t.Helper()
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	f.t.Logf("seed %d", seed)
	return &chaos{
		f: f, judge: f.t.TempDir(), rnd: rand.New(rand.NewPCG(seed, 1)), acked: map[string]bool{}, stop: make(chan struct{}),
	}, rand.New(rand.NewPCG(seed, 0))
}

// submitJobs keeps a few jobs alive. A submit without an answer is repeated, with the same id, until there is one.
func (c *chaos) submitJobs() {
	var mine []string
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	open, steps := "", 0
	for {
		select {
		case <-c.stop:
			if open == "" {
				return
			}
		case <-tick.C:
		}
		mine = slices.DeleteFunc(mine, c.ended)
		if open == "" {
			if len(mine) >= atOnce {
				continue
			}
			open, steps = strings.ToLower(ulid.Make().String()), 30+c.rnd.IntN(50) // of 0.1 s
		}
		if c.submit(open, steps) {
			c.acked[open] = true
			mine = append(mine, open)
			open = ""
		}
	}
}

// quiet runs a command that may fail because the fabric is away.
func (c *chaos) quiet(stdin string, args ...string) ([]byte, error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "WEFT_CONTEXT="+c.f.contextFile())
	cmd.Stdin = strings.NewReader(stdin)
	return cmd.Output()
}

func (c *chaos) submit(id string, steps int) bool {
	python, err := filepath.Abs("testdata/probe.py")
	if err != nil {
		panic(err)
	}
	m, err := json.Marshal(map[string]any{
		"apiVersion": "weft/v1", "kind": "Job",
		"metadata": map[string]any{"name": "probe-" + id[20:], "queue": "demo", "id": id},
		"spec": map[string]any{
			"workers": 4, "gpus": 2, "command": []string{"python3", python, fmt.Sprint(steps)},
			"env": map[string]string{"JUDGE": c.judge}, "restart": map[string]any{"max": 3, "backoff": "10ms"},
			"checkpoint": map[string]any{"grace": "5s"},
		},
	})
	if err != nil {
		panic(err)
	}
	_, err = c.quiet(string(m), "submit", "-")
	return err == nil
}

func (c *chaos) ended(id string) bool {
	out, err := c.quiet("", "get", id, "-o", "json")
	if err != nil {
		return false
	}
	var j job
	return json.Unmarshal(out, &j) == nil && slices.Contains([]string{"succeeded", "failed", "cancelled"}, j.Status.Phase)
}

// verdict says what went wrong, if anything did.
func (c *chaos) verdict(t *testing.T) {
	if b, err := os.ReadFile(filepath.Join(c.judge, "wrong")); err == nil {
		t.Errorf("the ranks saw what must not be:\n%s", b)
	}
	b, err := os.ReadFile(filepath.Join(c.judge, "starts"))
	if err != nil {
		t.Fatal(err)
	}
	starts := map[string]int{} // job, attempt and rank → how often it began
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		starts[strings.Join(w[:3], " ")]++
	}
	for rank, n := range starts {
		if n != 1 {
			t.Errorf("job, attempt and rank %s began %d times", rank, n)
		}
	}
	type ev struct {
		ID, Type, Subject string
		Data              json.RawMessage
	}
	facts := map[string]map[string]int{} // job → type → how often
	seen := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader([]byte(c.f.must("", "events", "-o", "json"))))
	for dec.More() {
		var e ev
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if seen[e.ID] {
			t.Errorf("event %s came twice", e.ID)
		}
		seen[e.ID] = true
		if facts[e.Subject] == nil {
			facts[e.Subject] = map[string]int{}
		}
		facts[e.Subject][strings.TrimPrefix(e.Type, "weft.")]++
	}
	for id := range c.acked {
		for fact, want := range map[string]int{"job-submitted": 1, "job-placed": 1, "attempt-running": 1, "attempt-ended": 1, "job-succeeded": 1, "job-requeued": 0} {
			if got := facts[id][fact]; got != want {
				t.Errorf("job %s: %d × %s, want %d; of it: %v", id, got, fact, want, facts[id])
			}
		}
		for rank := range 4 {
			if starts[fmt.Sprintf("%s 1 %d", id, rank)] != 1 {
				t.Errorf("job %s: rank %d never began", id, rank)
			}
		}
	}
	for id := range facts {
		if facts[id]["job-submitted"] > 0 && !c.acked[id] {
			t.Errorf("job %s is there and nobody has it: %v", id, slices.Collect(maps.Keys(facts[id])))
		}
	}
}
