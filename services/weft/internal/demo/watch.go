package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

type saveRef = weftv1.SaveRef

// event is one WEFT_EVENT line of the training script.
type event struct {
	Event           string  `json:"event"`
	Rank            int     `json:"rank"`
	Attempt         int     `json:"attempt"`
	Pid             int     `json:"pid"`
	Step            uint64  `json:"step"`
	Steps           uint64  `json:"steps"`
	Loss            float64 `json:"loss"`
	Save            string  `json:"save"`
	SaveStep        uint64  `json:"save_step"`
	NextStep        uint64  `json:"next_step"`
	StoredLoss      float64 `json:"stored_loss"`
	Optimizer       string  `json:"optimizer"`
	StoredOptimizer string  `json:"stored_optimizer"`
	Accuracy        float64 `json:"accuracy"`
}

// half is what is known of the first attempt when the fault comes.
type half struct {
	step, total uint64
	pids        map[int]int // by rank
}

// watcher reads the job's output as it comes, over all attempts.
type watcher struct {
	d      *demo
	events chan *event
	err    error // how the stream ended; read after events is closed
	pids   map[int]int
	other  []string // last lines that are not events, to explain a failure
}

func (d *demo) watch(ctx context.Context, id string) *watcher {
	w := &watcher{d: d, events: make(chan *event), pids: map[int]int{}}
	if d.pids == nil {
		d.pids = map[int]bool{}
	}
	r, pw := io.Pipe()
	go func() { pw.CloseWithError(d.copyLogs(ctx, id, pw)) }()
	go func() {
		defer close(w.events)
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			text, ok := strings.CutPrefix(sc.Text(), "WEFT_EVENT ")
			if !ok {
				w.other = append(w.other[max(0, len(w.other)-20):], sc.Text())
				continue
			}
			var ev event
			if err := json.Unmarshal([]byte(text), &ev); err != nil {
				w.err = fmt.Errorf("the script printed an event that is not JSON: %w", err)
				return
			}
			select {
			case w.events <- &ev:
			case <-ctx.Done():
				return
			}
		}
		w.err = sc.Err()
	}()
	return w
}

// copyLogs writes whole lines of all ranks, in the order in which they arrive.
func (d *demo) copyLogs(ctx context.Context, id string, out io.Writer) error {
	st, err := d.jobs.ReadLogs(ctx, apiv1.ReadLogsRequest_builder{Job: &id, Follow: proto.Bool(true)}.Build())
	if err != nil {
		return err
	}
	type stream struct{ attempt, rank, fd uint32 }
	partial := map[stream][]byte{}
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		k := stream{m.GetAttempt(), m.GetRank(), m.GetFd()}
		buf := append(partial[k], m.GetData()...)
		if i := strings.LastIndexByte(string(buf), '\n'); i >= 0 {
			if _, err := out.Write(buf[:i+1]); err != nil {
				return err
			}
			buf = append([]byte(nil), buf[i+1:]...)
		}
		partial[k] = buf
	}
}

// next returns the next event; every process that it names is remembered.
func (w *watcher) next(ctx context.Context) (*event, error) {
	select {
	case ev, ok := <-w.events:
		if !ok {
			return nil, fmt.Errorf("the job's output ended too early (%w); its last lines:\n  %s", w.err, strings.Join(w.other, "\n  "))
		}
		if ev.Pid > 0 {
			w.d.pids[ev.Pid] = true
			if ev.Attempt == 1 {
				w.pids[ev.Rank] = ev.Pid
			}
		}
		return ev, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the demo took longer than %v", limit)
	}
}

// untilHalf returns once the first attempt is half-way and all its ranks have said who they are.
func (w *watcher) untilHalf(ctx context.Context) (*half, error) {
	for {
		ev, err := w.next(ctx)
		if err != nil {
			return nil, err
		}
		if ev.Event != "step" {
			continue
		}
		w.progress(ev)
		if ev.Step >= ev.Steps/2 && len(w.pids) == 4 {
			return &half{ev.Step, ev.Steps, w.pids}, nil
		}
	}
}

// untilRestored returns what rank 0 of the second attempt said of its restore.
func (w *watcher) untilRestored(ctx context.Context) (*event, error) {
	for {
		ev, err := w.next(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case ev.Event == "restored" && ev.Rank == 0:
			return ev, nil
		case ev.Event == "step" && ev.Attempt > 1:
			return nil, fmt.Errorf("attempt %d trains (step %d) without having restored a save", ev.Attempt, ev.Step)
		case ev.Event == "done":
			return nil, errors.New("the job ended as if nothing had happened: the kill came too late")
		}
	}
}

func (w *watcher) untilDone(ctx context.Context) (*event, error) {
	for {
		ev, err := w.next(ctx)
		if err != nil {
			return nil, err
		}
		switch ev.Event {
		case "step":
			w.progress(ev)
		case "done":
			return ev, nil
		}
	}
}

// progress shows where the training is: in place on a terminal, every fifth of the way otherwise.
func (w *watcher) progress(ev *event) {
	out := w.d.Out
	if f, ok := out.(*os.File); ok && w.d.Color {
		const width = 30
		full := int(width * (ev.Step + 1) / ev.Steps)
		fmt.Fprintf(f, "\r\x1b[K\x1b[1;36mtrain    \x1b[0m [%s%s] step %d/%d loss %.3f attempt %d", strings.Repeat("█", full), strings.Repeat("·", width-full),
			ev.Step+1, ev.Steps, ev.Loss, ev.Attempt)
		if ev.Step+1 == ev.Steps || ev.Attempt == 1 && ev.Step >= ev.Steps/2 {
			fmt.Fprintln(f)
		}
		return
	}
	if (ev.Step+1)%(ev.Steps/5) == 0 {
		w.d.say("train", "step %d/%d loss %.3f attempt %d", ev.Step+1, ev.Steps, ev.Loss, ev.Attempt)
	}
}
