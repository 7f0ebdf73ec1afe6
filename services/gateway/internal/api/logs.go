package api

import (
	"bytes"
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// ReadLogs streams what LOGS holds of a job's output, and then what comes until the job ends.
func (s *Server) ReadLogs(req *apiv1.ReadLogsRequest, st grpc.ServerStreamingServer[apiv1.ReadLogsResponse]) error {
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	job, err := s.lookup(auth.From(ctx), req.GetJob())
	if err != nil {
		return err
	}
	if err := checkLogs(job, req); err != nil {
		return err
	}
	last, err := s.Logs.Last(ctx)
	if err != nil {
		return unavailable("read the logs", err)
	}
	l := &logReader{req: req, job: job.ID, attempt: req.GetAttempt(), send: st.Send}
	if l.attempt == 0 {
		l.attempt = max(1, job.Attempts)
	}
	past := reading{inbox: s.Logs.Open(ctx), until: last, ends: true, each: l.take}
	if req.GetTail() > 0 {
		l.tails = map[tailKey]*lastLines{}
	}
	if err := past.run(ctx, s.quit); err != nil {
		return err
	}
	if err := l.flush(); err != nil || !req.GetFollow() {
		return err
	}
	// The same inbox goes on; the end is where LOGS stands once the job has ended: agents send the last of a rank's
	// output before they report the attempt released.
	live := past
	live.from, live.ends = max(past.from, last), false
	live.watch = func() (<-chan struct{}, error) {
		next := s.track.next()
		st, _ := s.cell()
		if j := st.Job(job.ID); j != nil && !s.logsOver(j, req.GetAttempt()) {
			return next, nil
		}
		end, err := s.Logs.Last(ctx)
		if err != nil {
			return nil, unavailable("read the logs", err)
		}
		live.until, live.ends = end, true
		return nil, nil
	}
	return live.run(ctx, s.quit)
}

// checkLogs refuses what cannot have printed anything; an attempt to come can be followed.
func checkLogs(job *cell.Job, req *apiv1.ReadLogsRequest) error {
	if n := req.GetAttempt(); n > max(1, job.Attempts) && !req.GetFollow() {
		return status.Errorf(codes.NotFound, "attempt %d has not been; the newest of job %s is %d", n, job.ID, job.Attempts)
	}
	ranks := uint32(0)
	for _, g := range job.Spec.GetGroups() {
		ranks += g.GetMax()
	}
	for _, r := range req.GetRanks() {
		if r >= ranks {
			return status.Errorf(codes.InvalidArgument, "rank %d: job %s has ranks 0 to %d", r, job.ID, ranks-1)
		}
	}
	return nil
}

// logsOver says whether nothing more can come: of the job, or of the one attempt that was asked for.
func (s *Server) logsOver(j *cell.Job, attempt uint32) bool {
	if attempt != 0 && (j.Attempts > attempt || j.Attempts == attempt && j.Attempt == nil) {
		return true
	}
	return j.Phase.Ended()
}

type tailKey struct{ attempt, rank, fd uint32 }

// logReader picks a job's chunks out of the stream.
type logReader struct {
	req     *apiv1.ReadLogsRequest
	job     string
	attempt uint32 // the first one wanted, and with a number in the request the only one
	send    func(*apiv1.ReadLogsResponse) error

	tails map[tailKey]*lastLines // while the past is read and only its end is wanted
	order []tailKey
}

func (l *logReader) take(in bus.Input) error {
	if !mayConcern(in, l.job) {
		return nil
	}
	var c weftv1.LogChunk
	if proto.Unmarshal(in.Data, &c) != nil || c.GetJob() != l.job {
		return nil // an agent's nonsense stops nobody's logs
	}
	if c.GetAttempt() < l.attempt || l.req.GetAttempt() != 0 && c.GetAttempt() != l.attempt {
		return nil
	}
	if ranks := l.req.GetRanks(); len(ranks) > 0 && !slices.Contains(ranks, c.GetRank()) {
		return nil
	}
	if l.tails == nil {
		return l.send(chunk(&c, c.GetData()))
	}
	k := tailKey{c.GetAttempt(), c.GetRank(), c.GetFd()}
	t := l.tails[k]
	if t == nil {
		t = &lastLines{most: int(l.req.GetTail())}
		l.tails[k] = t
		l.order = append(l.order, k)
	}
	t.add(&c)
	return nil
}

// flush sends the last lines of each rank, once the past has been read.
func (l *logReader) flush() error {
	for _, k := range l.order {
		t := l.tails[k]
		if err := l.send(chunk(t.newest, t.data)); err != nil {
			return err
		}
	}
	l.tails, l.order = nil, nil
	return nil
}

func chunk(c *weftv1.LogChunk, data []byte) *apiv1.ReadLogsResponse {
	return apiv1.ReadLogsResponse_builder{
		Attempt: new(c.GetAttempt()), Rank: new(c.GetRank()), Fd: new(c.GetFd()), Data: data, TimeNs: new(c.GetTimeNs()), Dropped: new(c.GetDropped()),
	}.Build()
}

// lastLines keeps the end of one rank's output.
type lastLines struct {
	most   int
	data   []byte
	newest *weftv1.LogChunk
}

// keepTail bounds the bytes kept of a rank whose lines never end.
const keepTail = 1 << 20

func (t *lastLines) add(c *weftv1.LogChunk) {
	t.newest = c
	t.data = append(t.data, c.GetData()...)
	if len(t.data) > keepTail {
		t.data = bytes.Clone(t.data[len(t.data)-keepTail:])
	}
	// Cut before the most-th line from the end; an unfinished last line counts as one.
	lines := 0
	for i := len(t.data) - 1; i > 0; i-- {
		if t.data[i-1] == '\n' {
			if lines++; lines == t.most {
				t.data = bytes.Clone(t.data[i:])
				return
			}
		}
	}
}
