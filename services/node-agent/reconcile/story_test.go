package reconcile

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// Stories are told in testdata. Each command changes the world and prints what the agent does about it:
//
//	assign seq=N [created=N]    the scheduler's desired set, one attempt a line: JOB/ATTEMPT [stop=WHEN]
//	is JOB/ATTEMPT WHAT...      its processes: starting, running, bad=N, ended, empty, completed, failed, flushed, grace=D
//	time WHEN                   time passes
//	contact fence=WHEN          contact was had, so the fence is then (0 = never)
//	restart                     a new agent, which finds the same processes and files
//	have                        what is there
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, path := range files {
		n := newNode()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "assign":
				var o Order
				o.CreatedNS = 1
				for _, a := range d.CmdArgs {
					v, err := strconv.ParseUint(a.Vals[0], 10, 63)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					if a.Key == "seq" {
						o.LedgerSeq = v
					} else {
						o.CreatedNS = int64(v)
					}
				}
				var want []Want
				for line := range strings.Lines(d.Input) {
					f := strings.Fields(line)
					w := Want{ID: parseID(t, d, f[0])}
					for _, x := range f[1:] {
						w.Stop, w.KillAtNS = true, duration(t, d, strings.TrimPrefix(x, "stop="))
					}
					want = append(want, w)
				}
				if !n.assign(o, want) {
					return "refused: stale\n"
				}
			case "is":
				id := parseID(t, d, d.CmdArgs[0].Key)
				a := n.have[id]
				if a == nil {
					d.Fatalf(t, "no %v", id)
				}
				for _, x := range d.CmdArgs[1:] {
					switch x.Key {
					case "starting":
						a.Phase = Starting
						n.launched[id]++
					case "running":
						a.Phase, a.Started = Running, true
					case "ended":
						a.Phase, a.EndedNS = Ended, n.now
					case "empty":
						a.Phase = Empty
					case "completed":
						a.Completed = true
					case "failed":
						a.Failed = true
					case "flushed":
						a.Flushed = true
					case "bad":
						a.Bad, _ = strconv.Atoi(x.Vals[0])
					case "grace":
						a.GraceNS = duration(t, d, x.Vals[0])
					case "hang-after":
						a.HangAfterNS = duration(t, d, x.Vals[0])
					case "beat":
						a.BeatNS = n.now
					default:
						d.Fatalf(t, "what is %s?", x.Key)
					}
				}
			case "time":
				n.now = duration(t, d, d.CmdArgs[0].Key)
			case "contact":
				n.fence = duration(t, d, d.CmdArgs[0].Vals[0])
			case "restart":
				n.restart()
			case "have":
				return n.describe()
			default:
				d.Fatalf(t, "what is %s?", d.Cmd)
			}
			did, next := n.settle()
			out := describe(did)
			if next != 0 {
				out += fmt.Sprintf("wait until %v\n", time.Duration(next))
			}
			return out
		})
	}
}

func parseID(t *testing.T, d *datadriven.TestData, s string) ID {
	job, attempt, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(attempt, 10, 32)
	if err != nil {
		d.Fatalf(t, "%s: %v", s, err)
	}
	return ID{job, uint32(n)}
}

func duration(t *testing.T, d *datadriven.TestData, s string) int64 {
	if s == "0" {
		return 0
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return int64(v)
}
